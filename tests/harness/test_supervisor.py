"""A case that is wrong, crashes, hangs or is missing costs itself a reason and the others nothing.

Real worker processes measure a throw-away `cs336_systems` that misbehaves on purpose.
"""

import dataclasses
import textwrap

import pytest

from perf.harness import records
from perf.harness.case import Case
from perf.harness.measure import package_digest
from perf.harness.supervisor import Effort, measure
from perf.harness.worker_process import WorkerProcess

COMMIT = "a" * 40
STOP = {"min_samples": 5, "max_samples": 5, "max_seconds": 1e9}
FAST = Effort("full", rounds=2, processes=1, limit_s=250, stop=STOP)
TWICE = Effort("full", rounds=2, processes=2, limit_s=250, stop=STOP)

RIGHT = """
    import torch

    def scaled_dot_product_attention(q, k, v, is_causal):
        return torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=is_causal)
"""


def case(impl, seq_len=16):
    params = {"seq_len": seq_len, "d": 16, "dtype": "float32", "mode": "forward", "impl": impl}
    return Case("test.Attention", "attention", params, "cpu", "wall", "warm")


@pytest.fixture
def checkout(tmp_path, monkeypatch):
    """Writes the modules of a `cs336_systems` and makes worker processes import it."""
    root = tmp_path / "checkout"
    monkeypatch.setenv("PYTHONPATH", str(root))

    def write(**modules):
        package = root / "cs336_systems" / "attention"
        package.mkdir(parents=True, exist_ok=True)
        for folder in (package.parent, package):
            (folder / "__init__.py").write_text("")
        for name, source in modules.items():
            (package / f"{name}.py").write_text(textwrap.dedent(source))
        return root

    return write


def run(cases, checkout, tmp_path, effort=FAST):
    results = measure(cases, commit=COMMIT, checkout=checkout, records=tmp_path / "records", effort=effort)
    assert [result.params for result in results] == [one.params for one in cases]
    return results


def lines(tmp_path):
    (machine,) = records.machines(tmp_path / "records")
    return records.read_lines(tmp_path / "records", machine, COMMIT)


def function(body):
    """A FlashAttention class whose apply does `body`."""
    return f"""
        import os, threading, torch

        class Function:
            @staticmethod
            def apply(q, k, v, is_causal):
                {body}

        FlashAttentionPyTorch = FlashAttentionTriton = Function
    """


def test_every_case_has_its_visits_on_file_in_order_from_two_processes(checkout, tmp_path):
    root = checkout(reference=RIGHT)
    first, second = run([case("reference"), case("sdpa")], root, tmp_path, TWICE)
    assert (first.status, second.status) == ("ok", "ok")
    assert [len(visit) for visit in first.visits_s] == [5]
    assert first.clock == "wall"
    written = lines(tmp_path)
    assert [line["order"] for line in written if line["kind"] == "visit"] == [0, 1, 2, 3]
    digests = [line["package_digest"] for line in written if line["kind"] == "process"]
    assert digests == [package_digest(root / "cs336_systems")] * 2
    assert all(line["ceilings"]["copy_bytes_per_s"] > 0 for line in written if line["kind"] == "process")


def test_a_case_of_which_only_the_memory_matters_is_visited_once_and_gets_no_time(checkout, tmp_path):
    untimed = dataclasses.replace(case("reference"), timed=False)
    (result,) = run([untimed], checkout(reference=RIGHT), tmp_path)
    assert (result.status, result.samples_s) == ("ok", ())
    (visit,) = [line for line in lines(tmp_path) if line["kind"] == "visit"]
    assert "samples_ns" not in visit
    assert "check" in visit["spent_ms"]


def test_a_wrong_case_gets_no_time(checkout, tmp_path):
    wrong = function("return torch.nn.functional.scaled_dot_product_attention(q, k, v)")  # not causal
    result, _ = run([case("pytorch"), case("sdpa")], checkout(flash_pytorch=wrong), tmp_path)
    assert (result.status, result.samples_s) == ("wrong", ())
    assert result.reason.startswith("out differs from float64 by")


def test_nan_is_wrong(checkout, tmp_path):
    (result,) = run([case("pytorch")], checkout(flash_pytorch=function("return q * float('nan')")), tmp_path)
    assert result.status == "wrong"


