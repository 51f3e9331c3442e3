"""The map from cases to the code that they run."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

import cs336_systems
from perf.harness import HARNESS_VERSION
from perf.harness.case import Case
from perf.harness.reach import Needs, ReachMap, changed, entered
from perf.harness.sources import Sources
from perf.workloads import build
from perf.workloads.workload import Workload
from tests.harness.torn import tear

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
PACKAGE = Path(cs336_systems.__file__).parent
PARAMS = {"seq_len": 64, "d": 16, "dtype": "float32", "mode": "forward_backward"}

STEP = {
    "size": "tiny",
    "context_length": 32,
    "precision": "fp32",
    "variant": "eager",
    "attention": "reference",
    "mode": "step",
}


@pytest.fixture(scope="module")
def own() -> Sources:
    return Sources(PACKAGE)


def attention(impl: str) -> Workload:
    return build("attention", PARAMS | {"impl": impl}, DEVICE)


def needs_of(impl: str, own: Sources) -> Needs:
    case = Case("module.Class", "attention", {"impl": impl}, "cpu", "wall", "warm")
    known = ReachMap([], {})
    assert not known.holds(case, own)
    needs = known.put(case, entered(lambda: attention(impl)), own)
    assert known.holds(case, own)
    return needs


def test_an_entry_has_what_ran_and_not_what_another_implementation_runs(tmp_path: Path, own: Sources) -> None:
    tiled = needs_of("pytorch", own)
    assert {"attention.flash_pytorch:FlashAttentionPyTorch.backward", "attention.flash_pytorch:tiled_forward"} <= set(
        tiled
    )
    assert "perf.workloads.attention" in tiled
    eager = needs_of("reference", own)
    assert any(name.startswith("attention.reference:") for name in eager)
    assert not any("flash_bwd" in name or name.startswith("training:TrainStep") for name in eager)


# Each case in a process that has imported torch and nothing of ours.
RUN = """
import json, os, sys, torch

def run(workload, params, folder, device):
    sys.path.insert(0, folder)
    from perf.workloads import build; import cs336_systems as package
    assert package.__file__.startswith(folder), package.__file__
    work = build(workload, params, device); work.prepare(); work.run()

for case in json.loads(sys.argv[1]):
    if not (child := os.fork()):
        run(*case)
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0, case
"""


def test_a_case_runs_without_whatever_it_does_not_need(tmp_path: Path, own: Sources) -> None:
    cases = []
    for workload, params in (("attention", PARAMS | {"seq_len": 16, "impl": "triton"}), ("transformer", STEP)):
        found = entered(lambda workload=workload, params=params: build(workload, params, DEVICE))  # type: ignore[misc]
        needed = own.needed(own.names_of(found["functions"]))
        assert tear(tmp_path / workload, needed, own) > len(needed)
        cases.append((workload, params, str(tmp_path / workload), DEVICE))
    environment = os.environ | {"PYTHONPATH": str(PACKAGE.parent)}
    command = [sys.executable, "-c", RUN, json.dumps(cases)]
    done = subprocess.run(command, env=environment, cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_what_a_cache_would_skip_is_entered_again(own: Sources) -> None:
    both = [own.names_of(entered(lambda: attention("triton"))["functions"]) for _ in range(2)]
    first, second = map(own.needed, both)
    assert first <= second


def test_a_compilation_is_noted_and_its_code_runs_meanwhile(own: Sources) -> None:
    ran = []

    def compiled() -> Workload:
        work = attention("reference")
        function = torch.compile(lambda: ran.append(1))
        return Workload(run=function, check=work.check, floor=work.floor)

    assert entered(compiled)["is_compiled"]
    assert ran == [1]
    assert not entered(lambda: attention("reference"))["is_compiled"]


def test_the_map_is_made_of_records_of_these_versions(own: Sources) -> None:
    case = Case("module.Class", "attention", {"n": 1}, "cpu", "wall", "warm")
    known = own.digests(["training:cross_entropy"])
    lines: list[dict[str, Any]] = []
    for name, version, needs in (("a", "2.11", known), ("b", "2.12", {":": "0"}), ("c", "2.11", {":": "1"})):
        lines += [
            {"kind": "session", "id": name, "harness": HARNESS_VERSION, "software": {"torch": version}},
            {"kind": "reach", "session": name, "benchmark": "module.Class", "params": {"n": 1}, "needs": needs},
        ]
    assert ReachMap(lines, {"torch": "2.11"}).holds(case, own), "one of two entries is this code's"
    assert not ReachMap(lines, {"torch": "2.12"}).holds(case, own)
    assert not ReachMap(lines, {"torch": "2.13"}).entries


def test_what_is_gone_has_changed(own: Sources) -> None:
    assert changed({"attention.api:no_such": "0123456789abcdef"}, own) == ["attention.api:no_such"]
