"""Attention beside every other in PyTorch: the short table of README.md, and the sentences around all its tables."""

import copy
import json
import re
from pathlib import Path

import pytest

from perf.studies.answers import page
from perf.studies.answers.attention import ASKED, FRONT, FRONT_TABLES, NAMES, TOGETHER, front
from perf.studies.attention.results import grouped, timed
from perf.studies.speedups import best, figure, geometric_mean, known, milliseconds, speedup_of

RESULTS = Path(__file__).parents[3] / "perf" / "results"
FOUND = page.documents(page.FOLDER)
PAIRS = timed(FOUND["attention"]["rows"])
WORDS, ENGLISH, CHINESE = (
    " ".join(path.read_text(encoding="utf-8").split()) for path in (page.FOLDER / "README.md", *page.FRONT)
)


def select(**wanted):
    return [pair for pair in PAIRS if all(pair[axis] == value for axis, value in wanted.items())]


def speedups(**wanted):
    return [speedup_of(pair)[0] for pair in select(**wanted)]


def to_the_best(**wanted):
    """Of each cell."""
    return [best(cell, speedup_of) for _, cell in grouped(select(**wanted), "seq_len", "d", "mode", "ours")]


def span(values, digits):
    return f"{min(values):.{digits}f} to {max(values):.{digits}f}\u00d7"


def of_the_grid():
    """The speed-up over cuDNN over the grid, forward and backward together, and by d."""
    return known(*geometric_mean(select(group="grid", against="sdpa_cudnn", mode=TOGETHER))), *(
        span(speedups(group="grid", against="sdpa_cudnn", mode=TOGETHER, d=d), 3) for d in (64, 128)
    )


def beside_sdpa():
    """Of one short head."""
    return span(speedups(group="short", against="sdpa"), 2)


def claims_of_the_grid():
    whole, small, large = of_the_grid()
    cells = len(select(group="grid", against="sdpa_cudnn", mode=TOGETHER))
    yield f"Over its {cells} cells (causal and full, seq_len 1024 to 16384, d 64 and 128), forward and backward"
    yield f"ours is {whole} as fast as cuDNN in the geometric mean"
    asked = ("flex", "sdpa_flash")
    means = [known(*geometric_mean(select(group="grid", against=name, mode=TOGETHER))) for name in asked]
    yield f"{means[0]} as fast as FlexAttention and {means[1]} as fast as SDPA flash"
    worst = [min(select(group="grid", against=name), key=lambda pair: speedup_of(pair)[0]) for name in asked]
    known_over = [speedup_of(pair) for name in asked for pair in select(group="grid", against=name)]
    assert all(speedup / (1 + half) > 1 for speedup, half in known_over)
    where = [(pair["mode"], pair["seq_len"], pair["d"]) for pair in worst]
    assert where == [("forward", 1024, 64), ("forward", 2048, 64)]
    flex, flash = (figure(speedup_of(pair)[0]) for pair in worst)
    yield "is slower than the last two in no cell and no mode"
    yield f"smallest speed-ups are {flex} and {flash}, in forwards of 1024 and 2048 with d = 64"
    yield f"backward together reach {small} with d = 64 and {large} with 128"
    alone = {mode: select(group="grid", against="sdpa_cudnn", d=128, mode=mode) for mode in ("forward", "backward")}
    yield f"our backward alone is at {span([speedup_of(pair)[0] for pair in alone['backward']], 3)}"
    slowest, *_, fastest = sorted(alone["forward"], key=lambda pair: speedup_of(pair)[0])
    assert (fastest["seq_len"], slowest["seq_len"], slowest["is_causal"]) == (16384, 1024, True)
    least, most = (figure(speedup_of(pair)[0]) for pair in (slowest, fastest))
    yield f"our forward at {least} (1024, causal) up to {most} (16384)"


def claims_of_the_leaderboard():
    *speedup, name = best(select(group="leaderboard"), speedup_of)
    assert name == "sdpa_cudnn"
    ms = milliseconds(select(group="leaderboard")[0], "ours")
    yield f"with the sum that it differentiates: {ms:.3f} ms, {known(*speedup)} as fast as cuDNN"


def claims_of_the_long_head():
    forward, backward = ([one for one, *_ in to_the_best(group="long", mode=mode)] for mode in ("forward", "backward"))
    yield f"speed-up over the fastest other is {span(forward, 3)} forward and {span(backward, 3)} backward"
    speedup, half, name = to_the_best(group="long", mode="backward", d=128)[0]
    assert abs(speedup - 1) < half and (speedup, name) == (min(backward), "sdpa_cudnn")
    yield f"{known(speedup, half)} is that over cuDNN with d = 128"


def claims_of_the_short_head():
    cells = to_the_best(group="short")
    assert {name for *_, name in cells} == {"sdpa"}
    mean = known(*geometric_mean(select(group="short", against="sdpa")))
    yield f"ours is {beside_sdpa()} as fast, {mean} in the geometric mean of {len(cells)} cells"
    yield f"faster by more than the interval in {sum(speedup / (1 + half) > 1 for speedup, half, _ in cells)} of them"
    yield f"It is {span(speedups(group='short', against='sdpa_flash'), 2)} as fast as SDPA's flash by name"
    times = span([milliseconds(pair, "ours") for pair in select(group="short")], 2)[:-1]
    yield f"ours is {times} ms whatever the length"


