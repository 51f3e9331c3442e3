"""untrusted.py: which reports are none."""

import json
import sys

import pytest

from perf.gate import report as report_file
from tests.gate import reports as made
from tests.workflows.scripts import ROOT, SCRIPTS, report
from tests.workflows.scripts import changed as replaced

sys.path.insert(0, str(SCRIPTS))
try:
    import github
    import untrusted
finally:
    sys.path.remove(str(SCRIPTS))


def changed(*path, to):
    return replaced(report("b" * 40, "c" * 40), *path, to=to)


WRONG = [
    [],
    "report",
    None,
    {},
    changed("base", to={}),
    changed("head", "commit", to="c" * 39),
    changed("head", "commit", to="c" * 40 + "\n"),
    changed("head", "commit", to=["c" * 40]),
    changed("judgement", "verdicts", to={}),
    changed("judgement", "verdicts", to=[{}]),
    changed("judgement", "verdicts", 0, "word", to="GREAT"),
    changed("judgement", "verdicts", 0, "change", to="0.1"),
    changed("judgement", "verdicts", 0, "change", to=True),
    changed("judgement", "verdicts", 0, "head", to=10**400),
    changed("judgement", "verdicts", 0, "low", to=float("inf")),
    changed("judgement", "verdicts", 0, "accepted", to=None),
    changed("processes", to=1.5),
    changed("judgement", "verdicts", 0, "negligible", to="1 %"),
    changed("differences", to=[["torch"]]),
    changed("spent_s", to={"samples": 1.0, "checks": "long"}),
]


def read(document):
    return untrusted.read_report(json.dumps(document), "report.json")


def test_a_good_report_is_read_and_keys_of_a_later_version_are_passed_over():
    assert read(report("b" * 40, "c" * 40)).head["commit"] == "c" * 40
    assert read(changed("judgement", "verdicts", 0, "change", to=None)).judgement.verdicts[0].change is None
    assert read(changed("more", to=[1, 2])) == read(report("b" * 40, "c" * 40))


@pytest.mark.parametrize("index", range(len(WRONG)))
def test_a_wrong_report_is_refused_in_one_line(index):
    with pytest.raises(github.RefusedError) as refused:
        read(WRONG[index])
    line = str(refused.value)
    assert line.startswith("report.json") and line.isascii() and line.isprintable() and len(line) < 500


def test_a_report_of_the_gates_own_making_is_read():
    """The form that the gate writes and the form that the comment takes go together."""
    rows = [made.verdict(word) for word in ("SLOWER", "AMBIGUOUS", "NEW")] + [made.memory("LARGER", 2.0**20, 2.0**21)]
    for own in (made.report(*rows), made.report(tests_passed=False)):
        assert report_file.to_json(untrusted.read_report(report_file.to_json(own, []), "")) == report_file.to_json(own)


@pytest.mark.parametrize("text", ["::error::x", "a\n::set-output name=x::y", "\x1b[31m", "é", "x" * 1000])
def test_what_is_shown_in_a_log_is_one_short_line_of_ascii(text):
    line = github.shown(text)
    assert line.isascii()
    assert line.isprintable()
    assert len(line) <= 420
    assert line.startswith("'")


@pytest.mark.parametrize("path", sorted((ROOT / "perf" / "records").glob("*/gate/*.json")), ids=lambda path: path.stem)
def test_every_gate_on_file_is_one_that_the_workflows_take(path):
    assert untrusted.read_report(path.read_bytes(), path.name).base
