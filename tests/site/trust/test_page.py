"""The trust page as text, from self-tests in the gate's own format."""

import json
import re
from pathlib import Path
from typing import Any

import pytest

from perf.gate.acceptance import Acceptance, AcceptedRow
from perf.gate.mutations import Mutation
from perf.gate.rate import Rate
from perf.gate.report import to_json
from perf.site.changes.rates import Detection, Rates
from perf.site.trust import mutations, records
from perf.site.trust.page import MachineSelfTests, render
from tests.gate.reports import memory, report, verdict
from tests.site.pages import text_of
from tests.site.trust import made_up as self_tests

FINDER = Rates(
    [("normal noise", Rate(1, 2000)), ("waves", Rate(4, 2000))],
    [("two states", Rate(20, 100))],
    [Detection(0.1, after, Rate(150 + after, 200), Rate(1, 20)) for after in (2, 3)],
)
NEGLIGIBLE = {"attention.FlashAttention": (0.01, 3e-7), "attention.ShortAttention": (0.02, 1e-7)}


def page_of(directory: Path, *documents: dict[str, Any] | str) -> str:
    for number, one in enumerate(documents):
        self_tests.write(directory, "nvidia-h200", str(number), one)
    machine = MachineSelfTests("nvidia-h200", *records.read(directory, "nvidia-h200"), Rate(9, 10))
    return render("demo", [machine], NEGLIGIBLE, FINDER, "https://code.example/commit/")


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> str:
    documents = [self_tests.document(rows=30) for _ in range(3)]
    return page_of(tmp_path_factory.mktemp("records"), *documents)


def test_every_row_has_a_mark_and_a_line(page: str) -> None:
    assert page.count("<title>attention.") == 30
    [table] = re.findall(r'<table class="cases rows">.*?</table>', page, flags=re.DOTALL)
    rows = re.findall(r'<tr>\s*<th scope="row".*?</tr>', table, flags=re.DOTALL)
    assert len(rows) == 30
    assert re.fullmatch(
        r"seq_len \d+, d 64, bfloat16, forward, triton [\d.]+ % 1\.0 % SAME \d+ µs attention.FlashAttention",
        text_of(rows[0]),
    )
    assert "Best row 1.1 %" in text_of(page)


def test_false_alarms_are_told(tmp_path: Path) -> None:
    page = page_of(tmp_path, self_tests.document(rows=10, say=lambda number, part: "SLOWER"))
    assert re.search(r"10 of 10 rows .*100\.0 % \(at most 100\.0 %\) , in 1 of 1 self-test\.", text_of(page))
    assert 'class="number failed" data-value="10">10 SLOWER' in page
    assert page.count('class="dot false"') == 10 + 1, "the rows, and the legend"


def test_contaminated_parts_and_broken_files_are_named_and_do_not_count(tmp_path: Path) -> None:
    moved = self_tests.document(rows=10, contaminated=("identical code", "1 % on the device"))
    text = text_of(
        page_of(tmp_path, moved, self_tests.document(rows=5), "{", self_tests.document(rows=1) | {"version": 9})
    )
    assert "0 of 5 rows" in text
    assert "identical code CONTAMINATED controls.Controls('matmul', 'cold') moved by +3.1 % 2026-01-20" in text
    assert "2.json SKIPPED is no JSON, or cut off" in text
    assert "3.json SKIPPED is of version 9; allowed: 1" in text


def test_text_of_strangers_stays_text(tmp_path: Path) -> None:
    text = self_tests.HOSTILE
    found = self_tests.document(rows=3, reason=text, contaminated=("1 % on the device",), commit=text)
    found["parts"][1]["contaminated"] = text
    found["parts"][0]["verdicts"][0]["key"] = f"{text}({text})"
    found["parts"][0]["visits"][text] = [[0, 0.1], [1, 1e9]]
    found |= {"device": {"name": text, "driver": [text]}, "software": {"torch": {text: text}}}
    folder = tmp_path / "records"
    self_tests.write(folder, "a<b>", "0", found)
    self_tests.write(folder, "a<b>", "1", {"version": text})
    page = render(
        "demo", [MachineSelfTests("a<b>", *records.read(folder, "a<b>"), Rate(0, 0))], NEGLIGIBLE, FINDER, "#"
    )
    assert "<script>alert" not in page
    assert "<img" not in page
    assert not re.search(r'<[^>]*" onmouseover="', page)
    assert text_of(page).count("alert(1)") >= 8