def claims_of_float32():
    assert {name for *_, name in to_the_best(group="float32")} == {"sdpa_efficient"}
    ieee, tf32 = (
        [speedups(group="float32", against="sdpa_efficient", ours=ours, d=d)[0] for d in (64, 128)]
        for ours in ("triton", "triton_tf32")
    )
    yield f"is {figure(ieee[0])} (d = 64) and {figure(ieee[1])} (128) as fast as SDPA efficient"
    yield f"two bfloat16 pieces of each operand for three) {figure(tf32[0])} and {figure(tf32[1])}"
    errors = {
        (row["impl"], row["d"]): row.get("error") for row in FOUND["attention"]["rows"] if row["group"] == "float32"
    }

    def of(impl):
        return " and ".join(f"{errors[impl, d]:.1e}".replace("e-0", "e-") for d in (64, 128))

    yield f"{of('triton')}, with TF32 {of('triton_tf32')}, SDPA efficient's {of('sdpa_efficient')}"


CLAIMS = (
    claims_of_the_grid,
    claims_of_the_leaderboard,
    claims_of_the_long_head,
    claims_of_the_short_head,
    claims_of_float32,
)


@pytest.mark.parametrize("claims", CLAIMS, ids=lambda claims: claims.__name__)
def test_the_numbers_in_sentences_are_those_of_the_rows(claims):
    assert not [claim for claim in claims() if claim not in WORDS]


def test_the_sentences_of_both_front_pages_say_what_the_rows_say():
    mean = known(*geometric_mean(select(group="short", against="sdpa")))
    for claim in (*of_the_grid(), beside_sdpa(), mean):
        assert claim in ENGLISH
        assert claim.replace("to", "到") in CHINESE


def test_the_sentence_about_first_calls_says_what_asv_measured():
    name, machine = "attention.FirstCallShapes", RESULTS / "nvidia-h200"
    files = [json.loads(path.read_text())["results"] for path in machine.glob("*-*.json")]
    series = (one[f"{name}.track_time"] for one in files if f"{name}.track_time" in one)
    newest = max(series, key=lambda one: one[3])  # when it began
    waits = [seconds for seconds in newest[0] if seconds]
    assert f"yet take {span(waits, 1)[:-1]} s, by head dimension, dtype and heads (`{name}`)" in ENGLISH
    assert f"需要 {min(waits):.1f} 到 {max(waits):.1f} s" in CHINESE and f"`{name}`" in CHINESE


def test_what_is_said_of_the_measuring_is_so():
    processes = {len(pair[f"{arm}_s"]) for pair in PAIRS for arm in ("ours", "against")}
    assert (min(processes), max(processes)) == (3, 60)
    assert "averaged over 3 to 60 processes" in WORDS and "3 to 60 processes" in ENGLISH
    assert {(pair["clock"], pair["cache"]) for pair in PAIRS if pair["group"] != "short"} == {("cuda_events", "cold")}
    assert {(pair["clock"], pair["cache"]) for pair in select(group="short")} == {("gpu_wall", "warm")}
    assert all(pair["is_causal"] for pair in PAIRS if pair["group"] != "grid")
    document = FOUND["attention"]
    (device,) = page.headings({"attention": document})
    name, driver, *versions = device.split(", ")
    assert document["software"]["cudnn"] == "91900"
    assert f"<sub>{name} ({driver}), {', '.join(versions)}, cuDNN 9.19" in ENGLISH


def lines(found):
    return [[cell.strip() for cell in line.split("|")[1:-1]] for line in front("en", found).splitlines()]


def changed(wanted, factor, arms=("ours",)):
    """The document with other times of ours, or of others, in one cell."""
    found = copy.deepcopy(FOUND)
    for row in found["attention"]["rows"]:
        if row["role"] in arms and row["is_causal"] and all(row[axis] == value for axis, value in wanted.items()):
            row["samples_s"] = [
                [sample * factor(number) for sample in samples] for number, samples in enumerate(row["samples_s"])
            ]
    return found


def test_a_line_of_the_front_page_has_a_cell_of_each_other_that_was_measured():
    head, _, *found = lines(FOUND)
    assert head[3:] == [NAMES[name] for name in ASKED]
    assert len(found) == len(FRONT)
    for line, wanted in zip(found, FRONT, strict=True):
        mine = {pair["against"]: figure(speedup_of(pair)[0]) for pair in select(**wanted, is_causal=True)}
        assert line[3:] == [mine.get(name, "-") for name in ASKED]
        assert line[2].strip("*").split()[0] == min(mine.values(), key=lambda one: float(one[:-1]))


@pytest.mark.parametrize(
    ("factor", "ours", "others"),
    [
        (lambda number: 1.0, True, False),
        (lambda number: 2.0, False, True),
        (lambda number: (1.0, 1.2, 1.4)[number % 3], False, False),
    ],
    ids=["faster", "slower", "nobody knows"],
)
def test_bold_is_who_is_faster_without_a_doubt(factor, ours, others):
    line = lines(changed({"group": "leaderboard"}, factor))[2]
    assert [cell.startswith("**") and cell.endswith("**") for cell in line] == [False, ours, others] + [False] * 4


def test_both_front_pages_have_the_same_cells():
    english, chinese = (
        [re.findall(r"\*\*|\d[\d.]*", line) for line in table(FOUND).splitlines()] for table in FRONT_TABLES.values()
    )
    assert english == chinese
