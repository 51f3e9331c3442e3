"""Costs and savings of several ranks: collectives, strategies of data parallelism, a divided optimizer."""
