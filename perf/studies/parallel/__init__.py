"""What several ranks cost and save: collectives, strategies of data parallelism, a divided optimizer."""
