"""A gate without a GPU: what differs in machine code, and which rows it reaches."""

import dataclasses
import json
import shutil
from pathlib import Path
from typing import Any

import click
import pytest
import torch
from click.testing import CliRunner

from perf.commands.machine_code import command
from perf.gate import checkouts
from perf.gate.evidence import Arm
from perf.gate.machine_code import compared, compiled, report, run
from perf.gate.machine_code.compared import Comparison, Plan, compare, to_measure, unlike
from perf.gate.machine_code.pretended import Operators
from perf.harness.case import Case
from perf.selection import pattern_of
from tests.repositories import needs_checkout
from tests.throwaway import write_attention

SASS = """
\t\tFunction : my_kernel
\t.headerflags\t@"EF_CUDA_SM90"
        /*0000*/                   LDC R1, c[0x0][0x28] ;       /* 0x00000a00ff017b82 */
                                                                /* 0x000fe20000000800 */
        /*0010*/              @!P0 LDG.E.128 R4, [R2.64] ;      /* 0x0000000002047981 */
                                                                /* 0x000ea2000c1e1d00 */
        /*0020*/                   HGMMA.64x64x16.F32.BF16 R24, gdesc[UR4], R24 ; /* 0x0040000004187df0 */
                                                                /* 0x000fe20008701818 */
        /*0030*/             @P1   MUFU.EX2 R7, R8 ;            /* 0x0000000800077308 */
                                                                /* 0x000e220000000800 */
        /*0040*/                   MUFU.RCP R7, R8 ;            /* 0x0000000800077308 */
                                                                /* 0x000e220000001000 */
        /*0050*/                   STL [R1], R7 ;               /* 0x0000000701007387 */
                                                                /* 0x000fe20000100800 */
        /*0060*/                   BAR.SYNC.DEFER_BLOCKING 0x0 ; /* 0x0000000000007b1d */
                                                                /* 0x000fec0000010000 */
"""


def test_instructions_are_counted_by_kind_and_the_name_does_not_matter() -> None:
    found = compiled.of_sass(SASS, 168, 8, 1024)
    assert found.instructions == 7
    kinds = {kind: count for kind, count in found.mix.items() if count}
    assert kinds == {"wgmma": 1, "ldg": 1, "spill": 1, "exp": 1, "bar": 1}
    assert found.sass == compiled.of_sass(SASS.replace("my_kernel", "another"), 168, 8, 1024).sass
    assert found.sass != compiled.of_sass(SASS.replace("0x000fec0000010000", "0x000fec0000010001"), 168, 8, 1024).sass


def of(name: str, sass: str = "a", stack: int = 0, **other: Any) -> dict[str, Any]:
    """A kernel and what it compiles to, under one digest."""
    mix = dict.fromkeys(compiled.MIX, 0)
    found = {"sass": sass, "registers": 9, "stack_bytes": stack, "shared_bytes": 9, "instructions": 9, "mix": mix}
    return {"name": name, "constants": {"TILE": "64"}, "found": found | other}


KERNELS = {
    "old": of("fwd_kernel"),
    "moved": of("fwd_kernel"),
    "renamed": of("forward_kernel"),
    "other": of("fwd_kernel", "b"),
    "spilling": of("fwd_kernel", "c", stack=64),
    "large": of("fwd_kernel", "d", shared_bytes=2**20),
    "delta": of("row_sums"),
    "bwd": of("bwd_kernel"),
}
FAILED = {"error": "PassManager::run failed"}


def plan(**rows: Any) -> Plan:
    return Plan(rows, KERNELS)


def compared_(base: Plan, head: Plan, **results: dict[str, Any]) -> Comparison:
    found = {digest: kernel["found"] for digest, kernel in KERNELS.items()} | results
    only = unlike(base, head)
    return compare("9.0", base, head, *({digest: found[digest] for digest in digests} for digests in only))


