"""What README.md says of steps on two GPUs, held to the committed rows."""

import itertools
import json
import re
from pathlib import Path

from perf.studies.parallel.step import ALONE
from perf.studies.ratios import best, ratio_of

ROOT = Path(__file__).parents[3]
WORDS, CHINESE = (" ".join((ROOT / name).read_text(encoding="utf-8").split()) for name in ("README.md", "README.zh.md"))


def rows(*, alone=False):
    """Those beside an arm's own step without communication, or all others."""
    found = (ROOT / "perf" / "studies" / "results").glob("nvidia-h200-x2/*/parallel-step.json")
    every = (row for path in found for row in json.loads(path.read_text())["rows"])
    return [row for row in every if (row["against"] == ALONE) == alone]


def ratios_of(ours):
    """Over the best of the others with its half-width, of every context."""
    mine = sorted((row for row in rows() if row["ours"] == ours), key=lambda row: row["context_length"])
    groups = itertools.groupby(mine, lambda row: row["context_length"])
    return {context: best(list(group), ratio_of)[:2] for context, group in groups}


def test_the_sentences_about_two_gpus_say_what_the_rows_say():
    said = re.search(
        r"a step of xl in bf16 takes (\S+) of the time of torch's DistributedDataParallel, the faster of two settings "
        r"with its buckets at (\d+) MiB: with `BucketedDDP` of (\d+) MiB at context (.*?), and with `OverlappedDDP` "
        r"\((.*?)\)\. With `ShardedOptimizer` it takes (\S+) of ZeroRedundancyOptimizer's, (\S+) with gradients "
        r"reduced .*?: (\d+) and (\d+) tokens a rank, steps in turn, three and more processes",
        WORDS,
    )
    assert said, "README.md names the rows"
    ddp_ratio, torchs, mebibytes, contexts, overlapped, sharded, reducing, *tokens = said.groups()
    ddp = f"ddp/bucketed/{mebibytes}"
    ratios = {ddp: ddp_ratio, "ddp/overlapped": ddp_ratio, "sharding/sharded": sharded}
    for ours, ratio in (ratios | {"sharding/sharded_reducing": reducing}).items():
        assert {f"{found:.2f}" for found, _ in ratios_of(ours).values()} == {ratio}, ours
    halves = (f"{context} (± {100 * half:.1f} %)" for context, (_, half) in ratios_of(ddp).items())
    assert " and at ".join(halves) == contexts
    assert ", ".join(f"± {100 * half:.1f} %" for _, half in ratios_of("ddp/overlapped").values()) == overlapped
    beside = {row["against"] for row in rows() if row["ours"].startswith("ddp")}
    assert beside == {f"ddp/torch/{torchs}", f"ddp/torch_static/{torchs}"}
    (chinese,) = re.findall(r"xl 以 bf16 训练.*?至少三个进程", CHINESE)
    assert set(re.findall(r"\d[\d.]*\d", said[0])) <= set(re.findall(r"\d[\d.]*\d", chinese))
    measured = [row for row in rows() if row["ours"] in ("sharding/sharded", ddp)]
    assert {row["batch"] * row["context_length"] for row in measured} == set(map(int, tokens))
    assert all((row["size"], row["precision"], row["world_size"]) == ("xl", "bf16", 2) for row in measured)
    assert all(len(row["ours_s"]) >= 3 for row in measured)


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
    ((ratio, half),) = (
        ratio_of(row) for row in rows(alone=True) if (row["context_length"], row["ours"]) == (context, ours)
    )
    return ratio - 1, half
