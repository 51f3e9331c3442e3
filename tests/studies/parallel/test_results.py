"""What README.md says of steps on two GPUs, held to the committed rows."""

import itertools
import json
import re
from pathlib import Path

from perf.studies.ratios import best, ratio_of

ROOT = Path(__file__).parents[3]
WORDS = " ".join((ROOT / "README.md").read_text().split())


def rows():
    found = (ROOT / "perf" / "studies" / "results").glob("nvidia-h200-x2/*/parallel-step.json")
    return [row for path in found for row in json.loads(path.read_text())["rows"]]


def ratios_of(ours):
    """Over the best of the others, of every model and context."""
    mine = sorted((row for row in rows() if row["ours"] == ours), key=lambda row: row["context_length"])
    return [best(list(group), ratio_of)[0] for _, group in itertools.groupby(mine, lambda row: row["context_length"])]


def test_the_sentence_about_two_gpus_says_what_the_rows_say():
    sentence = re.search(
        r"a step of xl in bf16 takes (\S+) of the time of torch's DistributedDataParallel with `BucketedDDP`, both in "
        r"buckets of (\d+) MiB, and with `ShardedOptimizer` (\S+) of ZeroRedundancyOptimizer's, (\S+) with gradients "
        r"reduced .*?: (\d+) and (\d+) tokens a rank, steps in turn, three and more processes",
        WORDS,
    )
    assert sentence, "README.md names the rows"
    bucketed, mebibytes, sharded, reducing, *tokens = sentence.groups()
    for ours, said in (
        (f"ddp/bucketed/{mebibytes}", bucketed),
        ("sharding/sharded", sharded),
        ("sharding/sharded_reducing", reducing),
    ):
        assert {f"{ratio:.2f}" for ratio in ratios_of(ours)} == {said}, ours
    measured = [row for row in rows() if row["ours"] in ("sharding/sharded", f"ddp/bucketed/{mebibytes}")]
    assert {row["batch"] * row["context_length"] for row in measured} == set(map(int, tokens))
    assert all((row["size"], row["precision"], row["world_size"]) == ("xl", "bf16", 2) for row in measured)
    assert all(len(row["ours_s"]) >= 3 for row in measured)
