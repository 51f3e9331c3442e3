"""The fixtures of the gate's, the pages' and the write-up's tests, for their commands."""

from tests.gate.conftest import repository
from tests.site.conftest import _chromium, driver
from tests.writeup.conftest import committed, committed_source, undrawn

__all__ = ["_chromium", "committed", "committed_source", "driver", "repository", "undrawn"]
