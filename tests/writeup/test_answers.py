"""The functions behind the answers give the numbers of their rows."""

import copy
import re
from pathlib import Path

import pytest

from cs336_systems.accounting.kept import block_kept_bytes, model_kept_bytes
from cs336_systems.configs import MODEL_CONFIGS
from perf.labels import label
from perf.studies.attention.groups import document_of
from perf.studies.on_file import NotOnFile, loaded
from perf.studies.speedups import factor, speedup_of
from perf.writeup.answered import TABLES, measured_with
from perf.writeup.answers.attention import FRONT, FRONT_COLUMNS, TUNED, Beside, front
from perf.writeup.answers.memory import Memory, block_parts
from perf.writeup.answers.rows import by
from perf.writeup.answers.steps import Steps, WarmUp
from perf.writeup.answers.train_step import TrainStep
from perf.writeup.markdown import table
from perf.writeup.source import read
from tests.writeup.made_up import MACHINE, perf_folder

FOLDER = Path(__file__).parents[2] / "perf" / "studies" / "results" / "nvidia-h200"


@pytest.fixture(scope="module")
def documents():
    return {"memory": loaded(FOLDER / "memory.json")} | of_attention(FOLDER)


def of_attention(folder):
    return {document_of(group): loaded(folder / f"{document_of(group)}.json") for group in TUNED}


def row(**values):
    samples = {"forward_s": [0.25, 0.75], "backward_s": [1.0, 1.0], "optimizer_s": [0.5, 0.5]}
    return {"status": "ok", "size": "small", "context": 512, "precision": "fp32"} | samples | values


def test_steps_are_means_and_ratios_of_their_samples():
    half = {name: [seconds / 2 for seconds in row()[name]] for name in ("forward_s", "backward_s", "optimizer_s")}
    near = {"peak_bytes": 104, "predicted_bytes": 100}
    far = {"peak_bytes": 10**12, "predicted_bytes": 10**11}
    steps = Steps({"end-to-end": {"rows": [row(**near), row(precision="bf16", **half, **far)]}})
    assert steps.mean_s("forward", "small") == 0.5
    assert steps.samples_s("step", "small") == [1.75, 2.25]
    assert steps.gain("step", "small") == 2.0 and steps.gains() == [2.0]
    assert [peak["precision"] for peak in steps.peaks_within(0.05)] == ["fp32"]
    assert steps.underestimate(steps.peaks_beyond(0.05)) == 9 * 10**11
    assert steps.mostly_activations(steps.peaks_beyond(0.05)) == 1


def test_warm_up_is_the_first_step_beside_the_settled_ones():
    times = {name: [4.0, *[1.0] * 15] for name in ("forward_s", "backward_s", "optimizer_s")}
    warm_up = WarmUp({"warm-up": {"rows": [row(**times)]}})
    assert warm_up.first_over_settled("small") == 4.0
    assert warm_up.excess_s() == [3.0]
    assert (warm_up.mean_s("small", 0), warm_up.mean_s("small", 1)) == (1.3, 1.0)
    assert warm_up.error_after(1) == 0.0 and warm_up.deviation_s("small", 1) == 0.0


def compared(size, context):
    one = {"status": "ok", "size": size, "context": context, "against": "peers:step"}
    return one | {"ours_s": [[0.1, 0.1]], "against_s": [[0.2, 0.2]], "against_busy_s": []}


def test_every_run_of_the_training_step_is_in_its_table_once(tmp_path):
    folder = perf_folder(tmp_path, {"train-step": [compared("2.7B", 512), compared("small", 1024)]}, MACHINE)
    perf_folder(tmp_path, {"train-step": [compared("small", 512)]}, f"{MACHINE}/512")
    documents = read(folder, MACHINE).documents()
    assert list(TrainStep(documents).cells) == [("small", 512), ("2.7B", 512), ("small", 1024)]
    assert TrainStep(documents).peers() == ["peers:step"]
    with pytest.raises(NotOnFile, match="two rows"):
        _ = TrainStep(documents | {"again/train-step": documents["train-step"]}).cells


def test_a_short_table_without_its_rows_names_what_to_measure():
    with pytest.raises(NotOnFile, match="study attention with"):
        front("en", {document_of("leaderboard"): {"rows": []}}, {})


def test_two_rows_of_one_setting_are_refused():
    with pytest.raises(NotOnFile, match="two rows"):
        by([{"status": "ok", "size": "small"}] * 2, "size")


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_the_parts_of_a_block_are_all_that_it_keeps(precision, documents):
    config = MODEL_CONFIGS["2.7B"]
    assert sum(block_parts(precision).values()) == block_kept_bytes(config, 4, 512, precision=precision)
    added = Memory(documents).added(precision)
    assert added - model_kept_bytes(config, 4, 512, precision=precision) == 4


def select(documents, **axes):
    return Beside(documents).select(is_causal=True, **axes)


def lines(documents, language="en"):
    elsewhere = of_attention(FOLDER.with_name("nvidia-h100-80gb-hbm3"))
    text = table(front(language, documents, elsewhere))
    return [[cell.strip() for cell in line.split("|")[1:-1]] for line in text.splitlines()]