def test_a_crash_is_recorded_and_the_next_case_gets_a_new_process(checkout, tmp_path):
    root = checkout(flash_pytorch=function("os.abort()"), reference=RIGHT)
    crashed, fine = run([case("pytorch"), case("reference")], root, tmp_path)
    assert crashed.status == "crashed"
    assert "SIGABRT" in crashed.reason
    assert fine.status == "ok"


def test_a_hang_is_killed_and_recorded(checkout, tmp_path, monkeypatch):
    ask = WorkerProcess.ask

    def ask_patiently(process, request, limit_s):  # a busy machine may take longer than the limit for what is fine
        return ask(process, request, limit_s if request["case"]["params"]["impl"] == "pytorch" else 250)

    monkeypatch.setattr(WorkerProcess, "ask", ask_patiently)
    root = checkout(flash_pytorch=function("threading.Event().wait()"), reference=RIGHT)
    effort = Effort("full", rounds=2, processes=1, limit_s=3, stop=STOP)
    hung, fine = run([case("pytorch"), case("reference")], root, tmp_path, effort)
    assert hung.status == "hung"
    assert "3 s" in hung.reason
    assert fine.status == "ok"


def test_an_exception_and_an_out_of_memory_are_told_apart(checkout, tmp_path):
    root = checkout(
        flash_pytorch=function("raise RuntimeError('first line\\nsecond line')"),
        flash_triton=function("raise torch.OutOfMemoryError('Tried to allocate 99 GiB')"),
    )
    error, memory = run([case("pytorch"), case("triton")], root, tmp_path)
    assert (error.status, error.reason) == ("error", "RuntimeError: first line")
    assert (memory.status, memory.reason) == ("out_of_memory", "Tried to allocate 99 GiB")


def test_what_a_commit_does_not_have_is_unavailable_with_that_reason(checkout, tmp_path):
    root = checkout(flash_pytorch="")
    function_missing, module_missing = run([case("pytorch"), case("triton")], root, tmp_path)
    assert function_missing.reason == "this commit has no cs336_systems.attention.flash_pytorch.FlashAttentionPyTorch"
    assert module_missing.reason == "this commit has no module cs336_systems.attention.flash_triton"
    assert {function_missing.status, module_missing.status} == {"unavailable"}


def test_a_package_from_anywhere_else_is_never_measured(checkout, tmp_path):
    """The package that Python would import lies outside the checkout: as good as missing."""
    checkout(reference=RIGHT)
    empty = tmp_path / "commit-without-package"
    empty.mkdir()
    result, fine = run([case("reference"), case("sdpa")], empty, tmp_path)
    assert result.status == "unavailable"
    assert fine.status == "ok"
    assert {line["package_digest"] for line in lines(tmp_path) if line["kind"] == "process"} == {""}


def test_finished_cases_of_the_same_commit_and_day_are_taken_from_file(checkout, tmp_path):
    root = checkout(reference=RIGHT)
    (before,) = run([case("reference")], root, tmp_path)
    again, new = run([case("reference"), case("sdpa")], root, tmp_path)
    assert again.samples_s == before.samples_s
    assert new.status == "ok"
    assert len([line for line in lines(tmp_path) if line["kind"] == "session"]) == 1


def test_a_case_that_needs_a_gpu_says_so_where_there_is_none(checkout, tmp_path):
    import torch

    if torch.cuda.is_available():
        pytest.skip("this machine has a GPU")
    on_gpu = Case("test.Attention", "attention", case("sdpa").params, "cuda", "cuda_events", "cold")
    (result,) = run([on_gpu], checkout(), tmp_path)
    assert result.status == "unavailable"
    assert result.reason.startswith("needs a CUDA GPU")
    assert records.machines(tmp_path / "records") == [], "nothing was measured, so nothing is on file"


@pytest.mark.slow
def test_cases_of_as_many_ranks_come_one_after_the_other_in_every_round(checkout, tmp_path):
    """Since every other number of ranks is a set of new processes."""
    shapes = [{"world_size": ranks, "megabytes": size} for size in (1, 2) for ranks in (2, 1)]
    cases = [Case("test.AllReduce", "collectives", params, "cpu", "ranks", "warm") for params in shapes]
    results = measure(cases, commit=COMMIT, checkout=checkout(), records=tmp_path / "records", effort=FAST)
    assert [result.status for result in results] == ["ok"] * 4
    visits = [line for line in lines(tmp_path) if line["kind"] == "visit"]
    assert [line["params"]["world_size"] for line in visits] == [1, 1, 2, 2] * 2
