"""The study of fully sharded steps, at gloo's size."""

import pytest
import torch

from perf.studies.parallel import fsdp
from tests.studies.running import invoke, run_study

WHERE = ["--world-size", "2", "--prefetch", "1", "--precision", "bf16"]


def pairs_of(monkeypatch, *arguments):
    asked = []
    monkeypatch.setattr(fsdp, "compare_pairs", lambda pairs, *_: asked.append(pairs))
    done = invoke("fsdp", *WHERE, *arguments)
    assert done.exit_code == 0, done.output
    return asked[0]


def way(sharding, mode):
    return "fully_sharded", {"sharding": sharding, "compute_dtype": "bfloat16", "mode": mode}


def test_arms_are_cases_of_the_suite(monkeypatch):
    ours, *torchs = [way(name, "step") for name in ("prefetch_1", "torch", "torch_default")]
    expected = {("prefetch_1/bfloat16", arm[1]["sharding"]): (ours, arm) for arm in torchs}
    assert pairs_of(monkeypatch) == expected


def test_beside_an_unsharded_model_is_the_cost_of_sharding_for_ours_and_torchs(monkeypatch):
    assert pairs_of(monkeypatch, "--against", "alone") == {
        (f"{name}/bfloat16", "alone"): (way(name, "gradients"), way(name, "alone")) for name in ("prefetch_1", "torch")
    }
    row = {"size": "tiny", "context_length": 16, "world_size": 2, "ours": "torch", "against": "alone", "status": "ok"}
    row |= {"ours_s": [[1.03]] * 3, "against_s": [[1.0]] * 3, "ours_busy": []}
    (answer,) = fsdp.answers([row])
    assert "adds 3.0 % ± 0.0 % to the forward and backward" in answer


@pytest.mark.slow
@pytest.mark.skipif(torch.cuda.is_available(), reason="its defaults are a GPU's here")
def test_ours_and_torchs_on_real_ranks(tmp_path):
    tiny = ["--size", "tiny", "--context", "16", "--batch", "2", "--rounds", "2", "--processes", "2"]
    (row,), _ = run_study(tmp_path, "fsdp", *tiny, "--prefetch", "2")
    assert (row["status"], row["ours"], row["against"]) == ("ok", "prefetch_2/float32", "torch")
    assert [len(samples) for samples in row["against_s"]] == [2, 2]
    assert (tmp_path / "fsdp.png").stat().st_size > 0
    rows, _ = run_study(tmp_path, "fsdp", *tiny, "--prefetch", "2", "--against", "alone")
    assert [(row["ours"], row["against"], row["status"]) for row in rows] == [
        (f"{name}/float32", "alone", "ok") for name in ("prefetch_2", "torch")
    ]
