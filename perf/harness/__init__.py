"""All measurement: clocks, memory, device identity, the worker and its supervisor."""

HARNESS_VERSION = "4"
"""Incremented by hand whenever a change in this folder can move a number; stored with every record."""

HARNESS_DIGEST = "28d0b7aeb4b74571"
"""Digest of this folder's code at that version; after a change test_harness_version.py prints the new one."""
