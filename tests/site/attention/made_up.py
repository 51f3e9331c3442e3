"""The attention page of made-up records, without asv and without a browser."""

from pathlib import Path

from perf.harness.records import read_commit
from perf.site.attention.collected import MachineAttention, Measured
from perf.site.attention.page import render
from perf.site.pages import Commit
from tests.site import synthetic

COMMIT = Commit("0123456789abcdef" * 2 + "01234567", "Tile <sizes>", "2026-01-02")


def measured(suite: synthetic.Suite, directory: Path, commit: Commit = COMMIT, visits: int = 4) -> Measured:
    """What the publisher would find of one suite."""
    records = directory / suite.benchmark
    synthetic.write_records(records, suite, commit.hash, visits)
    results = read_commit(records, suite.machine, commit.hash)
    return Measured(suite.machine, suite.benchmark, commit, results, frozenset(synthetic.benchmarks(suite)))


def page_of(suite: synthetic.Suite, directory: Path, visits: int = 4) -> str:
    """The page about one suite."""
    machine = MachineAttention(suite.machine, [measured(suite, directory, visits=visits)])
    return render("demo", [machine], "https://code.example/commit/")
