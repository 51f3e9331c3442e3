"""Data parallelism with one all-reduce per parameter, through the course's interfaces of 2025 and 2026."""

import pytest

from tests import adapters
from tests.distributed.course import check_against_single_process
from tests.distributed.models import Tied, Toy

EDITIONS = {
    "2025": (adapters.get_ddp_individual_parameters, adapters.ddp_individual_parameters_on_after_backward),
    "2026": (adapters.get_ddp, adapters.ddp_on_after_backward),
}


@pytest.mark.parametrize("model", [Toy, Tied])
@pytest.mark.parametrize("edition", EDITIONS)
def test_training_equals_a_single_process(model, edition):
    wrap, on_after_backward = EDITIONS[edition]
    check_against_single_process(model, wrap, (), None, on_after_backward)
