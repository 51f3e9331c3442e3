"""Which calls get the kernels in Gluon, and what they compile to. No GPU is needed."""

import json
import os
import subprocess
import sys

import pytest
import torch

from cs336_systems.attention import gpu, planning
from cs336_systems.attention.api import flash_attention, flash_attention_triton
from cs336_systems.attention.hopper import (
    backward_heads_at_once,
    backward_splits,
    hopper_backward,
    hopper_float32,
    hopper_float32_backward,
    hopper_float32_forward,
    hopper_forward,
)
from cs336_systems.attention.hopper_tables import (
    HOPPER_BACKWARD,
    HOPPER_FLOAT32,
    HOPPER_FORWARD,
    HOPPER_FORWARD_FEW,
    HOPPER_FORWARD_LONG,
    HOPPER_FORWARD_MANY,
    HOPPER_FORWARD_PING_PONG,
)
from cs336_systems.attention.request import Request
from tests.attention.gate import DEVICE, Shape, make_inputs


@pytest.fixture
def on_hopper(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu, "runs_gluon", lambda device: True)
    monkeypatch.setattr(gpu, "multiprocessors", lambda device: 132)
    monkeypatch.setattr(gpu, "shared_bytes", lambda device: 227 * 2**10)


CALL = Request(scale=0.1)
FLOAT32 = Request(scale=0.1, products="bf16x6")


def tensor(*shape: int, dtype: torch.dtype = torch.bfloat16) -> torch.Tensor:
    return torch.empty(shape, dtype=dtype, device="meta" if 0 in shape else "cpu")


@pytest.mark.usefixtures("on_hopper")
@pytest.mark.parametrize("d", [40, 64, 80, 88, 128])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_many_long_heads_get_them(d: int, dtype: torch.dtype) -> None:
    standard = HOPPER_FORWARD | (HOPPER_FORWARD_PING_PONG if d <= 96 else {})
    forward, long = ((standard | table)[64 if d <= 64 else 128] for table in (HOPPER_FORWARD_MANY, HOPPER_FORWARD_LONG))
    backward = HOPPER_BACKWARD[64 if d <= 64 else 128]
    q, longer = tensor(1, 24, 4096, d, dtype=dtype), tensor(1, 24, 8192, d, dtype=dtype)
    k = q[:, ::4]
    inside = tensor(1, 4096, 24, d, dtype=dtype).transpose(1, 2)
    assert hopper_forward(CALL, q, k, k) == forward == hopper_forward(CALL, inside, inside, inside)
    causal = CALL._replace(is_causal=True)
    assert hopper_forward(CALL, longer, longer, longer) == long == hopper_forward(causal, longer, longer, longer)
    assert hopper_backward(CALL, q, q, q) == backward == hopper_backward(CALL, inside, inside, inside)


@pytest.mark.usefixtures("on_hopper")
@pytest.mark.parametrize("is_causal", [False, True])
@pytest.mark.parametrize("d", [64, 80, 128])
def test_few_tiles_are_of_one_warp_group_each(d: int, is_causal: bool) -> None:
    padded, call = 64 if d == 64 else 128, CALL._replace(is_causal=is_causal)
    tables = HOPPER_FORWARD_FEW[padded, is_causal]
    standard = (HOPPER_FORWARD_PING_PONG if d == 80 else HOPPER_FORWARD)[padded]
    for shape, tiles in (((1, 8, 1024), 1), ((1, 8, 2048), 2), ((1, 10, 2048), 3), ((1, 13, 2048), 4)):
        q = tensor(*shape, d)
        least = min((most for most in tables if most >= tiles), default=None)
        expected = standard if least is None else tables[least]
        assert hopper_forward(call, q, q, q) == expected
    short, odd = tensor(1, 64, 496, d), tensor(11, 4, 500, d)
    assert hopper_forward(call, short, short, short) == (standard if d > 64 else None)
    assert hopper_forward(call, odd, odd, odd) is not None


