"""Bucketed data parallelism, through the course's interface."""

import pytest

from tests.adapters import ddp_bucketed_on_after_backward, ddp_bucketed_on_train_batch_start, get_ddp_bucketed
from tests.distributed.course import check_against_single_process
from tests.distributed.models import Tied, Toy


@pytest.mark.parametrize("model", [Toy, Tied])
@pytest.mark.parametrize("bucket_size_mb", [0.0016, 0.0001, 0.01, None])
def test_bucketed_training_equals_a_single_process(model, bucket_size_mb):
    check_against_single_process(
        model,
        get_ddp_bucketed,
        (bucket_size_mb,),
        ddp_bucketed_on_train_batch_start,
        ddp_bucketed_on_after_backward,
    )
