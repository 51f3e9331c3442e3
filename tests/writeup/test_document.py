"""The document says what the rows say; what was not measured is named, with its command and no number."""

import json
import re
import shutil
from dataclasses import replace
from pathlib import Path

import click
import pytest

from perf.studies.on_file import OnFile
from perf.writeup import answered, claims, document, source
from perf.writeup.answered import CHAPTERS
from perf.writeup.chapters import CODE, extras, parts
from perf.writeup.editions import EDITIONS
from tests.writeup.made_up import ALL, DDP, MACHINE, SHARDING, ddp_row, perf_folder

EDITION = EDITIONS["2025"]
PROBLEMS, PARTS, EXTRAS = EDITION.problems, parts(EDITION), extras(EDITION)
PERF = Path(__file__).parents[2] / "perf"
STUDIES = "studies/results/nvidia-h200"


def written(folder, out, machine=MACHINE, edition=EDITION):
    return document.write(source.read(folder, machine), out, edition)


def studies_alone(folder):
    """A perf folder with the committed studies, in which asv measured nothing."""
    shutil.copytree(PERF / STUDIES, perf_folder(folder, {}) / STUDIES)
    return folder


@pytest.fixture
def copied(tmp_path, undrawn):
    """To be changed."""
    return studies_alone(tmp_path / "perf")


@pytest.fixture(scope="module")
def studies_source(tmp_path_factory):
    return source.read(studies_alone(tmp_path_factory.mktemp("studies") / "perf"), "nvidia-h200")


def chapter(made, name):
    return made.text.partition(f"\n## {name}\n")[2].partition("\n## ")[0]


def test_every_problem_has_a_chapter_in_the_handouts_order_and_is_answered_in_one_way(committed):
    names = re.findall(r"^## (\w+)$", committed.document.text, re.M)
    assert [name for name in names if name in {problem.name for problem in PROBLEMS}] == [
        problem.name for problem in PROBLEMS
    ]
    code = {problem.name for problem in PROBLEMS if problem.answered == "code"}
    assert PARTS.keys() | code == {problem.name for problem in PROBLEMS} and code <= set(CODE)
    assert not PARTS.keys() & code


def test_2026_has_its_own_problems_in_its_own_order(committed_source, undrawn, tmp_path):
    edition = EDITIONS["2026"]
    made = document.write(committed_source, tmp_path, edition)
    assert made.warnings == []
    names = re.findall(r"^## (\w+)$", made.text, re.M)
    own = [problem.name for problem in edition.problems]
    assert [name for name in names if name in {*own, *(problem.name for problem in PROBLEMS)}] == own
    assert parts(edition).keys() | {problem.name for problem in edition.problems if problem.answered == "code"} == set(
        own
    )
    assert "137 points" in made.text and "This handout's xl is 2.7B" in made.text
    profiling = chapter(made, "memory_profiling")
    assert "| attention's probabilities | 8 | 6.2 % | 2048 | 51.6 % |" in profiling and "**(f)**" in profiling
    for name in made.missing:
        assert "**Not measured yet:** `" in chapter(made, name)
    assert not made.missing.keys() & {"benchmarking_script", "torch_compile", "flash_benchmarking", "naive_ddp"}
    assert "6,211 MiB" in chapter(made, "gradient_checkpointing")
    assert re.search(r"\n\*15 points\.\*?.*\n\n[`\w]", chapter(made, "fsdp"))  # a paragraph of its own
    assert "12.691 GiB" in chapter(made, "optimizer_state_sharding_accounting")  # of its own xl


def test_rows_of_the_other_editions_xl_answer_nothing(undrawn, tmp_path):
    folder = perf_folder(tmp_path, ALL)
    made = written(folder, tmp_path / "out", edition=EDITIONS["2026"])
    assert "131.25" not in made.text and "naive_ddp_benchmarking" in made.missing
    rows = [row | {"size": "2.7B"} for row in DDP]
    (folder / "studies/results/box-x2/2.7B").mkdir()
    samples = {"ours_s": [[1.0] * 3] * 3, "against_s": [[1.5] * 3] * 3, "ours_busy": [], "against_busy": []}
    step = rows[0] | {"ours": "prefetch_2/bfloat16", "against": "torch", "batch": 4, "context_length": 512} | samples
    perf_folder(tmp_path, {"ddp": rows, "fsdp": [step]}, "box-x2/2.7B")
    made = written(folder, tmp_path / "out", edition=EDITIONS["2026"])
    assert chapter(made, "naive_ddp_benchmarking").count("131.25 ms") == 1
    assert "is 1.500" in chapter(made, "fsdp_accounting")
    assert not made.missing.keys() & {"naive_ddp_benchmarking", "fsdp_accounting"}


