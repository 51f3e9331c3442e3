"""The leaderboard's study: its toy runs on a laptop, a slice is extrapolated by the closed forms and says so."""

import pytest
import torch

from perf.studies import leaderboard_2026
from perf.studies.leaderboard_2026 import WHOLE, answers, params_of, peak_bytes, prediction
from tests.studies.running import run_study

GIB = 2**30


@pytest.mark.slow
@pytest.mark.skipif(torch.cuda.is_available(), reason="its defaults are a GPU's here")
def test_the_toy_runs_on_two_ranks_after_its_prediction(tmp_path):
    (row,), said = run_study(tmp_path, "leaderboard-2026")
    assert (row["status"], row["world_size"], row["num_layers"]) == ("ok", 2, 4)
    assert said.index("backward: first group") < said.index("Least time") < said.index("Step: ")


def test_one_gpu_takes_as_many_layers_as_fit(monkeypatch):
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    monkeypatch.setattr(leaderboard_2026, "_options", lambda params, _: options_of(params))
    found = {}
    for gib in (1, 80, 120, 400):
        monkeypatch.setattr(leaderboard_2026, "memory_bytes", lambda gib=gib: gib * GIB)
        params = params_of("cuda", None, None, None, None)
        found[gib] = params["num_layers"]
        assert params["world_size"] == 1
        assert gib == 1 or peak_bytes(params, "cuda") < gib * GIB
    assert found[1] == 1 < found[80] < found[120] < found[400] == 34


def options_of(params):
    options = {name: params[name] for name in ("checkpoint_every", "prefetch")}
    return options | {"num_ranks": params["world_size"], "chunk_size": 4096}


def test_a_slice_is_extrapolated_and_says_so(monkeypatch):
    monkeypatch.setattr(leaderboard_2026, "_options", lambda params, _: options_of(params))
    part = WHOLE | {"num_layers": 8, "world_size": 1, "checkpoint_every": 1}
    predicted = prediction(part, (600e12, 3e12), "cuda")
    measured = {
        "device": "cuda",
        "status": "ok",
        "samples_s": [1.5 * predicted["predicted_s"]],
        "peak_bytes": predicted["predicted_bytes"],
    }
    text = " ".join(answers([part | predicted | measured]))
    assert "1.50 times" in text
    assert "34 layers and 2 ranks" in text and "not measured" in text
    assert f"{predicted['whole_predicted_bytes'] / GIB:.1f} GiB a GPU" in text
    whole = WHOLE | {"checkpoint_every": 1} | prediction(WHOLE | {"checkpoint_every": 1}, (600e12, 3e12), "cuda")
    assert whole["predicted_bytes"] == whole["whole_predicted_bytes"]
    assert "not measured" not in " ".join(answers([whole | measured]))
    assert list(answers([part | predicted | {"device": "cuda", "status": "crashed", "reason": "why"}])) == []