def test_a_line_of_the_front_page_has_each_of_the_others_that_was_measured(documents):
    head, _, *body = lines(documents)
    assert head[4:] == [label(name) for name in FRONT_COLUMNS]
    assert len(body) == len(FRONT)
    for line, wanted in zip(body, FRONT, strict=True):
        mine = {pair["against"]: factor(speedup_of(pair)[0]) for pair in select(documents, **wanted)}
        assert line[4:] == [mine.get(name, "-") for name in FRONT_COLUMNS]
        assert line[2].strip("*").split()[0] == min(mine.values(), key=lambda speedup: float(speedup[:-1]))


@pytest.mark.parametrize(
    ("scale", "ours", "others"),
    [
        (lambda number: 1.0, True, False),
        (lambda number: 2.0, False, True),
        (lambda number: (1.0, 1.2, 1.4)[number % 3], False, False),
        (lambda number: (0.8, 1.0, 1.2)[number % 3], False, False),
    ],
    ids=["faster", "slower", "perhaps slower", "perhaps faster"],
)
def test_bold_is_whoever_is_faster_beyond_the_interval(scale, ours, others, documents):
    board = document_of("leaderboard")
    changed = documents | {board: copy.deepcopy(documents[board])}
    for measured in changed[board]["rows"]:
        if measured["role"] == "ours":
            measured["samples_s"] = [
                [sample * scale(number) for sample in samples] for number, samples in enumerate(measured["samples_s"])
            ]
    line = lines(changed)[2]
    assert [cell.startswith("**") and cell.endswith("**") for cell in line] == [False, ours, others] + [False] * 5


def test_what_is_under_1_is_told_apart_from_what_may_be_slower(documents):
    changed = {document_of("grid"): copy.deepcopy(documents[document_of("grid")])}
    for measured in changed[document_of("grid")]["rows"]:
        if measured["role"] == "ours":
            measured["samples_s"] = [[1.07 * sample for sample in samples] for samples in measured["samples_s"]]
    beside = Beside(changed)
    grid = {"group": "grid", "against": "sdpa_cudnn"}
    values = [speedup_of(pair) for pair in beside.select(**grid)]
    below, unsure = sum(value < 1 for value, _ in values), sum(value / (1 + half) <= 1 for value, half in values)
    assert (beside.below_1(**grid), len(beside.slower(**grid))) == (below, unsure)
    assert 0 < below < unsure < len(values)


def test_the_gpus_and_commits_are_those_of_the_documents():
    made = {"grid": ("GPU-1", "0123abcd"), "long": ("GPU-2", "0123abcd"), "short": ("GPU-2", "89abcdef")}
    made |= {"random": ("GPU-3", "9abcdef0")}
    beside = Beside({document_of(group): {"device": {"uuid": gpu}, "commit": at} for group, (gpu, at) in made.items()})
    assert beside.gpus() == 2 and beside.commits() == ["0123abcd", "89abcdef"], "of the groups of README.md"


def test_both_front_pages_have_the_same_cells(documents):
    english, chinese = (re.findall(r"\*\*|\d[\d.]*", str(lines(documents, language)[2:])) for language in ("en", "zh"))
    assert english == chinese


HOSTILE = "<script> | `x` ![x](https://a.example/x.png)\n# y"


def test_text_of_rows_cannot_become_markup():
    rows = [{"part": "dtypes", "on": "cuda", "autocast": HOSTILE}]
    names = ("parameters", "fc1", "layer norm", "logits", "cross entropy", "gradients", "mean()")
    made = table(TABLES["dtypes"]({"precision": {"rows": [rows[0] | dict.fromkeys(names, HOSTILE)]}}))
    assert len(made.splitlines()) == 3
    assert not re.search(r"(?<!\\)[<>`!#]|(?<! )\|(?! )", made.splitlines()[2][1:-1].replace("\\|", ""))


@pytest.mark.parametrize(
    ("document", "shown"),
    [
        ({"command": "python x"}, "`python x`"),
        ({"command": "python x` and <b>"}, "`python x and <b>`"),
        ({"command": "x", "commit": None}, "`x`"),
        ({"command": "x", "commit": "1a2b3c4d"}, "`x` at commit `1a2b3c4d`"),
        ({"command": "x", "commit": "1a2b3c4d with <b>"}, "`x` at commit `1a2b3c4d` with \\<b\\>"),
    ],
)
def test_command_and_commit_are_code_and_what_is_said_of_them_is_not(document, shown):
    assert measured_with("a", document) == f"Measured with {shown}; rows in [a.json](a.json)."


@pytest.mark.parametrize("name", ["memory-block", "memory-block-2026"])
def test_closed_forms_of_a_model_stand_beside_no_other_model(name, documents):
    rows = [row | {"size": "tiny"} for row in documents["memory"]["rows"]]
    assert TABLES[name](documents)
    with pytest.raises(NotOnFile, match=r"memory of 2\.7B"):
        TABLES[name]({"memory": documents["memory"] | {"rows": rows}})