def test_a_forward_whose_step_does_not_fit_is_shown(copied, tmp_path):
    path = copied / STUDIES / "memory.json"
    content = json.loads(path.read_text())
    for precision, peak in (("fp32", 17), ("bf16", 24)):
        (row,) = (row for row in content["rows"] if (row["context"], row["precision"]) == (128, precision))
        forward = row["forward"] | {"peak_bytes": peak * 2**30}
        row = row | {"context": 2048, "status": "out_of_memory", "reason": "step requested 2.00 GiB"}
        content["rows"].append(row | {"forward": forward, "step": {"out_of_memory": "requested 2.00 GiB"}})
    path.write_text(json.dumps(content))
    made = written(copied, tmp_path / "out", "nvidia-h200", EDITIONS["2026"])
    said = chapter(made, "memory_profiling")
    assert "| 2048 | 17.00 | 24.00 | +41.2 % | OOM | OOM |  |" in said
    assert "At 2048 a forward alone peaks at 17.0 GiB; a step does not fit." in " ".join(said.split())
    assert "memory_profiling" not in made.missing
    assert "| 2048 |" not in chapter(written(copied, tmp_path / "out", "nvidia-h200"), "memory_profiling")


def test_page_one_has_points_tests_and_what_is_measured(committed):
    page = committed.document.text.partition("\n## ")[0]
    rows = {line.split("|")[1].strip(): line for line in page.splitlines() if line.startswith("| [")}
    assert len(rows) == len(PROBLEMS)
    for problem in PROBLEMS:
        line = rows[f"[{problem.name}](#{problem.name})".replace("_", r"\_", problem.name.count("_"))]
        assert f"| {problem.points or 'optional'} " in line
        assert all(f"`{name.partition('::')[0]}`" in line for name in problem.tests)
        assert ("command" in line.rpartition(" | ")[2]) == (problem.name in committed.document.missing)
    assert all(f"`{command}`" in page for command in committed.document.commands)


def test_the_committed_rows_are_readable(committed):
    assert committed.document.warnings == []
    one_gpu = set(CHAPTERS) | {"flash_benchmarking", "leaderboard"}
    assert not committed.document.missing.keys() & one_gpu


def test_what_the_handout_does_not_ask_for_follows_the_problem_that_it_belongs_to(committed):
    problems = [problem.name for problem in PROBLEMS]
    headings = re.findall(r"^## (.+)$", committed.document.text, re.M)
    for name, (title, _) in EXTRAS.items():
        assert headings[headings.index(name) + 1] == title
    assert [name for name in headings if name in problems] == problems
    beside = chapter(committed.document, EXTRAS["flash_benchmarking"][0])
    of_their_own = (PERF / STUDIES / f"attention-{group}.json" for group in ("gqa", "aside"))
    assert beside.count("\n| batch x heads x seq") == 5 + sum(path.is_file() for path in of_their_own)
    assert "Tables and figures alone" not in committed.document.text


def test_links_lead_to_headings_and_figures_are_there(committed):
    text = committed.document.text
    pictures = re.findall(r"!\[.*?\]\((.+?)\)", text)
    assert len(pictures) == len(set(pictures)) > 5
    assert all((committed.folder / name).stat().st_size for name in pictures)
    assert set(re.findall(r"(?<!!)\[[^\]]+\]\((?!https://)(.+?)\)", text)) <= {
        "#" + re.sub(r"[^\w -]", "", words).replace(" ", "-").lower() for words in re.findall(r"^#+ (.+)$", text, re.M)
    }


def test_the_same_rows_make_the_same_text(committed, committed_source, undrawn, tmp_path):
    assert document.write(committed_source, tmp_path).text == committed.document.text


def changed(folder, name, change):
    """The rows of a study, each changed."""
    path = folder / STUDIES / f"{name}.json"
    document = json.loads(path.read_text())
    for row in document["rows"]:
        change(row)
    path.write_text(json.dumps(document))


