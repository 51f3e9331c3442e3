"""Each of two packages in one process keeps the settings that it made."""

import warnings

import torch

from perf.harness import settings


def test_every_setting_can_be_read_changed_and_put_back():
    before, filters = settings.read(), warnings.filters
    assert len(before) == len(settings._settings())
    changed = {
        "matmul precision": "high",
        "cudnn.benchmark": not before["cudnn.benchmark"],
        "flash attention": not before["flash attention"],
        "anomaly detection": (True, False),
        "deterministic algorithms": (True, True),
        "gradients": False,
        "default dtype": torch.float64,
        "threads": before["threads"] + 1,
        "garbage collection": (False, (1000, 5, 5)),
        "switch interval": 0.25,
        "default device": torch.device("meta"),
        "cpu autocast": (True, torch.float16),
        "recursion limit": before["recursion limit"] + 1,
        "import path": ["/here"],
        "warnings": [("error", None, Warning, None, 0)],
        "environment": {b"ONE": b"1"},
    }
    try:
        settings.apply(changed)
        assert {name: settings.read()[name] for name in changed} == changed
    finally:
        settings.apply(before)
    assert settings.read() == before
    assert warnings.filters is filters, "of a block that has kept others"
    assert torch._GLOBAL_DEVICE_CONTEXT.device_context is None, "which would call a hook in every function"


def test_precisions_that_were_set_in_both_ways_of_torch_are_put_back():
    before = settings.read()
    try:
        torch.set_float32_matmul_precision("high")
        torch.backends.cuda.matmul.fp32_precision = "ieee"  # from here on torch refuses to read the older switch
    finally:
        settings.apply(before)
    assert settings.read() == before
