"""The version of the rules fixes a verdict's meaning: what decides verdicts does not change without a look at it."""

import json
from pathlib import Path

from perf import gate
from perf.gate.report import read_report, to_json
from perf.gate.verdicts import RULES
from perf.gate.wording import conditions
from tests.digests import digest_of
from tests.gate.reports import report, verdict

DIGEST = "a069bd43fc97e61e"
"""Of the modules that decide, docstrings and comments aside, at `RULES`."""

DECIDE = (
    *("aa_runs", "contamination", "decisions", "inference", "judge", "measuring", "prior", "timed_rows", "variance"),
    "verdicts",
)


def test_what_decides_does_not_change_without_a_look_at_its_version() -> None:
    folder = Path(gate.__file__).parent
    found = digest_of(folder / f"{module}.py" for module in DECIDE)
    assert found == DIGEST, (
        f'perf/gate changed: set DIGEST = "{found}" in {Path(__file__).name}, and bump RULES in perf/gate/verdicts.py '
        "unless you are sure that no verdict can differ"
    )


def test_a_report_names_its_rules_and_an_older_one_none(tmp_path: Path) -> None:
    path = tmp_path / "report.json"
    path.write_text(to_json(report(verdict("SAME"), rules=RULES)))
    assert ("Rules", f"version {RULES}") in conditions(read_report(path))
    document = json.loads(path.read_text())
    del document["rules"]
    path.write_text(json.dumps(document))
    assert "Rules" not in dict(conditions(read_report(path)))