def test_other_rows_make_other_tables_and_sentences(copied, tmp_path):
    changed(copied, "end-to-end", lambda row: row.update(peak_bytes=row["peak_bytes"] + 2**30))
    after = written(copied, tmp_path, "nvidia-h200")
    assert "| 5.00 |" in chapter(after, "benchmarking_script")
    assert "8 of 40 settings" not in chapter(after, "memory_profiling")


def test_a_chapter_whose_claims_do_not_hold_has_its_tables_alone_and_a_warning(copied, tmp_path):
    def slower(row):
        row["backward_s"] = [seconds / 10 for seconds in row["backward_s"]]

    changed(copied, "end-to-end", slower)
    made = written(copied, tmp_path, "nvidia-h200")
    said = chapter(made, "benchmarking_script")
    assert "| small | 17.42 ± 0.05 | 3.16 ± 0.00 |" in said
    assert "the backward has the longer time" in said and "**(b)**" not in said
    assert any("benchmarking_script" in one for one in made.warnings)


@pytest.mark.parametrize("names", [("end-to-end", "kernels", "memory"), ("warm-up", "precision", "attention-memory")])
def test_without_its_rows_a_chapter_has_a_command_and_no_sentence(names, copied, tmp_path):
    for name in names:
        (copied / STUDIES / f"{name}.json").unlink()
    made = written(copied, tmp_path, "nvidia-h200")
    for name in names:
        (command,) = {one for one in made.commands if one.startswith(f"python -m perf study {name} ")}
        lacking = [problem.name for problem in PROBLEMS if command in made.missing.get(problem.name, [])]
        assert lacking
        for problem in lacking:
            said = chapter(made, problem)
            assert "**Not measured yet:** `" in said and f"`{command}`" in said
            assert "**(b)**" not in said and f"[{name}.json]" not in said


def test_without_any_rows_a_chapter_has_no_number(tmp_path):
    made = written(perf_folder(tmp_path, {}), tmp_path / "out")
    for name in CHAPTERS:
        said = chapter(made, name)
        assert "**Not measured yet:** `python -m perf study" in said
        assert not re.search(r"\d", re.sub(r"`[^`]*`|\d+ points?", "", said)), name


def test_nothing_of_the_distributed_studies_is_filled_in(tmp_path):
    made = written(perf_folder(tmp_path, {}), tmp_path / "out")
    assert {"naive_ddp", "naive_ddp_benchmarking", "ddp_overlap_individual_parameters_benchmarking"} <= set(
        made.missing
    )
    said = chapter(made, "naive_ddp_benchmarking")
    assert "**Not measured yet:** `python -m perf study ddp " in said
    assert not re.search(r"\d", re.sub(r"`[^`]*`|\d+ points?", "", said))


def test_rows_of_several_gpus_make_tables_figures_and_sentences(tmp_path):
    made = written(perf_folder(tmp_path, ALL), tmp_path / "out")
    assert made.warnings == []
    distributed = {name for name in PARTS if "ddp" in name or "shard" in name or "distributed" in name}
    assert not distributed & made.missing.keys()
    for number in ("131.25 ms", "26.25 ms", "20.0 %"):
        assert number in chapter(made, "naive_ddp_benchmarking")
    for number in ("12.50 ms", "12.5 %", "0.762"):
        assert number in chapter(made, "minimal_ddp_flat_benchmarking")
    assert "| 131.25 |" in chapter(made, "naive_ddp_benchmarking")
    assert r"variant compiled\_blocks" in chapter(made, "naive_ddp_benchmarking")
    assert "bucketed" not in chapter(made, "naive_ddp_benchmarking")
    assert "100%" not in chapter(made, "ddp_overlap_individual_parameters_benchmarking")
    assert "50%" in chapter(made, "ddp_overlap_individual_parameters_benchmarking")
    assert " GB/s" in chapter(made, "ddp_bucketed_benchmarking")
    assert "50.0 %" in chapter(made, "optimizer_state_sharding_accounting")
    assert "3.2e-08" in chapter(made, "naive_ddp")
    for name in ("all-reduce", "ddp_bucketed_benchmarking-box-x2", "overlap-box-x2", "sharding-box-x2"):
        assert (tmp_path / "out" / "figures" / f"{name}.png").stat().st_size


