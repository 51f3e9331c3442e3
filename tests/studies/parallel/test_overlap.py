import pytest
import torch

from perf.studies.parallel import overlap
from tests.studies.running import run_study


def test_what_two_lanes_have_in_common():
    two, inner = [[0.0, 2.0], [3.0, 5.0]], [[1.0, 4.0]]
    assert overlap.common(two, inner) == overlap.common(inner, two) == 2.0
    assert overlap.common(two, two) == 4.0
    assert overlap.common(two, []) == overlap.common([], two) == overlap.common(two, [[2.0, 3.0], [7.0, 8.0]]) == 0.0
    assert overlap.common([[1.0, 2.0], [2.0, 4.0]], [[0.0, 3.0], [3.5, 9.0]]) == 2.5  # two that touch
    assert overlap.length([[0.0, 2.0], [3.0, 5.0]]) == 4.0


@pytest.mark.slow
@pytest.mark.skipif(torch.cuda.is_available(), reason="its defaults are a GPU's here")
def test_strategies_and_fully_sharded_steps_share_a_picture(tmp_path):
    steps = ["--strategy", "naive", "--fully-sharded", "prefetch_1", "--size", "tiny", "--context", "16"]
    rows, _ = run_study(tmp_path, "overlap", *steps)
    assert [(row["strategy"], row["rank"]) for row in rows] == [
        (strategy, rank) for strategy in ("naive", "fully_sharded/prefetch_1") for rank in (0, 1)
    ]
    assert all(row["compute"] and row["communication"] for row in rows)
    assert (tmp_path / "overlap.png").stat().st_size > 0
