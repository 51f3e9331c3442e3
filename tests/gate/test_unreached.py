"""Rows that a change cannot reach are not measured, and nothing else is left out."""

import shutil
from pathlib import Path

import pytest

from perf.gate.evidence import Evidence
from perf.gate.unreached import Change, in_reach
from perf.harness.case import Case
from perf.harness.reach import ReachMap
from perf.harness.sources import Sources
from tests.throwaway import Repository, write_package

FUNCTION = "attention.reference:scaled_dot_product_attention"


@pytest.fixture
def base(tmp_path: Path) -> Path:
    write_package(tmp_path / "base", axis="[1]")
    return tmp_path / "base" / "cs336_systems"


def row(number: int, *, is_control: bool = False) -> Evidence:
    case = Case("module.Control" if is_control else "module.Class", "attention", {"n": number}, "cpu", "wall", "warm")
    return Evidence(case, (0.01, 0.0), is_control)


ROWS = [row(number) for number in range(100)]
CONTROL = row(0, is_control=True)


def known(base: Path) -> ReachMap:
    """Of all rows but the first, which the map lacks; odd rows run nothing but a package of no code."""
    made = ReachMap([], {})
    own = Sources(base)
    for number, each in enumerate(ROWS[1:], 1):
        needs = [":", FUNCTION] if number % 2 == 0 else [":"]
        made.entries[each.case.key] = [own.digests([*needs, "data files"])]
    return made


def counts(tmp_path: Path, base: Path, edit: tuple[str, str] | None, *paths: str) -> tuple[int, int, int]:
    """Rows measured for themselves, sampled, and left out, of a head with this edit to the attention."""
    head = tmp_path / "head"
    shutil.copytree(base, head)
    if edit:
        file = head / "attention" / "reference.py"
        assert edit[0] in file.read_text()
        file.write_text(file.read_text().replace(*edit))
    change = Change("seed", paths, Sources(base), Sources(head))
    measured, unreached = in_reach([*ROWS, CONTROL], change, known(base))
    rows = [each for each in measured if not each.is_control]
    assert (CONTROL in measured) == bool(rows)
    return len(rows) - len(unreached.sampled), len(unreached.sampled), len(unreached.skipped)


def test_an_edit_reaches_the_rows_that_run_it(tmp_path: Path, base: Path) -> None:
    own, sampled, skipped = counts(tmp_path, base, ("@ v", "@ v * 2"), "cs336_systems/attention/reference.py")
    assert own == 50  # 49 even rows, and the one that the map does not know
    assert sampled + skipped == 50
    assert 0 < sampled < 10


def test_a_comment_reaches_none_even_if_nobody_knows_the_row(tmp_path: Path, base: Path) -> None:
    edit = ("import time", "import time  # why")
    assert counts(tmp_path, base, edit, "cs336_systems/attention/reference.py") == (0, 0, 100)


def test_a_comment_reaches_none_without_a_map(tmp_path: Path, base: Path) -> None:
    change = Change("seed", ("cs336_systems/attention/reference.py",), Sources(base), Sources(base))
    measured, unreached = in_reach([*ROWS, CONTROL], change, ReachMap([], {}))
    assert not measured
    assert len(unreached.skipped) == 100


@pytest.mark.parametrize("path", ["pyproject.toml", "constraints.txt", "setup.py", "native/kernel.cu", "docs2/x.py"])
def test_a_path_that_no_map_covers_reaches_every_row(tmp_path: Path, base: Path, path: str) -> None:
    assert counts(tmp_path, base, None, path) == (100, 0, 0)


@pytest.mark.parametrize("path", ["README.md", "docs/gate.md", "perf/gate/rows.py", ".github/workflows/tests.yml"])
def test_a_path_of_neither_arm_reaches_none(tmp_path: Path, base: Path, path: str) -> None:
    assert counts(tmp_path, base, None, path)[0] == 0


def test_a_data_file_in_the_package_reaches_every_row(tmp_path: Path, base: Path) -> None:
    head = tmp_path / "other"
    shutil.copytree(base, head)
    (head / "table.json").write_text("{}")
    change = Change("seed", ("cs336_systems/table.json",), Sources(base), Sources(head))
    measured, unreached = in_reach(ROWS, change, known(base))
    assert measured == ROWS
    assert not unreached.skipped


@pytest.mark.slow
def test_a_gate_of_a_docstring_runs_no_test_and_times_nothing(repository: Repository) -> None:
    """The map is made as asv run makes it."""
    measure = (
        "from pathlib import Path; from perf.benchmarks.smoke import SmokeAttention as Class;"
        "from perf.harness.suite import cases_of; from perf.harness.supervisor import Effort, measure;"
        "cases = [case for case in cases_of(Class()) if list(case.params.values())[::4] == [128, 'reference']];"
        "root = Path.cwd(); records = root / 'perf' / 'records';"
        "assert measure(cases, commit='0' * 40, checkout=root, records=records, effort=Effort(rounds=1))"
    )

    made = repository.python("-c", measure)
    assert made.returncode == 0, made.stderr
    file = repository.folder / "cs336_systems" / "attention" / "reference.py"
    file.write_text(f'"""What attention is."""\n{file.read_text()}')
    asked = ["-m", "perf", "gate", "base", "-b", r"SmokeAttention.*\(128.*'reference'"]
    dry = repository.python(*asked, "--dry-run")
    assert dry.stdout.count("out of reach") == 2
    assert "0 of 5 rows would be measured\n" in dry.stderr
    done = repository.python(*asked)
    assert done.returncode == 0, done.stderr
    assert "reaches none of 2 rows" in done.stdout
    assert "not run: no code has changed" in done.stdout
