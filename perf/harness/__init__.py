"""The one place where a number is made: clocks, memory, device identity, the worker and its supervisor."""

HARNESS_VERSION = "1"
"""Bumped by hand whenever a change under this folder can move a number; stored with every record."""
