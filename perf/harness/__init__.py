"""The one place where a number is made: clocks, memory, device identity, the worker and its supervisor."""

HARNESS_VERSION = "3"
"""Bumped by hand whenever a change under this folder can move a number; stored with every record."""

HARNESS_DIGEST = "f1fee2bf28de2b55"
"""Of this folder's code at that version; test_harness_version.py asks for a new one after every change."""
