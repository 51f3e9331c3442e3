"""The documents under version control are what the committed rows render to."""

import json
import re
import shutil
from pathlib import Path

import pytest
from click.testing import CliRunner

from perf.__main__ import main
from perf.studies.attention.cells import Cell, cells_of
from perf.studies.attention.groups import GROUPS, document_of
from perf.writeup import committed
from perf.writeup.answered import TABLES
from perf.writeup.answers import attention
from perf.writeup.markdown import anchor
from perf.writeup.templating import FOLDER
from tests.studies.attention.test_sample import of_a_cell
from tests.writeup.made_up import perf_folder

PERF = Path(__file__).parents[2] / "perf"
STUDIES = Path("studies") / "results"
H200 = STUDIES / "nvidia-h200"


def test_the_committed_documents_are_those_of_the_committed_rows(committed_source):
    for path, text in committed.documents(committed_source).items():
        assert path.read_text(encoding="utf-8") == text, "run python -m perf report --answers"


ANSWERS = (PERF / H200 / "README.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("path", sorted(set(re.findall(r"\]\(([^)#]+)\)", ANSWERS))))
def test_what_the_answers_link_to_exists_and_pictures_are_small(path):
    file = PERF / H200 / path
    assert file.exists()
    assert file.suffix != ".png" or file.stat().st_size < 60_000


def test_links_within_the_answers_lead_to_headings():
    headings = {anchor(words) for words in re.findall(r"^## (.+)$", ANSWERS, re.M)}
    assert set(re.findall(r"\]\(#([\w-]+)\)", ANSWERS)) <= headings


def test_every_table_is_shown():
    texts = [path.read_text(encoding="utf-8") for path in FOLDER.rglob("*.md")]
    assert set(re.findall(r'\btable\("([\w-]+)"\)', "".join(texts))) == set(TABLES)


def answers(folder):
    return CliRunner().invoke(main, ["report", "--answers", "--results", str(folder)])


@pytest.fixture
def checkout(tmp_path, monkeypatch):
    """A perf folder with the committed studies but for the groups of attention that may be missing, between two front
    pages; asv measured the first calls alone."""
    folder = perf_folder(tmp_path / "perf", {})
    for place in (PERF / STUDIES).iterdir():
        shutil.copytree(place, folder / STUDIES / place.name, ignore=shutil.ignore_patterns("*.png", "*.md"))
    shutil.rmtree(folder / STUDIES / "box")
    for group in attention.NEEDS:
        for path in (folder / STUDIES).glob(f"*/{document_of(group)}.json"):
            path.unlink()
    monkeypatch.setattr(committed, "first_calls_s", lambda source: [4.0, 8.0])
    for name, (heading, _) in committed.FRONT.items():
        (tmp_path / name).write_text(
            f"# title\n\nbefore\n\n{heading}\n\nwords of before\n\n## next\n\nafter\n", encoding="utf-8"
        )
    return folder


def test_the_command_writes_what_changed_and_nothing_beside_the_results(checkout):
    said = [answers(checkout) for _ in range(2)]
    assert [one.exit_code for one in said] == [0, 0], said[0].output
    assert said[0].output.count("rewritten") == said[1].output.count("unchanged") == 3
    front = (checkout.parent / "README.md").read_text(encoding="utf-8")
    assert front.startswith("# title\n\nbefore\n\n## Results\n\n") and front.endswith("\n\n## next\n\nafter\n")
    assert "words of before" not in front and "4.0-8.0 s" in front
    assert (checkout / H200 / "README.md").is_file()

    path = checkout / H200 / "warm-up.json"
    document = json.loads(path.read_text())
    document["rows"][1]["optimizer_s"][0] += 1.0
    path.write_text(json.dumps(document))
    assert answers(checkout).output.splitlines() == [
        "perf/studies/results/nvidia-h200/README.md: rewritten",
        "README.md: unchanged",
        "README.zh.md: unchanged",
    ]


def test_grouped_heads_and_the_random_sample_are_shown_once_they_are_measured(checkout):
    def sections():
        assert answers(checkout).exit_code == 0
        return (checkout / H200 / "README.md").read_text(encoding="utf-8").partition("**Grouped heads**")[2]

    assert re.findall(r"Not measured.*`python -m perf study attention --group (\w+)", sections()) == list(
        attention.NEEDS
    )
    other = checkout / H200.with_name("nvidia-elsewhere")
    other.mkdir()
    (other / "attention-gqa.json").write_text("{}")
    assert sections().count(other.name) == 1
    known = json.loads((checkout / H200 / "attention-grid.json").read_text())
    grouped = [of_a_cell(cell, sdpa_cudnn=1.25, sdpa_flash=2.0) for cell in cells_of({"gqa": GROUPS["gqa"]})]
    drawn = [
        of_a_cell(Cell("random", 3, 10, 6272, d, dtype, False, "forward", "cuda_events", "cold"), **others)
        for d, dtype, others in (
            (88, "bfloat16", {"sdpa_cudnn": 0.5, "sdpa_math": 9.0}),
            (64, "float16", {"sdpa_cudnn": 2.0}),
            (80, "float32", {"sdpa_efficient": 8.0}),
        )
    ]
    aside = [of_a_cell(cell, sdpa_cudnn=4.0) for cell in cells_of({"aside": GROUPS["aside"]})]
    for name, cells in (("gqa", grouped), ("aside", aside), ("random", drawn)):
        document = known | {"command": f"measure {name}", "rows": [row for cell in cells for row in cell]}
        (checkout / H200 / f"attention-{name}.json").write_text(json.dumps(document))
    text = sections()
    assert "Not measured" not in text and "`measure gqa`" in text and "`measure random`" in text
    lines = [[cell.strip() for cell in line.split("|")[1:-1]] for line in text.splitlines() if line.startswith("| ")]
    gqa = [line for line in lines if line[0].startswith("1 x 64/8 x ")]
    assert len(gqa) == 20 and {tuple(line[-2:]) for line in gqa} == {("1.250× ± 0.0 %", "2.000× ± 0.0 %")}
    assert {(line[0].split()[4], line[1], line[2]) for line in gqa} == {
        (str(n), mask, mode)
        for n in (2048, 4096, 8192, 16384, 32768)
        for mask in ("causal", "full")
        for mode in ("forward", "backward")
    }
    assert sum("4.000× ± 0.0 %" in line for line in lines) == len(aside)
    sample = [line[1:] for line in lines if line[0] == "forward"]
    assert [line[:4] for line in sample] == [
        ["every d", "3", "2.000× ± 0.0 %", "1"],
        ["d 16, 32, 64, 128", "1", "2.000× ± 0.0 %", "0"],
        ["d 48, 80, 96, 112", "1", "8.000× ± 0.0 %", "0"],
        ["d in odd multiples of 8", "1", "0.500× ± 0.0 %", "1"],
    ]
    assert sample[2][4:] == ["8.000× ± 0.0 %, SDPA efficient", "3 x 10 x 6272 x 80 float32, full"]
    assert sample[0][4:] == sample[3][4:] == ["0.500× ± 0.0 %, cuDNN", "3 x 10 x 6272 x 88 bfloat16, full"]
    pictures = set(re.findall(r"\((attention-[\w-]+\.png)\)", text))
    modes = {name: GROUPS[name].modes for name in ("gqa", "random")} | {"aside": ("forward_backward",)}
    assert pictures == {f"attention-{name}-{mode}.png" for name in modes for mode in modes[name]}


def slower_attention(folder):
    path = folder / H200 / "attention-grid.json"
    document = json.loads(path.read_text())
    for row in document["rows"]:
        if row["impl"] == "flex":
            row["samples_s"] = [[sample / 2 for sample in samples] for samples in row["samples_s"]]
    path.write_text(json.dumps(document))
    return "the grid"


def no_attention(folder):
    (folder / H200 / "attention-grid.json").unlink()
    return "study attention with {'is_causal': False}: no row is on file"


def no_heading(folder):
    (folder.parent / "README.md").write_text("# title\n")
    return "README.md has no heading '## Results'"


@pytest.mark.parametrize("spoil", [slower_attention, no_attention, no_heading])
def test_what_cannot_be_rendered_is_one_line_and_writes_nothing(spoil, checkout):
    reason = spoil(checkout)
    before = {path: path.read_bytes() for path in checkout.parent.rglob("*.md")}
    done = answers(checkout)
    assert done.exit_code == 1 and reason in done.output and done.output.count("\n") == 1, done.output
    assert {path: path.read_bytes() for path in checkout.parent.rglob("*.md")} == before


def test_a_bundle_and_the_documents_are_not_made_together():
    done = CliRunner().invoke(main, ["report", "--answers", "--bundle"])
    assert done.exit_code == 2 and "allowed: one of them" in done.output
