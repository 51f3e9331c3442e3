"""Training with states divided over N ranks (ZeRO, Rajbhandari et al. 2020): memory and traffic of a rank.

Parameters, gradients and Adam's two moments are float32, 4P each, as the course trains.
"""

from typing import Literal, get_args

from cs336_systems.checks import require_one_of

Divided = Literal["nothing", "moments", "gradients", "parameters"]
"""nothing: data parallelism. moments: ZeRO-1, the course's sharded optimizer. gradients: ZeRO-2. parameters: FSDP."""


def state_bytes(num_parameters: int, num_ranks: int, divided: Divided) -> float:
    """Size of a rank's states after its first step: 16P, 8P + 8P/N, 4P + 12P/N or 16P/N.

    Each choice of `divided` also divides the ones before it. For FSDP the RMSNorm weights, which stay whole, and the
    all-gather buffers are left out.
    """
    require_one_of(get_args(Divided), divided=divided)
    whole = {"nothing": 16, "moments": 8, "gradients": 4, "parameters": 0}[divided]
    return num_parameters * (whole + (16 - whole) / num_ranks)


def states_by_phase(num_parameters: int, num_ranks: int, divided: Divided) -> dict[str, float]:
    """Size of a rank's states in its first step: after init (4P), before (8P) and after the optimizer's step.

    `divided` is "nothing" or "moments". Source: the course, optimizer_state_sharding_accounting.
    """
    require_one_of(("nothing", "moments"), divided=divided)
    return {
        "after init": 4 * num_parameters,
        "before step": 8 * num_parameters,
        "after step": state_bytes(num_parameters, num_ranks, divided),
    }


def exchanged_elements(num_parameters: int, divided: Divided, *, reduces_gradients: bool = True) -> int:
    """Elements that a rank exchanges in a step: 2P, or 3P for FSDP. A ring's reduce-scatter or all-gather counts P.

    Without `reduces_gradients`, as in the course, divided moments need 3P: an all-reduce of gradients, which most ranks
    then drop, and the broadcast of parameters.
    """
    require_one_of(get_args(Divided), divided=divided)
    if divided == "parameters":
        return 3 * num_parameters
    return (2 if reduces_gradients or divided != "moments" else 3) * num_parameters
