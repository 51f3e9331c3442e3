"""No kernel reads or writes beyond its tensors, as NVIDIA's memory checker sees it."""

import os
import shutil
import subprocess
import sys

import pytest
import torch

from cs336_systems.attention.gpu import runs_gluon

SANITIZER = shutil.which("compute-sanitizer") or shutil.which("compute-sanitizer", path="/usr/local/cuda/bin")


@pytest.mark.gpu
@pytest.mark.skipif(SANITIZER is None, reason="needs compute-sanitizer, which comes with CUDA's toolkit")
def test_no_kernel_leaves_its_tensors() -> None:
    assert SANITIZER
    program = [sys.executable, "-m", "tests.attention.every_kernel"]
    # Each tensor has an allocation of its own, so that one element too far is outside of it.
    environment = os.environ | {"PYTORCH_NO_CUDA_MEMORY_CACHING": "1"}
    subprocess.run(program, check=True, env=environment)  # compiles, which would be slow under the checker
    run = subprocess.run(
        [SANITIZER, "--tool", "memcheck", "--error-exitcode", "1", *program],
        capture_output=True, text=True, env=environment,
    )  # fmt: skip
    if "Device not supported" in run.stdout:
        pytest.skip("compute-sanitizer does not support this machine's GPU")
    assert run.returncode == 0 and "ERROR SUMMARY: 0 errors" in run.stdout, run.stdout[-4000:] + run.stderr[-2000:]
    kernels = {
        "flash_fwd",
        "flash_bwd_dkdv",
        "flash_bwd_dq",
        "flash_bwd_at_once",
        "flash_bwd_delta",
        "flash_fwd_split",
        "flash_fwd_combine",
    }
    if runs_gluon(torch.device("cuda", 0)):
        kernels |= {"flash_fwd_hopper", "flash_bwd_hopper_64", "flash_bwd_hopper_128", "flash_bwd_round"}
        kernels |= {"flash_fwd_hopper_float32", "flash_bwd_hopper_float32"}
    assert {f"{kernel}_kernel" for kernel in kernels} <= set(run.stdout.split())