def test_a_study_that_ran_twice_lies_in_folders_of_its_own(undrawn, tmp_path):
    folder = perf_folder(tmp_path, ALL)
    first = folder / "studies/results/box-x2"
    for run in ("512", "1024"):
        (first / run).mkdir()
        shutil.copy(first / "overlap.json", first / run)
    (first / "overlap.json").unlink()
    said = chapter(written(folder, tmp_path / "out"), "ddp_overlap_individual_parameters_benchmarking")
    for run in ("512", "1024"):
        assert f"rows in `perf/studies/results/box-x2/{run}/overlap.json`" in said
        assert (tmp_path / "out" / "figures" / f"overlap-box-x2-{run}.png").is_file()


def test_half_of_a_measurement_is_named_as_half(undrawn, tmp_path):
    rows = [row for row in DDP if row["strategy"] != "flat"]
    made = written(perf_folder(tmp_path, {"ddp": rows}), tmp_path / "out")
    line = next(line for line in made.text.splitlines() if line.startswith(r"| [minimal\_ddp\_flat"))
    assert "in part: command" in line
    said = chapter(made, "minimal_ddp_flat_benchmarking")
    assert "131.25" in said and "Not measured yet" in said


def test_a_failure_is_shown_and_its_reason_is_text(undrawn, tmp_path):
    reason = "RuntimeError: <script>alert(1)</script> | ![x](https://a.b/c.png) `x`\n## naive"
    made = written(perf_folder(tmp_path, {"ddp": [ddp_row("naive") | {"status": reason}]}), tmp_path / "out")
    said = chapter(made, "naive_ddp_benchmarking")
    assert r"\<script\>alert(1)\</script\> \| \!\[x\](https\://a.b/c.png) \`x\` \#\# naive" in said
    assert "naive_ddp_benchmarking" in made.missing


WHOLE = '{"command": "", "device": {}, "software": %s, "rows": [{"status": %s}]}'


@pytest.mark.parametrize(
    "content",
    ["{", "[]", '{"rows": [1]}', '{"rows": 3}', "\xff", WHOLE % ("{}", "[1]"), WHOLE % ('{"cuda": {}}', '"ok"')],
)
def test_a_file_that_cannot_be_read_costs_its_chapter_and_a_warning(content, undrawn, tmp_path):
    folder = perf_folder(tmp_path, ALL)
    (folder / "studies/results/box-x2/ddp.json").write_bytes(content.encode("latin-1"))
    found = source.read(folder, MACHINE)
    assert [one.startswith("studies/results/box-x2/ddp.json is left out: ") for one in found.skipped] == [True]
    if content != "{":
        return  # what is left out is left out for the same chapters, whatever it was
    made = document.write(found, tmp_path / "out")
    assert made.warnings == list(found.skipped)
    assert "naive_ddp_benchmarking" in made.missing
    assert "optimizer_state_sharding_accounting" not in made.missing


@pytest.mark.parametrize("unknown", [{"strategy": "zero"}, {"size": "7B"}])
def test_an_unknown_strategy_or_size_costs_its_document_and_a_warning(unknown, undrawn, tmp_path):
    made = written(perf_folder(tmp_path, ALL | {"ddp": [*DDP, DDP[0] | unknown]}), tmp_path / "out")
    (warning,) = made.warnings
    assert "box-x2/ddp.json" in warning and repr(*unknown.values()) in warning
    assert "naive_ddp_benchmarking" in made.missing
    assert "optimizer_state_sharding_accounting" not in made.missing


def test_rows_that_lack_a_value_cost_their_chapter_and_a_warning(undrawn, tmp_path):
    wrong = [{name: value for name, value in row.items() if name != "facts"} for row in SHARDING]
    made = written(perf_folder(tmp_path, ALL | {"sharding": wrong}), tmp_path / "out")
    (warning,) = made.warnings
    assert warning == "optimizer_state_sharding_accounting cannot be shown: 'facts' is not on file"
    assert "**Cannot be shown:** `python -m perf study" in chapter(made, "optimizer_state_sharding_accounting")
    assert "python -m perf study sharding" in made.missing["optimizer_state_sharding_accounting"][0]
    assert "naive_ddp_benchmarking" not in made.missing


