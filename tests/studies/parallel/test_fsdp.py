"""The study of fully sharded steps, at gloo's size."""

import json

import pytest
import torch
from click.testing import CliRunner

from perf.__main__ import main
from perf.studies.parallel import fsdp


def test_arms_are_cases_of_the_suite(monkeypatch, tmp_path):
    asked = []
    monkeypatch.setattr(fsdp, "compare_pairs", lambda pairs, steps, effort, path: asked.append((pairs, path)))
    arguments = ["study", "fsdp", "--prefetch", "1", "--precision", "bf16", "--out", str(tmp_path)]
    done = CliRunner().invoke(main, arguments)
    assert done.exit_code == 0, done.output
    ((pairs, path),) = asked
    own = {"compute_dtype": "bfloat16", "mode": "step"}
    ours, *torchs = [("fully_sharded", {"sharding": name} | own) for name in ("prefetch_1", "torch", "torch_default")]
    assert pairs == {("prefetch_1/bfloat16", arm[1]["sharding"]): (ours, arm) for arm in torchs}
    assert path == tmp_path / "fsdp"


@pytest.mark.slow
@pytest.mark.skipif(torch.cuda.is_available(), reason="its defaults are a GPU's here")
def test_ours_and_torchs_on_real_ranks(tmp_path):
    tiny = ["--size", "tiny", "--context", "16", "--batch", "2", "--rounds", "2", "--processes", "2"]
    done = CliRunner().invoke(main, ["study", "fsdp", *tiny, "--prefetch", "2", "--out", str(tmp_path)])
    assert done.exit_code == 0, done.output
    (row,) = json.loads((tmp_path / "fsdp.json").read_text())["rows"]
    assert (row["status"], row["ours"], row["against"]) == ("ok", "prefetch_2/float32", "torch")
    assert [len(samples) for samples in row["against_s"]] == [2, 2]
    assert (tmp_path / "fsdp.png").stat().st_size > 0
