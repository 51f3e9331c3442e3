"""The sharded step's closed forms: parts that are known from elsewhere, and the leaderboard's numbers."""

from cs336_systems.accounting.compute import causal_step_flops, matmul_weights, parameters
from cs336_systems.accounting.sharded_step import best_checkpoint_every, peak_by_phase, rank_flops, rank_seconds
from cs336_systems.configs import MODEL_CONFIGS

SIZE = MODEL_CONFIGS["8B"]
CASE = (SIZE, 1, 32_768)
OPTIONS = {"num_ranks": 2, "chunk_size": 4096}


def test_a_rank_of_n_has_the_nth_part_of_all_states():
    for ranks in (1, 2, 8):
        phases = peak_by_phase(*CASE, num_ranks=ranks, chunk_size=4096, checkpoint_every=1)
        norms = 16 * (2 * SIZE.num_layers + 1) * SIZE.d_model
        assert abs(phases["optimizer"] - 16 * parameters(SIZE) / ranks) <= norms
        assert max(phases.values()) < 16 * parameters(SIZE) / ranks + 20e9


def test_groups_are_recomputed_but_the_last():
    again = rank_flops(*CASE, checkpoint_every=1) - rank_flops(*CASE, checkpoint_every=34)
    matrices = matmul_weights(SIZE) - SIZE.vocab_size * SIZE.d_model
    assert again == 33 * (2 * matrices // 34 * 32_768 + 2 * 32_768**2 * SIZE.d_model)
    assert 2 * rank_flops(*CASE, checkpoint_every=34) == causal_step_flops(SIZE, 2, 32_768)
    seconds = rank_seconds(*CASE, num_ranks=2, checkpoint_every=34, flops_per_s=1e15, bytes_per_s=1e12)
    assert round(seconds - rank_flops(*CASE, checkpoint_every=34) / 1e15, 3) == round(14 * parameters(SIZE) / 1e12, 3)


def test_the_best_group_has_the_lowest_peak_and_recomputes_least():
    for layers in (1, 5, 34):
        config = type(SIZE)(**(vars(SIZE) | {"num_layers": layers}))
        peaks = [
            max(peak_by_phase(config, 1, 32_768, checkpoint_every=every, **OPTIONS).values())
            for every in range(1, layers + 1)
        ]
        best = best_checkpoint_every(config, 1, 32_768, **OPTIONS)
        assert peaks[best - 1] == min(peaks)
        assert min(peaks) not in peaks[best:]
