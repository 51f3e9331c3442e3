"""A fully sharded step as a workload: the bytes of its closed forms, and the refusal of a wrong step."""

from unittest.mock import patch

import pytest
import torch.distributed as dist

from cs336_systems import training
from cs336_systems.accounting import fully_sharded as accounting
from cs336_systems.configs import ModelConfig
from cs336_systems.distributed import averages
from perf.workloads import build, fully_sharded
from perf.workloads.workload import WrongResult
from tests.distributed.ranks import spawn

STEP = {"size": "tiny", "context_length": 16, "batch": 4, "precision": "fp32", "variant": "eager"}
STEP |= {"compute_dtype": "float32", "world_size": 2}


def with_gradients_off_by(factor):
    def broken(start_average_of_rows):
        def start(gradients, *args):
            return start_average_of_rows([gradient * factor for gradient in gradients], *args)

        return start

    return broken


def with_a_higher_rate(adamw):
    return lambda model, lr=1e-3, *args, **kwargs: adamw(model, 1.1 * lr, *args, **kwargs)


FAULTS = {
    "nothing": (training, "make_train_step", lambda made: made, "nothing"),
    "nothing, alone": (training, "make_train_step", lambda made: made, "nothing"),
    "another rate": (training, "adamw", with_a_higher_rate, "AdamW"),
    "1 % more": (averages, "start_average_of_rows", with_gradients_off_by(1.01), "the gradient"),
}

MODES = {"nothing": "exposed", "nothing, alone": "alone", "another rate": "step", "1 % more": "gradients"}


def check_with_a_fault(rank, fault):
    """Return the errors of the checks of ours and torch's, and what ours moved over the closed forms' bytes."""
    owner, name, broken, _ = FAULTS[fault]
    errors, ratios = [], []
    with patch.object(owner, name, broken(getattr(owner, name))):
        for sharding in ("prefetch_2", "torch"):
            work = build("fully_sharded", STEP | {"sharding": sharding, "mode": MODES[fault]}, "cpu")
            for _ in range(2):
                work.run()
            if work.without:
                work.without()
            facts = work.facts()
            if "gathered_bytes" in facts:
                tiny = ModelConfig(*fully_sharded.SIZES["tiny"])
                ratios.append(facts["gathered_bytes"] / accounting.gathered_bytes(tiny, 2, 4, 2))
                ratios.append(facts["scattered_bytes"] / accounting.scattered_bytes(tiny, 2, 4))
                ratios.append(facts["parameter_bytes"] * 3 / accounting.lasting_bytes(tiny, 2))
            try:
                work.check()
                errors.append("nothing")
            except WrongResult as error:
                errors.append(str(error))
            dist.barrier()
    return errors, ratios


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fully_sharded_step_moves_the_bytes_of_the_closed_forms_and_a_wrong_one_gets_no_time(fault):
    for (ours, torchs), ratios in spawn(check_with_a_fault, 2, fault):
        if MODES[fault] != "alone":  # which takes no sharded steps, of which later ones gather less
            assert ratios == [1, 1, 1]
        assert FAULTS[fault][3] in ours
        assert torchs == "nothing" or (fault == "another rate" and "AdamW" in torchs)


def check_of_bfloat16_weights(rank):
    """Return the error of a step in fp32 with weights gathered in bfloat16, by mode."""
    params = STEP | {"sharding": "prefetch_1", "compute_dtype": "bfloat16"}
    return [build("fully_sharded", params | {"mode": mode}, "cpu").check() for mode in ("step", "alone")]


def test_weights_in_bfloat16_are_held_to_its_tolerance_whatever_the_precision():
    for errors in spawn(check_of_bfloat16_weights, 2):
        assert all(1e-4 < error < fully_sharded.GRADIENT_TOLERANCE["bf16"] for error in errors)