@pytest.mark.usefixtures("on_hopper")
def test_consumers_issue_in_turns_where_that_is_faster() -> None:
    causal = CALL._replace(is_causal=True)
    for n, d, call, table in (
        (2048, 96, CALL, HOPPER_FORWARD_PING_PONG),
        (2048, 104, causal, HOPPER_FORWARD),
        (2047, 104, causal, HOPPER_FORWARD_PING_PONG),
        (2047, 104, CALL, HOPPER_FORWARD),
    ):
        q = tensor(1, 32, n, d)
        assert hopper_forward(call, q, q, q) == table[128]


@pytest.mark.usefixtures("on_hopper")
def test_large_tiles_are_for_lengths_that_fill_them() -> None:
    for n, table in ((2048, HOPPER_FORWARD_MANY), (1300, HOPPER_FORWARD), (2823, HOPPER_FORWARD_LONG)):
        q = tensor(4, 32, n, 64)
        assert hopper_forward(CALL, q, q, q) == table[64]


@pytest.mark.usefixtures("on_hopper")
def test_narrow_heads_get_them_where_tiles_are_few() -> None:
    for d in (16, 32):
        few, fewer, many, short, long = (
            tensor(*shape, d) for shape in ((1, 8, 2048), (1, 1, 2048), (1, 24, 4096), (1, 8, 1024), (1, 1, 16384))
        )
        assert hopper_forward(CALL, few, few, few) is not None
        for x in (fewer, many, short, long):
            assert hopper_forward(CALL, x, x, x) is None
        for x, is_taken in ((long, True), (short, False), (many, False), (fewer, False)):
            assert (hopper_backward(CALL, x, x, x) is not None) == is_taken
    by_8 = tensor(1, 24, 4096, 24)
    assert hopper_forward(CALL, by_8, by_8, by_8) == HOPPER_FORWARD_MANY[64]


@pytest.mark.usefixtures("on_hopper")
def test_the_keys_of_fewer_tiles_or_of_long_causal_ones_are_split() -> None:
    causal = CALL._replace(is_causal=True)
    fewer, long = (1, 1, 4096), (1, 2, 4096)
    for d in (64, 128):
        few, one_each = tensor(*fewer, d), tensor(*long, d)
        assert hopper_forward(CALL, few, few, few) is None is hopper_forward(causal, few, few, few)
        assert hopper_forward(CALL, one_each, one_each, one_each) is not None
        assert hopper_forward(causal, one_each, one_each, one_each) is None
    shorter = tensor(1, 4, 2048, 128)
    assert hopper_forward(causal, shorter, shorter, shorter) is not None


@pytest.mark.usefixtures("on_hopper")
@pytest.mark.parametrize("batch", [1, 4])
@pytest.mark.parametrize(("d", "padded"), [(100, 128), (20, 32), (96, 128), (40, 64)])
def test_padded_rows_of_16_bits_are_taken_where_rows_without_padding_are(d: int, padded: int, batch: int) -> None:
    """What is allocated has none, and the copy engine (TMA) wants rows of a multiple of 16 bytes."""
    q = tensor(batch, 16, 2048, padded).to(DEVICE)[..., :d]  # planning takes what can be launched
    assert (hopper_forward(CALL, q, q, q) is not None) == (d % 8 == 0)
    assert (hopper_backward(CALL, q, q, q) is not None) == (d % 8 == 0)
    assert callable(planning.choose_forward(CALL, q, q, q)) and callable(planning.choose_backward(CALL, q, q, q, q, q))


@pytest.mark.usefixtures("on_hopper")
@pytest.mark.parametrize("d", [64, 80, 128])
def test_a_backward_program_for_nearly_each_multiprocessor_is_enough(d: int) -> None:
    padded = 64 if d == 64 else 128
    for shape in ((1, 4, 4096), (4, 1, 4096), (1, 1, 16384), (1, 16, 1024), (1, 8, 2048)):
        q = tensor(*shape, d)
        assert hopper_backward(CALL, q, q, q) == HOPPER_BACKWARD[padded]
    fewer = tensor(1, 8, 1024, d)
    few_scores = None if d == 64 else HOPPER_BACKWARD[padded]
    assert hopper_backward(CALL, fewer, fewer, fewer) == few_scores
    odd, fewer_odd = tensor(6, 9, 173, d), tensor(3, 9, 173, d)
    assert hopper_backward(CALL, odd, odd, odd) == few_scores
    assert hopper_backward(CALL, fewer_odd, fewer_odd, fewer_odd) is None
    one = tensor(1, 1, 1024, d)
    assert hopper_backward(CALL, one, one, one) is None  # both passes in one launch take less time


