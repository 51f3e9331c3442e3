"""All measurement: clocks, memory, device identity, the worker and its supervisor."""

HARNESS_VERSION = "4"
"""Incremented by hand whenever a change in this folder can move a number; stored with every record."""
