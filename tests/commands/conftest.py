"""The fixtures of the gate's and the write-up's tests, for their commands."""

from tests.gate.conftest import repository
from tests.writeup.conftest import committed, committed_source, undrawn

__all__ = ["committed", "committed_source", "repository", "undrawn"]