@pytest.mark.usefixtures("on_hopper")
def test_all_others_get_the_plain_kernels() -> None:
    q = tensor(1, 16, 4096, 64)
    few = tensor(1, 1, 1024, 64)
    short = tensor(64, 16, 64, 64)
    unaligned = torch.empty(16 * 4096 * 64 + 1, dtype=q.dtype)[1:].view_as(q)
    odd = tensor(1, 16, 4096, 65)[..., :64]
    expanded = tensor(1, 1, 4096, 64).expand(q.shape)
    no_multiple = tensor(1, 16, 4096, 84)
    others = q.float(), tensor(1, 16, 4096, 32), tensor(1, 16, 4096, 136), few, short, unaligned, odd, expanded
    for x in (*others, no_multiple):
        assert hopper_forward(CALL, x, x, x) is None, x.shape
        assert hopper_backward(CALL, x, x, x) is None, x.shape
    assert hopper_forward(CALL, q, q, expanded) is None
    for request in (CALL._replace(dropout=0.1), CALL._replace(scale=-0.1), CALL._replace(scale=0.0)):
        assert hopper_forward(request, q, q, q) is None
    for request in (CALL._replace(dropout=0.1), CALL._replace(deterministic=True)):
        assert hopper_backward(request, q, q, q) is None
    assert hopper_backward(CALL, q, tensor(1, 16, 64, 64), q) is None


@pytest.mark.usefixtures("on_hopper")
@pytest.mark.parametrize(
    ("shape", "group", "full", "causal"),
    [
        ((1, 64, 2048), 1, 1, 1),
        ((1, 64, 512), 8, 8, 8),
        ((1, 64, 2048), 8, 1, 4),
        ((1, 32, 2048), 4, 1, 4),
        ((4, 22, 1000), 2, 1, 2),
        ((1, 64, 32768), 8, 1, 4),
        ((2, 64, 32768), 8, 1, 2),
        ((4, 64, 32768), 8, 1, 1),
        ((1, 6, 4096), 3, 3, 4),
        ((16, 6, 8192), 3, 1, 1),
        ((1, 5, 8192), 5, 5, 5),
    ],
)
def test_programs_share_a_key_head_where_they_are_few(
    shape: tuple[int, ...], group: int, full: int, causal: int
) -> None:
    q = torch.empty(*shape, 128, dtype=torch.bfloat16, device="meta")
    k = q[:, ::group]
    for is_causal, splits in ((False, full), (True, causal)):
        request = CALL._replace(is_causal=is_causal)
        assert backward_splits(request, q, k) == splits
        choice = hopper_backward(request, q, k, k)
        assert choice is not None and choice.splits == splits
        assert hopper_backward(request._replace(deterministic=True), q, k, k) is None


@pytest.mark.usefixtures("on_hopper")
@pytest.mark.parametrize(
    ("shape", "group", "full", "causal", "float32"),
    [
        ((1, 1, 2048), 1, 8, 8, 8),  # in 16 bits no more: a program has 4 tiles of queries
        ((1, 1, 4096), 1, 4, 8, 4),
        ((1, 1, 1024), 1, None, None, 8),
        ((1, 8, 2048), 1, 1, 2, 1),
        ((1, 16, 2048), 1, 1, 1, 1),
        ((1, 4, 2048), 4, 8, 16, 8),
    ],
)
def test_programs_share_queries_until_no_multiprocessor_is_idle(
    shape: tuple[int, ...], group: int, full: int | None, causal: int | None, float32: int
) -> None:
    q = torch.empty(*shape, 128, dtype=torch.bfloat16, device="meta")
    k = q[:, ::group]
    for is_causal, splits in ((False, full), (True, causal)):
        choice = hopper_backward(CALL._replace(is_causal=is_causal), q, k, k)
        assert (choice and choice.splits) == splits
    in_pieces = hopper_float32_backward(FLOAT32._replace(is_causal=True), q.float(), k.float())
    assert in_pieces is not None and in_pieces.splits == float32
    assert hopper_float32_backward(FLOAT32._replace(deterministic=True), q.float(), k.float()) is None


