"""The bucket model at its example: xl's gradients at 200 GB/s and 20 us per call."""

import pytest

from cs336_systems.accounting.collectives import best_bucket_bytes, exposed_seconds
from cs336_systems.accounting.compute import parameters
from cs336_systems.configs import MODEL_CONFIGS

SENT, BANDWIDTH, OVERHEAD = 4 * parameters(MODEL_CONFIGS["xl"]), 200e9, 20e-6


@pytest.mark.parametrize(("megabytes", "milliseconds"), [(1, 159.9), (10, 16.05), (100, 2.10), (1000, 5.16)])
def test_what_a_bucket_size_costs(megabytes, milliseconds):
    assert exposed_seconds(SENT, SENT / (megabytes * 1e6), BANDWIDTH, OVERHEAD) * 1e3 == pytest.approx(
        milliseconds, rel=3e-3
    )


def test_the_best_size_and_what_it_costs():
    best = best_bucket_bytes(SENT, BANDWIDTH, OVERHEAD)
    assert best == pytest.approx(178.8e6, rel=1e-3)
    assert exposed_seconds(SENT, SENT / best, BANDWIDTH, OVERHEAD) == pytest.approx(1.788e-3, rel=1e-3)
    for other in (0.5 * best, 2 * best):
        assert exposed_seconds(SENT, SENT / other, BANDWIDTH, OVERHEAD) > exposed_seconds(
            SENT, SENT / best, BANDWIDTH, OVERHEAD
        )
