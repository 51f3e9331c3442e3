"""What README.md says of steps on two GPUs, held to the committed rows."""

import itertools
import json
import re
from pathlib import Path

from perf.studies.parallel.step import ALONE
from perf.studies.ratios import best, known, speedup_of

ROOT = Path(__file__).parents[3]
WORDS, CHINESE = (" ".join((ROOT / name).read_text(encoding="utf-8").split()) for name in ("README.md", "README.zh.md"))


def rows(*, alone=False):
    """Those beside an arm's own step without communication, or all others."""
    found = (ROOT / "perf" / "studies" / "results").glob("nvidia-h200-x2/*/parallel-step.json")
    every = (row for path in found for row in json.loads(path.read_text())["rows"])
    return [row for row in every if (row["against"] == ALONE) == alone]


def test_the_speed_ups_on_two_gpus_are_those_of_the_rows():
    mine = sorted(rows(), key=lambda row: (row["ours"], row["context_length"]))
    for _, group in itertools.groupby(mine, key=lambda row: (row["ours"], row["context_length"])):
        speedup, half, _ = best(list(group), speedup_of)
        assert known(speedup, half) in WORDS and known(speedup, half) in CHINESE
    cells = {(row["ours"], row["context_length"], row["batch"] * row["context_length"]) for row in mine}
    assert cells == {
        *itertools.product(("ddp/bucketed/1000", "ddp/overlapped"), (512, 1024), (16384,)),
        *itertools.product(("sharding/sharded", "sharding/sharded_reducing"), (1024,), (8192,)),
    }
    beside = {row["against"] for row in mine if row["ours"].startswith("ddp")}
    assert beside == {"ddp/torch/1000", "ddp/torch_static/1000"}
    assert all((row["size"], row["precision"], row["world_size"]) == ("xl", "bf16", 2) for row in mine)
    assert all(len(row["ours_s"]) >= 3 for row in mine)


def test_the_sentence_about_exposed_communication_says_what_the_rows_say():
    said = re.search(r"without it, communication adds (.*?) \(± (\S+) to (\S+) points: `--against alone`\)", WORDS)
    chinese = re.search(r"通信使 (.*?).± (\S+) 到 (\S+) 个百分点", CHINESE)
    assert said and chinese, "README.md and README.zh.md name the rows"
    arms = (["ddp/overlapped"], ["ddp/bucketed/1000"], ["ddp/torch/1000", "ddp/torch_static/1000"])
    least = [min(added(context, ours) for ours in some) for some in arms for context in (512, 1024)]
    percent = [f"{100 * ratio:.1f}" for ratio, _ in least]
    halves = sorted(100 * half for _, half in least)
    for words in (said, chinese):
        assert re.findall(r"(\S+) %", words[1]) == percent
        assert [words[2], words[3]] == [f"{halves[0]:.1f}", f"{halves[-1]:.1f}"]
    assert max(map(float, percent[:4])) < min(map(float, percent[4:]))


def added(context, ours):
    """By communication, to a step of 1; and its half-width."""
    ((speedup, half),) = (
        speedup_of(row) for row in rows(alone=True) if (row["context_length"], row["ours"]) == (context, ours)
    )
    return 1 / speedup - 1, half
