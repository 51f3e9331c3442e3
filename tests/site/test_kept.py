"""A kept gate that cannot be read is left out of the pages, and is one line of `asv publish`."""

from pathlib import Path

import pytest
from asv.console import log

from perf.gate.report import to_json
from perf.site import gates
from tests.gate.reports import report, verdict

WHOLE = to_json(report(verdict("SAME")))


@pytest.mark.parametrize("text", [WHOLE[:100], "[]", '{"version": 99}', WHOLE.replace('"judgement"', '"judgment"')])
def test_a_damaged_gate_is_a_warning_once_with_its_path(
    text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    said: list[str] = []
    monkeypatch.setattr(log, "warning", said.append)
    folder = tmp_path / "m" / "gate"
    folder.mkdir(parents=True)
    (folder / "20260105T060000Z.json").write_text(WHOLE)
    (folder / "20260106T060000Z.json").write_text(text)
    for _ in range(2):  # pages
        found, skipped = gates.read(tmp_path, "m")
        assert [gate.report.judgement.verdicts[0].word for gate in found] == ["SAME"]
        assert [name for name, _ in skipped] == ["20260106T060000Z.json"]
    (line,) = said
    assert str(folder / "20260106T060000Z.json") in line and "\n" not in line
