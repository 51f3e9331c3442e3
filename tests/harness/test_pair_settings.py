"""A head that changes settings of its process when it is imported spoils neither the base nor a peer."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from perf.harness.worker_process import WorkerProcess
from tests.harness.test_pair import ATTENTION, of_length
from tests.throwaway import write_attention

SET = """
import os, sys, warnings
torch.set_default_dtype(torch.float64)
torch.set_default_device("meta")
torch.manual_seed(1)
torch.set_grad_enabled(False)
torch.use_deterministic_algorithms(True)
torch.autocast("cpu", torch.bfloat16).__enter__()
warnings.simplefilter("error")
os.environ["TRITON_INTERPRET"] = "set by head"
sys.path.clear()
"""
EXPECT = """
    import os, warnings
    warnings.warn("an error if head's filters hold", stacklevel=1)
    assert os.environ.get("TRITON_INTERPRET") != "set by head"
"""
Ask = Callable[..., dict[str, Any]]


@pytest.fixture
def ask(tmp_path: Path) -> Iterator[Ask]:
    """Ask one process for both arms."""
    write_attention(tmp_path / "base", reference=ATTENTION.format(before=EXPECT.strip(), after=""))
    write_attention(tmp_path / "head", reference=ATTENTION.format(before="pass", after="") + SET)
    process = WorkerProcess("cpu", tmp_path / "base", tmp_path / "head")
    process.start()

    def ask(**changes: Any) -> dict[str, Any]:
        case = of_length(64, mode="forward_backward", **changes).to_json()
        return process.ask({"case": case, "arms": ["head", "base"], "first": True, "ceilings": {}}, 250.0)

    yield ask
    process.stop()


def test_what_head_sets_when_it_is_imported_spoils_no_base_and_no_peer(ask: Ask) -> None:
    for _ in range(2):
        reply = ask(impl="reference")
        assert reply["head"]["status"] != "ok", "its own fault"
        assert (reply["base"]["status"], reply["base"]["reason"]) == ("ok", "")
        peer = ask(impl="sdpa")
        assert [peer[arm]["reason"] for arm in ("base", "head")] == ["", ""]
        assert peer["base_ns"]