def test_half_a_character_does_not_stop_the_page(tmp_path: Path) -> None:
    from perf.site.offline import replace_text

    page = page_of(tmp_path, self_tests.document(rows=1, reason="\ud800"))
    replace_text(tmp_path / "trust.html", page)
    assert (tmp_path / "trust.html").read_text(encoding="utf-8") == page.replace("\ud800", "?")


def test_accepted_regressions_are_named_with_their_reason_newest_first() -> None:
    key = "attention.FlashAttention(8192, 64, 'bfloat16', 'forward', 'triton')"
    rows = (
        AcceptedRow(key, "time", "SLOWER", 0.035),
        AcceptedRow(key, "peak_memory", "LARGER", 0.5),
        AcceptedRow(key, "time", "BROKEN", None),
    )
    accepted = [Acceptance("a" * 40, "sums <b>exactly</b>", rows), Acceptance("b" * 40, "later", rows[:1])]
    page = render("demo", [], {}, FINDER, "https://code.example/commit/", accepted)
    text = text_of(page)
    cell = "attention.FlashAttention(8192, 64, bfloat16, forward, triton)"
    assert f"aaaaaaaa sums <b>exactly</b> {cell} SLOWER +3.5 %; {cell}, memory LARGER +50 %; {cell} BROKEN" in text
    assert text.index("later") < text.index("sums")
    assert "<b>" not in page
    many = [Acceptance("a" * 40, "sums", rows * 2)]
    assert "6 rows " in text_of(render("demo", [], {}, FINDER, "", many))
    assert "SLOWER +3.5 %" not in text_of(render("demo", [], {}, FINDER, ""))


def test_the_finder_of_changes_has_its_error_rates() -> None:
    text = text_of(render("demo", [], {}, FINDER, ""))
    assert "normal noise 2000 1 0.2 %" in text and "waves 2000 4 0.5 %" in text
    assert "two states 20 %" in text
    assert "10 % where commits scatter by 2 % 76 % asv 5 % 76 % asv 5 %" in text


def test_a_gate_of_identical_code_tells_of_peak_memory_too(tmp_path: Path) -> None:
    same = {"commit": self_tests.COMMIT, "subject": "The kernel"}
    rows = (
        verdict("SAME", change=0.0, negligible=0.01),
        memory("SAME", 2.0**20, 2.0**20),
        memory("SMALLER", 2.0**20, 2.0**19),
    )
    kept = tmp_path / "nvidia-h200" / "gate" / "20260120T120000Z.json"
    kept.parent.mkdir(parents=True)
    kept.write_text(to_json(report(*rows, base=same, head=same)))
    assert "peak memory: 1 of 2 rows." in text_of(page_of(tmp_path))


def test_planted_regressions_are_scored_by_kind_and_what_escaped_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = (f"<i>{number}" for number in range(3))
    monkeypatch.setattr(mutations, "listed", lambda: [Mutation("copy", name, "file", "", "", "row") for name in names])

    def written(name: str, *words: str) -> None:
        attempts = [
            {"kind": "copy", "name": f"<i>{number}", "wanted": "SLOWER", "word": word, "reason": "why"}
            for number, word in enumerate(words)
        ]
        path = tmp_path / "m" / "mutations" / f"{name}.json"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps({"version": 1, "commit": "a" * 40, "attempts": attempts}))

    written("1", "SAME", "SAME", "", "listed no more")
    written("2", "SLOWER")
    (tmp_path / "m" / "mutations" / "3.json").write_text("{")
    planted, skipped = mutations.read(tmp_path, "m")
    machine = MachineSelfTests("m", [], skipped, Rate(0, 0), planted)
    page = render("demo", [machine], NEGLIGIBLE, FINDER, "#")
    text = text_of(page)
    assert "copy 1 2 at least 2.5 %" in text
    assert "copy: <i>1 SAME SLOWER why" in text
    assert "1 had no verdict" in text
    assert "3.json SKIPPED" in text
    assert "<i>" not in page


@pytest.mark.parametrize("key", ["gone.Class(128, 'x')", "attention.FlashAttention(128, 64)", "gone.Class(__import__)"])
def test_a_row_whose_class_has_other_axes_today_has_its_values(tmp_path: Path, key: str) -> None:
    document = self_tests.document(rows=1)
    document["parts"][0]["verdicts"][0]["key"] = key
    benchmark, _, values = key.removesuffix(")").replace("'", "").partition("(")
    assert re.search(rf"{values} [\d.]+ % .* {benchmark}", text_of(page_of(tmp_path, document)))