@pytest.mark.parametrize(("study", "empty"), [("ddp", "facts"), ("sharding", "facts"), ("overlap", "communication")])
def test_an_empty_value_of_a_row_costs_no_other_chapter(study, empty, undrawn, tmp_path):
    rows = [row | {empty: type(row[empty])()} for row in ALL[study]]
    made = written(perf_folder(tmp_path, ALL | {study: rows}), tmp_path / "out")
    assert "3.2e-08" in chapter(made, "naive_ddp")


def first_row(rows):
    return rows[:1]


def all_failed(rows):
    return [
        {name: [] if isinstance(value, list) else value for name, value in row.items()} | {"status": "out_of_memory"}
        for row in rows
    ]


def last_row(rows):
    return rows[-1:]


def without_precision(rows):
    return [OnFile({name: value for name, value in row.items() if name != "precision"}) for row in rows]


def of_a_cpu(rows):
    """Steps beside which no GPU was busy."""
    return [row | {"against_busy_s": []} if "against_busy_s" in row else row for row in rows]


@pytest.mark.parametrize("part", [first_row, last_row, all_failed, without_precision, of_a_cpu])
def test_a_report_is_made_of_parts_of_every_study(part, committed_source, undrawn, tmp_path):
    parts = [replace(one, document=one.document | {"rows": part(one.rows)}) for one in committed_source.studies]
    document.write(replace(committed_source, studies=tuple(parts)), tmp_path / "out")


@pytest.mark.parametrize("fault", [KeyError, StopIteration])
def test_a_fault_of_ours_is_no_missing_measurement(fault, studies_source, undrawn, tmp_path, monkeypatch):
    def broken(*_):
        raise fault("planted")

    kinds, said = (
        (fault, RuntimeError, click.ClickException),
        "planted|StopIteration",
    )  # as generators and Jinja hand it on
    for place, name in ((answered.TABLES, "end-to-end"), (PARTS, "naive_ddp")):
        with monkeypatch.context() as patch:
            patch.setitem(place, name, broken if place is answered.TABLES else (broken,))
            with pytest.raises(kinds, match=said):
                document.write(studies_source, tmp_path / name)
    monkeypatch.setattr(claims.Claims, "tiled", broken)
    with pytest.raises(kinds, match=said):
        document.write(studies_source, tmp_path / "claims")


@pytest.fixture
def other_gpu(copied):
    """The same rows of a machine with another GPU."""
    for path in (copied / STUDIES).glob("*.json"):
        path.write_text(path.read_text().replace("NVIDIA H200", "NVIDIA Z9"))
    (copied / STUDIES).rename(copied / "studies" / "results" / "other")
    return copied


def test_another_gpu_has_the_tables_of_its_rows_and_no_sentence_about_ours(other_gpu, tmp_path):
    made = written(other_gpu, tmp_path / "out", "other")
    said = chapter(made, "benchmarking_script")
    assert "| small | 17.42 ± 0.05 |" in said and "**(b)**" not in said
    assert "How it was measured" not in made.text
    assert "benchmarking_script" not in made.missing
    assert (tmp_path / "out" / "figures" / "end-to-end.png").is_file()


def test_a_table_that_its_rows_do_not_give_costs_no_other(other_gpu, tmp_path):
    (other_gpu / "studies" / "results" / "other" / "kernels.json").unlink()
    made = written(other_gpu, tmp_path / "out", "other")
    assert "| 16384 | 11.480" in chapter(made, "torch_compile")
    assert "matmuls of the eager step" not in made.text
    assert "python -m perf study kernels" in " ".join(made.missing["torch_compile"])


def test_by_default_the_machine_with_the_most_documents(copied):
    """The first by name has one, those of several GPUs count with their machine, and an empty folder has none."""
    studies = copied / STUDIES
    for other in ("a-gpu", "a-gpu-x2", "b-gpu"):
        (studies.parent / other).mkdir()
    shutil.copy(studies / "clock.json", studies.parent / "a-gpu")
    assert source.read(copied, None).machine == "nvidia-h200"
    for measured in studies.parent.glob("nvidia-h200*"):
        shutil.copytree(measured, studies.parent / "a-gpu-x2" / measured.name)
    assert source.read(copied, None).machine == "a-gpu"