@pytest.mark.parametrize(
    ("base", "head", "word"),
    [
        ("old", "moved", "SAME"),
        ("old", "renamed", "SAME"),
        ("old", "other", "DIFFERS"),
        ("old", "spilling", "WORSE"),
        ("spilling", "old", "DIFFERS"),
        ("old", "large", "BROKEN"),
        ("old", "failed", "BROKEN"),
        ("failed", "old", "FIXED"),
        ("failed", "failed_too", "DIFFERS"),
        ("large", "old", "FIXED"),
        ("failed", "large", "DIFFERS"),
    ],
)
def test_a_kernel_has_one_word(base: str, head: str, word: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("failed", "failed_too"):
        monkeypatch.setitem(KERNELS, name, KERNELS["old"] | {"found": FAILED})
    found = compared_(plan(row=[(base, "(1,)")]), plan(row=[(head, "(1,)")]))
    (change,) = found.kernels
    assert (change.word, change.rows) == (word, 1)
    assert (found.same == ("row",)) == (word == "SAME")
    assert to_measure([found]) == (set() if word == "SAME" else {"row"})


def test_rows_that_change_kernels_with_each_other_are_told_what_each_gets() -> None:
    found = compared_(
        plan(one=[("old", "")], other=[("spilling", "")]), plan(one=[("spilling", "")], other=[("old", "")])
    )
    assert [(change.word, change.base, change.head) for change in found.kernels] == [
        ("WORSE", "fwd_kernel", "fwd_kernel"),
        ("DIFFERS", "fwd_kernel", "fwd_kernel"),
    ]
    assert [compared.changes(change) for change in found.kernels] == [["stack bytes 0 -> 64"], ["stack bytes 64 -> 0"]]


def test_one_kernel_for_another_of_no_similar_name_is_new_and_gone() -> None:
    found = compared_(plan(row=[("delta", "")]), plan(row=[("bwd", "")]))
    assert [(change.word, change.base, change.head) for change in found.kernels] == [
        ("NEW", "", "bwd_kernel"),
        ("GONE", "row_sums", ""),
    ]


def test_rows_are_sorted_by_what_reaches_them() -> None:
    base = plan(
        same=[("", "add"), ("old", "1")],
        copy=[("old", "1")],
        grid=[("old", "1")],
        none=[],
        kernel=[("old", "1")] * 2,
        gone="needs two GPUs",
        fails=[("bwd", "1")],
    )
    head = plan(
        same=[("", "add"), ("old", "1")],
        copy=[("", "clone"), ("old", "1")],
        grid=[("old", "2")],
        none=[],
        kernel=[("other", "1")] * 2,
        gone=[("old", "1")],
        fails={"error": "no luck"},
    )
    found = compared_(base, head)
    assert found.same == ("same",) and found.without == ("none",)
    assert found.reached.keys() == {"copy", "grid", "kernel"} and found.reached["kernel"] == "fwd_kernel"
    assert found.unknown == {"gone": "needs two GPUs"} and found.broken == {"fails": "no luck"}
    assert to_measure([found]) == {"copy", "grid", "kernel", "gone", "fails"}, "what is unknown is measured"
    assert [change.rows for change in found.kernels] == [1]


def a_report(base: Plan, head: Plan) -> compared.Report:
    arms = Arm("a" * 40, "Base"), Arm("b" * 40, "Head <b>@you</b>")
    return compared.Report(*arms, {"9.0": compared_(base, head)}, 2, "3.7.1", 12.0, "python -m perf machine-code a b")


@pytest.mark.parametrize(
    ("head", "status"),
    [([("old", "")], 0), ([("other", "")], 0), ([("spilling", "")], 1), ("cannot be planned", 2)],
)
def test_every_form_says_the_same(head: Any, status: int) -> None:
    found = a_report(plan(row=[("old", "")]), plan(row=head))
    document = json.loads(report.to_json(found, "^row$"))
    assert document["exit_status"] == found.exit_status == status
    assert document["measure"] == sorted(to_measure(found.targets.values()))
    assert report.headline(found) in report.text(found)
    assert "<b>" not in report.comment(found).replace("<code>", "")
    for change in found.targets["9.0"].kernels:
        assert change.word in report.text(found) and change.word in report.comment(found)


def test_the_working_tree_is_named_as_a_gate_names_it() -> None:
    of_a_tree = dataclasses.replace(a_report(plan(), plan()), head=Arm(checkouts.WORKING_TREE, "Head"))
    assert "base aaaaaaaa  Base\nhead working tree  Head" in report.text(of_a_tree)


def test_a_pattern_selects_the_rows_to_measure() -> None:
    import re

    cases = [Case("a.B", "attention", {"n": n, "impl": "triton"}, "cuda", "cuda_events", "cold") for n in (1, 10)]
    assert [bool(re.search(pattern_of(cases[:1]), f"a.B.track_time({n}, 'triton')")) for n in (1, 10)] == [True, False]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("HEAD", "--target", "1.0"), "'1.0' is not one of"),
        (("HEAD", "--set", "smoke"), "allowed: rows that do"),
        pytest.param(("nowhere",), "'nowhere' was given; allowed: a commit", marks=needs_checkout),
    ],
)
def test_bad_input_is_one_clear_line(arguments: tuple[str, ...], message: str) -> None:
    done = CliRunner().invoke(command, arguments)
    assert done.exit_code == 2
    assert message in done.stderr.splitlines()[-1]


