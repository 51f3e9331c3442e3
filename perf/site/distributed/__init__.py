"""Distributed page: strategies, bucket sizes, collectives and optimizer sharding."""