@pytest.mark.usefixtures("on_hopper")
@pytest.mark.parametrize("d", [64, 112, 128])
@pytest.mark.parametrize(
    ("shape", "splits"),
    [((11, 4, 500), 1), ((2, 8, 512), 1), ((4, 4, 1024), 1), ((4, 11, 1000), 1), ((1, 3, 2048), 6), ((1, 8, 2048), 2)],
)
def test_programs_share_queries_only_where_adding_takes_less_than_it_saves(
    shape: tuple[int, ...], splits: int, d: int
) -> None:
    q = tensor(*shape, d)
    assert backward_splits(CALL._replace(is_causal=True), q, q) == splits


@pytest.mark.usefixtures("on_hopper")
def test_short_float32_is_multiplied_without_pieces_where_heads_are_many() -> None:
    causal = FLOAT32._replace(is_causal=True)
    for shape, d, full_is_plain, causal_is_plain in (
        ((8, 16, 256), 128, True, True),
        ((8, 16, 384), 104, False, True),
        ((12, 18, 169), 128, True, True),
        ((2, 36, 166), 128, True, True),
        ((1, 31, 226), 128, False, False),  # few tiles
        ((4, 16, 512), 128, False, False),
        ((8, 16, 256), 64, True, True),
        ((8, 16, 384), 64, False, False),
    ):
        q = tensor(*shape, d, dtype=torch.float32)
        assert (hopper_float32_forward(FLOAT32, q, q) is None) == full_is_plain
        assert (hopper_float32_forward(causal, q, q) is None) == causal_is_plain


@pytest.mark.usefixtures("on_hopper")
def test_few_backward_programs_are_balanced_and_many_stay_in_the_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu, "l2_bytes", lambda device: 50 * 2**20)
    causal = CALL._replace(is_causal=True)
    few, many, shorter = (
        torch.empty(*shape, 64, dtype=torch.bfloat16, device="meta")
        for shape in ((1, 16, 2048), (8, 16, 32768), (32, 16, 8192))
    )
    assert backward_heads_at_once(CALL, few, few) == 1
    assert backward_heads_at_once(causal, few, few) == 16
    assert backward_heads_at_once(causal, few, few[:, ::8], splits=2) == 4  # all there are
    assert backward_heads_at_once(causal, many, many) == 1  # of 16 MiB each
    assert backward_heads_at_once(causal, shorter, shorter) == 7  # of 512: 6 fit, and would leave a rest of 2


@pytest.mark.usefixtures("on_hopper")
@pytest.mark.parametrize(("d", "columns"), [(20, 32), (50, 64), (64, 64), (80, 128), (128, 128)])
@pytest.mark.parametrize(("products", "pieces"), [("bf16x6", 3), ("bf16x3", 2), ("tf32", 2)])
def test_float32_gets_those_over_pieces(d: int, columns: int, products: str, pieces: int) -> None:
    request, choice = CALL._replace(products=products), HOPPER_FLOAT32[columns, pieces]
    q = tensor(1, 16, 4096, d, dtype=torch.float32)
    one_head, few = tensor(1, 1, 2048, d, dtype=q.dtype), tensor(1, 1, 128, d, dtype=q.dtype)
    odd = tensor(1, 16, 4096, d + 1, dtype=q.dtype)[..., 1:]  # they are split from anywhere
    for rows, visited in ((q, q), (q, few), (one_head, one_head), (few, one_head), (odd, odd)):
        assert hopper_float32(request, rows, visited) == choice
    assert hopper_float32_forward(request, q, q) == choice
    few_tiles, causal = tensor(1, 2, 4224, d, dtype=q.dtype), request._replace(is_causal=True)
    short = tensor(1, 1, 511, d, dtype=q.dtype)
    assert (hopper_float32_forward(request, short, short) is None) == (d <= 64)
    assert (hopper_float32_forward(request, one_head, one_head) is None) == (d <= 32)
    assert hopper_float32_forward(request, few_tiles, few_tiles) == choice._replace(consumers=1)
    assert hopper_float32_forward(causal, q[:, :4], q) == choice._replace(consumers=1)
    assert hopper_float32_forward(request, q[:, :4], q) == choice


