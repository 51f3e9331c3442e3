"""One attention and the large tensors of a model, at the course's shapes."""

import pytest

from cs336_systems.accounting import attention, roofline
from cs336_systems.accounting.kept import hidden_bytes, logits_bytes, residual_stream_bytes
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
    assert ratio * 137 / 292 == pytest.approx(24, abs=0.1)  # the runtimes, microseconds, in notes of others


@pytest.mark.parametrize(
    ("seq_len", "residual", "scores", "hidden", "logits"),
    [(128, 5, 8, 20, 19.5), (256, 10, 32, 40, 39.1), (512, 20, 128, 80, 78.1), (2048, 80, 2048, 320, 312.5)],
)
def test_the_largest_tensors_of_2_7b(seq_len, residual, scores, hidden, logits):
    assert residual_stream_bytes(BIG, 4, seq_len) == residual * MIB
    assert attention.scores_bytes(4 * BIG.num_heads, seq_len) == scores * MIB
    assert hidden_bytes(BIG, 4, seq_len) == hidden * MIB
    assert logits_bytes(BIG, 4, seq_len) / MIB == pytest.approx(logits, abs=0.05)


def test_its_largest_weights():
    assert 4 * BIG.d_model * BIG.d_ff == 100 * MIB
    assert 4 * BIG.d_model * BIG.vocab_size / MIB == pytest.approx(97.7, abs=0.05)


def test_the_roofline_takes_the_longer_of_the_two():
    assert roofline.seconds(6e12, 1e9, 3e12, 1e9) == 2.0
    assert roofline.seconds(6e12, 9e9, 3e12, 1e9) == 9.0
    assert roofline.ridge(989e12, 4.8e12) == pytest.approx(206, abs=0.1)
    flops, moved = attention.matmul_flops(1, 16384, 128), attention.flash_least_bytes(1, 16384, 128)
    assert flops / moved > roofline.ridge(989e12, 4.8e12), "a long flash forward is limited by arithmetic"
    assert roofline.optimizer_bytes(1000) == 28_000
