"""Where there is no GPU, Triton kernels run in Triton's interpreter, and tests marked `gpu` are skipped."""

import ctypes
import gc
import os
import signal
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

# Read by torch when it is imported, here and in what the tests start: pytest's workers are as many as the cores, and
# threads that wait for each other on a busy machine take seconds for milliseconds.
os.environ.setdefault("OMP_NUM_THREADS", "1")

os.environ["COLUMNS"] = "120"  # of tables, whatever terminal runs the tests; pytest's workers have 80

# Triton keeps what it compiles under HOME, which the user of a container may lack. Pytest's workers inherit the folder.
if "TRITON_CACHE_DIR" not in os.environ and not os.access(Path.home(), os.W_OK):
    CACHE = tempfile.TemporaryDirectory(prefix="triton-", ignore_cleanup_errors=True)
    os.environ["TRITON_CACHE_DIR"] = CACHE.name

import torch

from perf.harness import lock
from tests.interpreter import speed_up_interpreter
from tests.once import Once

if TYPE_CHECKING:
    import pandas

gc.disable()  # until the tests are collected: nothing that is imported is ever garbage
HAS_GPU = torch.cuda.is_available()

# Read by Triton when a kernel is decorated, so it has to be set before any kernel module is imported.
if not HAS_GPU:
    os.environ["TRITON_INTERPRET"] = "1"
    speed_up_interpreter()

for name in [name for name in os.environ if name.startswith("PERF_")]:
    del os.environ[name]  # of a runner, such as its locked clock; a test sets its own
os.environ["PERF_PREFLIGHT"] = "off"  # tests share the GPU; those of the preflight itself set it


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--nccl", action="store_true", help="ranks of tests/distributed and tests/optimizer on GPUs")
    parser.addoption(
        "--ranks",
        choices=("gloo", "nccl", "gloo_on_cuda", "like_gloo_on_cuda"),
        help="of the same tests: nccl is --nccl; gloo_on_cuda shares the GPUs; like_gloo_on_cuda needs none",
    )
    parser.addoption("--slow", action="store_true", help="also the tests marked slow; on a GPU machine they always run")


def pytest_configure(config: pytest.Config) -> None:
    if hasattr(config, "workerinput") and sys.platform == "linux":  # pytest killed: its workers end with it
        pr_set_pdeathsig = 1
        ctypes.CDLL(None).prctl(pr_set_pdeathsig, signal.SIGKILL)
    if ranks := "nccl" if config.getoption("--nccl") else config.getoption("--ranks"):
        os.environ["TESTS_RANKS"] = ranks


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if HAS_GPU:
        return
    for item in items:
        if item.get_closest_marker("slow") and not config.getoption("--slow"):
            item.add_marker(pytest.mark.skip(reason="takes 10 to 60 s; --slow runs it"))
        if item.get_closest_marker("gpu"):
            item.add_marker(pytest.mark.skip(reason="needs a CUDA GPU"))


def pytest_collection_finish() -> None:
    gc.freeze()  # a full collection visits what the tests made, not 1 s of torch's, pytest's and every module's objects
    gc.set_threshold(10_000)  # full ones, over what tests import, too, took a tenth of all CPU time: 40 a minute, now 5
    gc.enable()


@pytest.fixture(autouse=True, scope="session")
def _locks_of_this_worker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """No test waits for another worker's measurement, or is refused because of one."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(lock, "FOLDER", folder := tmp_path_factory.mktemp("locks"))
        patch.setenv("PERF_LOCKS", str(folder))  # of the processes that a test starts
        yield


@pytest.fixture(scope="session")
def once(pytestconfig: pytest.Config, tmp_path_factory: pytest.TempPathFactory) -> Once:
    return Once(pytestconfig, tmp_path_factory)


@pytest.fixture(scope="session")
def committed_results(once: Once) -> "pandas.DataFrame":
    """Table of the committed results, which takes 4 s to read."""
    from perf.site import load

    return once("committed-results", lambda _: load())