@pytest.mark.usefixtures("on_hopper")
def test_other_float32_gets_the_plain_kernels() -> None:
    q = tensor(1, 16, 4096, 64, dtype=torch.float32)
    few, short = (tensor(*shape, 64, dtype=q.dtype) for shape in ((16, 16, 127), (64, 16, 64)))
    for x in (q.bfloat16(), short):
        assert hopper_float32(FLOAT32, x, x) is None, x.shape
    assert hopper_float32(FLOAT32, few, q) is None
    assert hopper_float32(FLOAT32._replace(dropout=0.1), q, q) is None


@pytest.mark.skipif(torch.cuda.is_available(), reason="for machines without a GPU")
def test_no_other_machine_imports_them() -> None:
    program = """
import sys, torch
from cs336_systems.attention.api import flash_attention
from cs336_systems.attention.gpu import runs_gluon
q = torch.randn(2, 16, 64, requires_grad=True)
flash_attention(q, q, q, impl="triton").sum().backward()
print(runs_gluon(torch.device("cpu")), any("gluon" in name for name in sys.modules if name.startswith("cs336")))
"""
    found = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert found.stdout.split() == ["False", "False"]


@pytest.mark.parametrize("asked", ["by the argument", "with heads inside", "by torch", "not"])
def test_deterministic_reaches_the_backward(asked: str, monkeypatch: pytest.MonkeyPatch) -> None:
    told = []
    backward = planning.choose_backward
    monkeypatch.setattr(
        planning,
        "choose_backward",
        lambda request, *args: told.append(request.deterministic) or backward(request, *args),
    )
    q, k, v, grad_out = make_inputs(Shape((2,), 33, 33, 16), torch.float32)
    if asked == "with heads inside":
        inside = (x[None].transpose(1, 2) for x in (q, k, v))
        out = flash_attention_triton(*inside, deterministic=True)[0].transpose(0, 1)
    else:
        out = flash_attention(q, k, v, impl="triton", deterministic=asked == "by the argument")
    monkeypatch.setattr(torch, "are_deterministic_algorithms_enabled", lambda: asked == "by torch")
    torch.autograd.grad(out, (q, k, v), grad_out)
    assert told == [asked != "not"]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("d", "dtype"),
    [
        *((d, dtype) for d in (16, 64, 80, 128) for dtype in ("bfloat16", "float16", "float32")),
        (32, "float32"),
    ],
)
def test_they_compile_without_spills(d: int, dtype: str) -> None:
    command = [sys.executable, "-m", "tests.attention.hopper_compiled", str(d), dtype]
    environment = os.environ | {"TRITON_INTERPRET": "0"}
    found = subprocess.run(command, capture_output=True, text=True, check=True, env=environment)
    kernels = json.loads(found.stdout)
    assert len(kernels) == (42 if dtype == "float32" else 38 if d <= 64 else 28)  # as many as the tables hold
    assert len({(name.partition(" ")[0], " causal " in name) for name in kernels}) == 4
    for name, one in kernels.items():
        # The backward of 128 spills addresses before its loop, and the causal one no more than when it was measured;
        # lengths that no tile divides are two branches more.
        allowed = 150 if d == 128 and "bwd" in name else 32 if "333" in name else 0
        if dtype == "float32":
            allowed = 160 if d <= 64 else 700
        assert one["spilled_bytes"] <= allowed and not one["serialized"], (name, one)
        is_alone = "alone" in name or (d > 64 and ("1 tiles" in name or "2 tiles" in name))
        most = 255 if is_alone else 168
        assert one["registers"] <= most and one["shared_bytes"] <= 227 * 2**10, (name, one)
