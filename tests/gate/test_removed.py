"""A report names the rows that head takes out of the suite, which no later gate can judge."""

import pytest

from perf.gate import checkouts, removed
from perf.gate.evidence import Arm
from perf.gate.terminal import text
from perf.gate.wording import headline
from tests.gate.reports import report, verdict
from tests.throwaway import Repository


@pytest.fixture(autouse=True)
def checkout(repository: Repository, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checkouts, "ROOT", repository.folder)


def removed_rows(base: Arm, head: Arm) -> tuple[str, ...]:
    with checkouts.exported(base, head) as places:
        return removed.removed_rows((base, head), places)


def test_rows_that_only_the_base_lists_are_named(repository: Repository) -> None:
    suite = repository.folder / "perf" / "benchmarks" / "smoke.py"
    whole = suite.read_text()
    base = checkouts.resolve("base")
    suite.write_text(whole.replace("class SmokeCollectives", "class SmokeOthers"))
    found = removed_rows(base, checkouts.working_tree())
    assert found and {key.partition("(")[0] for key in found} == {"smoke.SmokeCollectives"}
    repository.commit("renamed")
    suite.write_text(whole)
    repository.commit("back")
    assert removed_rows(base, checkouts.resolve("HEAD~1")) == found
    assert not removed_rows(base, checkouts.resolve("HEAD"))


def test_a_suite_that_cannot_be_listed_is_no_smaller_one(repository: Repository) -> None:
    (repository.folder / "perf" / "selection.py").write_text("broken syntax")
    assert not removed_rows(checkouts.resolve("base"), checkouts.working_tree())


def test_the_report_says_so_beside_its_verdicts() -> None:
    found = report(verdict("SAME"), removed=("a.B(1)", "a.B(2)", "c.D(1)"))
    assert "3 rows" in headline(found)
    assert "2 rows of a.B, 1 row of c.D" in text(found)