FLASH_TRITON = '''
import torch
import triton
import triton.language as tl


@triton.jit
def {kernel}(x, out, N, TILE: tl.constexpr):
    """{docstring}"""
    at = tl.program_id(0) * TILE + tl.arange(0, TILE)
    tl.store(out + at, tl.load(x + at, mask=at < N) * {factor}, mask=at < N)


class FlashAttentionTriton:
    @staticmethod
    def apply(q, k, v, is_causal):
        assert q.is_cuda and q.device.type == "cuda"
        out = torch.empty(q.shape, dtype=q.dtype, device=q.device)
        tile = {tile} * torch.cuda.get_device_properties(q.device).multi_processor_count // 132
        {kernel}[(triton.cdiv(q.numel(), tile),)](q, out, q.numel(), TILE=tile)
        return out
'''
CASE = Case(
    "attention.FlashAttention",
    "attention",
    {"seq_len": 64, "d": 64, "dtype": "bfloat16", "mode": "forward", "impl": "triton"},
    "cuda",
    "cuda_events",
    "cold",
)


def compare_arms(head: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> compared.Report:
    """Compare FLASH_TRITON with the same where `head` replaces some of its words."""
    base = {"kernel": "scaled_kernel", "docstring": "Words.", "factor": "2.0", "tile": "128"}
    for name, of_arm in (("base", base), ("head", base | head)):
        write_attention(tmp_path / name, flash_triton=FLASH_TRITON.format(**of_arm))
    monkeypatch.setattr(run, "CACHE", tmp_path / "cache")
    monkeypatch.setattr(checkouts, "export", lambda arm, place: shutil.copytree(tmp_path / arm.commit, place))
    monkeypatch.setattr(checkouts, "changed_paths", lambda *arms: ("cs336_systems/attention/flash_triton.py",))
    return run.run((Arm("base", ""), Arm("head", "")), [CASE], ["9.0"], "")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("head", "word", "grid"),
    [
        ({"kernel": "times_kernel"}, "SAME", "same"),
        ({"factor": "3.0"}, "DIFFERS", "same"),
        ({"tile": "256"}, "DIFFERS", "other"),
    ],
)
def test_kernels_are_compiled_for_a_gpu_that_is_not_here(
    head: dict[str, str], word: str, grid: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = compare_arms(head, tmp_path, monkeypatch)
    (change,) = found.targets["9.0"].kernels
    assert not found.targets["9.0"].unknown
    assert change.word == word
    assert change.before["registers"] > 0 and change.before["mix"]["ldg"] > 0
    assert bool(change.constants) == (grid == "other")
    assert found.compiled == len(list((tmp_path / "cache").iterdir())) == 2
    if word == "SAME":  # once is enough
        again = run.run((Arm("base", ""), Arm("head", "")), [CASE], ["9.0"], "")
        assert again.targets == found.targets


def test_nothing_is_planned_where_no_definition_differs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run, "_planner", None)
    found = compare_arms({"docstring": "Other words."}, tmp_path, monkeypatch)
    assert found.targets["9.0"].same == (CASE.key,)
    assert (found.compiled, found.exit_status) == (0, 0)


def test_operators_are_noted_by_their_shapes_and_views_are_not() -> None:
    notes: list[str] = []
    for value in (1.0, 2.0):
        with Operators(notes.append):
            torch.stack([torch.full((2, 3), value)] * 2).transpose(0, 1).add(1)
    first, second = notes[: len(notes) // 2], notes[len(notes) // 2 :]
    assert [note.partition(" ")[0] for note in first] == ["aten.full.default", "aten.stack.default", "aten.add.Tensor"]
    assert first[1:] == second[1:], "what the tensors hold is not noted"


def test_a_process_that_ends_is_one_clear_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(run.ENVIRONMENT, "PYTHONPATH", str(tmp_path))
    (tmp_path / "perf").mkdir()
    (tmp_path / "perf" / "__init__.py").write_text("raise SystemExit('no luck')\n")
    with run._planner(tmp_path, "9.0", tmp_path) as planner, pytest.raises(click.ClickException, match="no luck"):
        planner.plan([CASE])


def test_names_of_properties_are_those_that_are_measured() -> None:
    fields = vars(compiled.of_sass(SASS, 168, 8, 1024)).keys()
    assert compared.NAMES.keys() | {"sass", "mix"} == fields
