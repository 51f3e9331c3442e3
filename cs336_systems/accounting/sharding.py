"""Training with states divided over N ranks: memory of a rank, and elements that it exchanges in a step.

float32 parameters, gradients and Adam's two moments, 4P each, as the course trains; `zero_bytes` has the mixed
precision of the paper (Rajbhandari et al. 2020, "ZeRO").
"""

from typing import Literal

Divided = Literal["nothing", "moments", "gradients", "parameters"]
"""nothing: data parallelism. moments: ZeRO-1, the course's sharded optimizer. gradients: ZeRO-2. parameters: FSDP."""


def state_bytes(num_parameters: int, num_ranks: int, divided: Divided) -> float:
    """Bytes of a rank after its first step: 16P, 8P + 8P/N, 4P + 12P/N or 16P/N; each divides what is before it too.

    FSDP's is without the RMSNorms' weights, which stay whole, and the buffers that gather others.
    """
    whole = {"nothing": 16, "moments": 8, "gradients": 4, "parameters": 0}[divided]
    return num_parameters * (whole + (16 - whole) / num_ranks)


def moments_of_memory(num_parameters: int, num_ranks: int, divided: Divided) -> dict[str, float]:
    """Bytes of a rank in its first step: when the model is made, before the optimizer's step, and after it.

    4P; 8P; then `state_bytes`. For what the course measures: divided is "nothing" or "moments".
    Source: the course, optimizer_state_sharding_accounting.
    """
    return {
        "after init": 4 * num_parameters,
        "before step": 8 * num_parameters,
        "after step": state_bytes(num_parameters, num_ranks, divided),
    }


def exchanged_elements(num_parameters: int, divided: Divided, *, reduces_gradients: bool = True) -> int:
    """Elements a step: 2P, and 3P for FSDP; each as a ring's reduce-scatter or all-gather counts P.

    Without `reduces_gradients` divided moments take 3P: an all-reduce of gradients that most ranks then drop, and the
    broadcast of parameters, as the course has it.
    """
    if divided == "parameters":
        return 3 * num_parameters
    return (2 if reduces_gradients or divided != "moments" else 3) * num_parameters


def zero_bytes(num_parameters: float, num_ranks: int, stage: int) -> float:
    """Bytes of a rank in the paper's mixed precision: half-precision parameters and gradients, and 12 bytes of states.

    Stage 0: 16P. 1: 4P + 12P/N. 2: 2P + 14P/N. 3: 16P/N.
    """
    whole = (16, 4, 2, 0)[stage]
    return num_parameters * (whole + (16 - whole) / num_ranks)
