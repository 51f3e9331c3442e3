"""The harness version fixes a number's meaning: code that makes numbers does not change without a look at it."""

from pathlib import Path

from perf import harness
from tests.digests import digest_of

DIGEST = "98519005c6beb377"
"""Of all modules of perf/harness but these, docstrings and comments aside, at HARNESS_VERSION."""

MAKE_NO_NUMBER = frozenset(
    {
        "__init__",  # the version itself
        *("bench", "intervals", "explanation"),  # of studies and pages; their numbers are not the records'
        *("declaration", "definitions", "reach", "sources", "suite"),  # which cases there are, and what they run
        *("lock", "preflight", "progress", "records", "record_forms", "journal", "status", "working_tree"),
    }
)


def digest_of_numbers() -> str:
    folder = Path(harness.__file__).parent
    modules = {".".join(path.relative_to(folder).with_suffix("").parts): path for path in folder.rglob("*.py")}
    assert modules.keys() >= MAKE_NO_NUMBER, "a module that is gone or renamed"
    return digest_of(modules[name] for name in sorted(modules.keys() - MAKE_NO_NUMBER))


def test_what_makes_numbers_does_not_change_without_a_look_at_its_version():
    found = digest_of_numbers()
    assert found == DIGEST, (
        f'perf/harness changed: set DIGEST = "{found}" in {Path(__file__).name}, and bump HARNESS_VERSION in '
        "perf/harness/__init__.py unless you are sure that no number can have moved"
    )
