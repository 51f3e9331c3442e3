"""Activations kept for the backward: the exact bytes of the unique storages that autograd saves."""

import itertools

import pytest

from cs336_systems import training
from cs336_systems.accounting.checkpointing import last_group
from cs336_systems.accounting.kept import (
    PRECISIONS,
    block_kept_bytes,
    model_kept_bytes,
    residual_stream_bytes,
)
from cs336_systems.configs import MODEL_CONFIGS, Checkpointing, ModelConfig
from cs336_systems.training import cross_entropy
from tests.accounting.counting import as_on_cuda, autocast, batch_of, build, kept, kind

CONFIG = ModelConfig(d_model=96, d_ff=160, num_layers=3, num_heads=4, vocab_size=176)
BATCH, SEQ_LEN = 3, 136  # all terms of the equations differ, and the last tile of flash attention is partial
RUNS = list(itertools.product(("reference", "pytorch", "sdpa"), ("fp32", "bf16")))


def on_the_cpu_more(impl, precision, norms, blocks):
    """Bytes that the CPU keeps beyond CUDA: x * scale of each RMSNorm, less softmax's float32 output under autocast."""
    scores = BATCH * CONFIG.num_heads * SEQ_LEN**2
    less = 4 * scores if (impl, precision) == ("reference", "bf16") else 0
    return norms * residual_stream_bytes(CONFIG, BATCH, SEQ_LEN) - blocks * less


def kept_by_a_block(impl, precision):
    model = build(CONFIG, SEQ_LEN, impl)
    block = model.layers[0]
    x = model.token_embeddings(batch_of(CONFIG, BATCH, SEQ_LEN)[0])
    with kept(*model.parameters(), *model.buffers()) as results, autocast(precision):
        block(x, model.cos, model.sin)
    return sum(results.values())


def kept_by_a_model(impl, precision, checkpointing):
    model = build(CONFIG, SEQ_LEN, impl, checkpointing)
    ids, targets = batch_of(CONFIG, BATCH, SEQ_LEN)
    with kept(*model.parameters(), *model.buffers(), ids, targets) as results, autocast(precision):
        cross_entropy(model(ids), targets)
    return sum(results.values())


@pytest.mark.parametrize(("impl", "precision"), RUNS)
def test_a_block_keeps_what_the_equation_says(impl, precision):
    expected = block_kept_bytes(CONFIG, BATCH, SEQ_LEN, attention=kind(impl), precision=precision)
    assert kept_by_a_block(impl, precision) == expected + on_the_cpu_more(impl, precision, 2, 1)
    with as_on_cuda():
        assert kept_by_a_block(impl, precision) == expected


@pytest.mark.parametrize("checkpointing", [None, Checkpointing(1), Checkpointing(2), Checkpointing(1, "nested")])
@pytest.mark.parametrize(("impl", "precision"), RUNS)
def test_a_model_keeps_what_the_equation_says(impl, precision, checkpointing):
    expected = model_kept_bytes(
        CONFIG, BATCH, SEQ_LEN, attention=kind(impl), precision=precision, checkpointing=checkpointing
    )
    blocks = last_group(CONFIG.num_layers, checkpointing)
    more = on_the_cpu_more(impl, precision, 2 * blocks + 1, blocks)
    assert kept_by_a_model(impl, precision, checkpointing) == expected + more
    with as_on_cuda():
        assert kept_by_a_model(impl, precision, checkpointing) == expected


@pytest.mark.parametrize(("num_heads", "seq_len"), [(1, 5), (4, 1), (1, 1), (4, 5)])
@pytest.mark.parametrize(("impl", "precision"), RUNS)
def test_heads_that_are_already_concatenated_are_not_copied(impl, precision, num_heads, seq_len):
    config = ModelConfig(d_model=96, d_ff=160, num_layers=2, num_heads=num_heads, vocab_size=176)
    model = build(config, seq_len, impl)
    ids, targets = batch_of(config, BATCH, seq_len)
    existing = (*model.parameters(), *model.buffers(), ids, targets)
    with as_on_cuda(), kept(*existing) as results, autocast(precision):
        cross_entropy(model(ids), targets)
    expected = model_kept_bytes(config, BATCH, seq_len, attention=kind(impl), precision=precision)
    assert sum(results.values()) == expected


def test_the_scores_dominate_a_long_context_and_flash_drops_them():
    eager, flash = (block_kept_bytes(MODEL_CONFIGS["2.7B"], 4, 2048, attention=name) for name in ("reference", "flash"))
    assert eager - flash == (2048 - 80 - 1) * 2**20 + 2048**2  # one T x T matrix and the mask against out and lse


def test_precisions_are_those_of_training():
    assert (*PRECISIONS, "bf16_weights") == training.PRECISIONS  # bf16_weights is not modelled


def test_what_is_unknown_is_refused():
    with pytest.raises(ValueError, match="attention='sdpa' was given; allowed: reference, flash"):
        block_kept_bytes(CONFIG, 1, 8, attention="sdpa")
    with pytest.raises(
        ValueError, match="attention='reference' was given with checkpoint_mode='selective'; allowed: fl"
    ):
        model_kept_bytes(CONFIG, 1, 8, checkpointing=Checkpointing(1, "selective"))
    with pytest.raises(ValueError, match="precision='fp8' was given; allowed: fp32, tf32, bf16, fp16"):
        model_kept_bytes(CONFIG, 1, 8, precision="fp8")
