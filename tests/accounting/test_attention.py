"""Memory of one attention and of the large tensors of a model, at the course's shapes."""

import pytest

from cs336_systems.accounting import attention
from cs336_systems.accounting.compute import optimizer_bytes
from cs336_systems.accounting.kept import logits_bytes, residual_stream_bytes
from cs336_systems.configs import MODEL_CONFIGS

GIB, MIB = 2**30, 2**20
BIG = MODEL_CONFIGS["2.7B"]


@pytest.mark.parametrize(
    ("seq_len", "mib"), [(256, 2), (1024, 32), (4096, 512), (8192, 2048), (16384, 8192), (32768, 32768)]
)
def test_one_square_matrix_for_each_of_eight_sequences(seq_len, mib):
    assert attention.scores_bytes(8, seq_len) == mib * MIB


@pytest.mark.parametrize(("head_dim", "gib"), [(16, 16.03), (32, 16.05), (64, 16.10), (128, 16.19)])
def test_what_the_courses_attention_keeps(head_dim, gib):
    assert attention.course_kept_bytes(8, 16384, head_dim) / GIB == pytest.approx(gib, abs=5.5e-3)
    saved = attention.course_kept_bytes(8, 16384, head_dim) - attention.kept_bytes(8, 16384, head_dim)
    assert saved == attention.scores_bytes(8, 16384) + 12 * 8 * 16384


def test_where_it_fails_first():
    assert attention.course_forward_peak_bytes(8, 16384) == 32 * GIB
    assert attention.course_forward_peak_bytes(8, 16384) / 1e9 == pytest.approx(34.4, abs=0.05)
    fails = {
        card: [n for n in (256, 1024, 4096, 8192, 16384) if attention.course_forward_peak_bytes(8, n) > card * 1e9]
        for card in (24, 80, 141)
    }
    assert fails == {24: [16384], 80: [], 141: []}
    assert attention.course_forward_peak_bytes(8, 32768) == 128 * GIB


def test_flash_keeps_no_square():
    assert attention.flash_kept_bytes(8, 16384, 64) == 0.125 * GIB + 0.5 * MIB


def test_softmax_is_little_arithmetic():
    ratio = attention.matmul_flops(1, 512, 64) / attention.softmax_flops(1, 512)
    assert ratio == pytest.approx(51, abs=0.5)
    assert ratio * 137 / 292 == pytest.approx(24, abs=0.1)  # published runtimes in microseconds


@pytest.mark.parametrize(
    ("seq_len", "residual", "scores", "logits"),
    [(128, 5, 8, 19.5), (256, 10, 32, 39.1), (512, 20, 128, 78.1), (2048, 80, 2048, 312.5)],
)
def test_the_largest_tensors_of_2_7b(seq_len, residual, scores, logits):
    assert residual_stream_bytes(BIG, 4, seq_len) == residual * MIB
    assert attention.scores_bytes(4 * BIG.num_heads, seq_len) == scores * MIB
    assert logits_bytes(BIG, 4, seq_len) / MIB == pytest.approx(logits, abs=0.05)


def test_adamw_moves_seven_float32_tensors():
    assert optimizer_bytes(1000) == 28_000
