"""What communication adds to a step on several ranks, by which buckets, and what sharding saves."""
