"""The harness version fixes a number's meaning: code that makes numbers does not change without a look at it."""

import hashlib
from pathlib import Path

from perf import harness
from perf.harness.sources import Sources

DIGEST = "65ff9191b0d99127"
"""Of the definitions of all modules of perf/harness but these, docstrings and comments aside, at HARNESS_VERSION."""

MAKE_NO_NUMBER = frozenset(
    {
        "",  # the version itself
        *("bench", "intervals", "explanation"),  # of studies and pages; their numbers are not the records'
        *("declaration", "definitions", "reach", "sources", "suite"),  # which cases there are, and what they run
        *("lock", "preflight", "progress", "records", "record_forms", "journal", "status", "working_tree"),
    }
)


def digest_of_numbers() -> str:
    sources = Sources(Path(harness.__file__).parent)
    modules = {name.partition(":")[0] for name in sources.definitions if ":" in name}
    assert modules >= MAKE_NO_NUMBER - {""}, "a module that is gone or renamed"
    digests = [(module, sources.digest_of_module(module)) for module in sorted(modules - MAKE_NO_NUMBER)]
    return hashlib.sha256(repr(digests).encode()).hexdigest()[:16]


def test_what_makes_numbers_does_not_change_without_a_look_at_its_version():
    found = digest_of_numbers()
    assert found == DIGEST, (
        f'perf/harness changed: set DIGEST = "{found}" in {Path(__file__).name}, and bump HARNESS_VERSION in '
        "perf/harness/__init__.py unless you are sure that no number can have moved"
    )
