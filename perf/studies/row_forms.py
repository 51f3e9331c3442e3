"""The form of the rows in every study's document, checked where a file is written (`document`) or read (`on_file`).

A study writes all fields that are not `NotRequired`. An older file may lack some; those that it has must be of these
types.
"""

import math
from collections.abc import Iterable, Iterator
from typing import Annotated, Any, Literal, NotRequired, get_origin

from perf.forms import matches, positive, written
from perf.harness.status import Status
from perf.studies.attention.groups import GROUPS, document_of
from perf.studies.lm import ATTENTIONS, PRECISIONS, SIZES, VARIANTS
from perf.studies.rows import Spans
from perf.workloads import fully_sharded, sharded_optimizer
from perf.workloads.data_parallel import STRATEGIES

Form = dict[str, Any]
"""The type of each field; other fields may be of any."""

_Samples = list[list[float]]  # seconds of every sample, a list for each process
_Count = Annotated[int, positive]
_Mebibytes = Annotated[float, positive]
_Seconds = NotRequired[list[float]]
_Bytes = NotRequired[_Count | None]

_Size: Any = Literal[SIZES]
_Precision: Any = Literal[PRECISIONS]
_Variant: Any = Literal[VARIANTS]
_Strategy: Any = Literal[STRATEGIES]
_Way: Any = Literal[(*STRATEGIES, *(f"fully_sharded/{name}" for name in fully_sharded.SHARDINGS))]

_STATUS: Form = {"status": Status, "reason": NotRequired[str]}
_STEP: Form = {"size": _Size, "precision": _Precision, "variant": _Variant}
_MODEL: Form = _STATUS | _STEP | {"attention": Literal[ATTENTIONS]}
_MODEL |= {"context": _Count, "predicted_bytes": NotRequired[_Count]}
_PHASES: Form = _MODEL | dict.fromkeys(("forward_s", "backward_s", "optimizer_s"), _Seconds) | {"peak_bytes": _Bytes}
_FIRST_AND_MEDIAN: Form = dict.fromkeys(("forward_first_s", "forward_s"), NotRequired[float])

_ARM: Form = _STATUS | {  # an implementation of attention in one cell
    **dict.fromkeys(("group", "dtype", "mode", "clock", "cache", "impl"), str),
    **dict.fromkeys(("batch", "num_heads", "seq_len", "d"), _Count),
    "kv_heads": NotRequired[_Count],  # absent from older rows, where it is num_heads
    "is_causal": bool,
    "role": Literal["ours", "against"],
    "samples_s": _Samples,
    "flops": NotRequired[float],
    "error": NotRequired[float],
    "sm_mhz": NotRequired[list[float]],
}

_PAIR: Form = _STATUS | {"size": _Size, "ours": str, "against": str}  # two ways to run a step, sampled in turn
_PAIR |= {"batch": _Count, "ours_s": _Samples, "against_s": _Samples}
_RANKED: Form = _STEP | dict.fromkeys(("context_length", "batch", "world_size"), _Count)  # a step on several ranks
_RANKED_PAIR: Form = _PAIR | _RANKED | dict.fromkeys(("ours_busy", "against_busy"), list[float])  # the GPU's busy share

_CASE: Form = _STATUS | {  # measured as those of the suite are
    "device": Literal["cuda", "cpu"],
    "world_size": _Count,
    "error": NotRequired[float],
    "facts": NotRequired[dict[str, float]],
    "peak_bytes": NotRequired[_Count],
}
_SAMPLED: Form = _CASE | {"samples_s": _Seconds}

FORMS: dict[str, Form] = {
    "end-to-end": _PHASES,
    "warm-up": _PHASES,
    "kernels": _MODEL,
    "memory": _MODEL
    | dict.fromkeys(("batch", "d_model", "residual_bytes"), NotRequired[int])
    | dict.fromkeys(("forward", "step"), NotRequired[dict[str, Any]]),
    "checkpointing": _MODEL
    | dict.fromkeys(("batch", "recomputed", "kept_bytes", "flops"), int)
    | {"every": int | None, "mode": str, "offload": bool, "step_s": _Seconds, "peak_bytes": _Bytes},
    "compile-model": _MODEL
    | {"part": str}
    | _FIRST_AND_MEDIAN
    | dict.fromkeys(("step_first_s", "step_s"), NotRequired[float]),
    "compile-attention": _STATUS
    | {"part": str, "seq_len": _Count, "d": _Count, "variant": str}
    | _FIRST_AND_MEDIAN
    | dict.fromkeys(("backward_first_s", "backward_s"), NotRequired[float]),
    **dict.fromkeys(map(document_of, GROUPS), _ARM),
    "tiles": _ARM
    | {"entry": str, "against": str, "is_present": bool}
    | dict.fromkeys(("registers", "spills", "shared_bytes"), NotRequired[int]),
    "attention-memory": _STATUS
    | {"seq_len": _Count, "d": _Count, "predicted": dict[str, int], "measured": NotRequired[dict[str, int]]},
    "train-step": _PAIR | {"context": _Count, "against_busy_s": _Samples},
    "parallel-step": _RANKED_PAIR,
    "fsdp": _RANKED_PAIR,
    "all-reduce": _SAMPLED | {"megabytes": _Count},
    "ddp": _CASE
    | _RANKED
    | {"strategy": _Strategy, "bucket_size_mb": _Mebibytes, "step_s": _Seconds, "exposed_s": _Seconds},
    "sharding": _SAMPLED | _RANKED | {"sharding": Literal[sharded_optimizer.SHARDINGS]},
    "leaderboard-2026": _SAMPLED
    | dict.fromkeys(("d_model", "d_ff", "num_layers", "num_heads", "vocab_size", "context_length", "batch"), _Count)
    | dict.fromkeys(("predicted_bytes", "whole_predicted_bytes"), _Count)
    | dict.fromkeys(("checkpoint_every", "prefetch"), int)
    | {"precision": _Precision, "variant": _Variant, "attention": str}
    | dict.fromkeys(("predicted_s", "whole_predicted_s"), float),
    "overlap": _RANKED
    | {"strategy": _Way, "rank": int, "bucket_size_mb": NotRequired[_Mebibytes]}
    | {"compute": Spans, "communication": Spans},
    "ddp-equivalence": {"strategy": _Strategy, "world_size": _Count, "equal_on_ranks": bool, "difference": float},
    "precision": {"part": str, "status": NotRequired[Status], "peak_bytes": _Bytes, "losses": NotRequired[list[float]]}
    | dict.fromkeys(("value", "error", "representation_error", "accumulation_error"), NotRequired[float])
    | dict.fromkeys(("variance of +-300", "variance of +-0.0001", "largest", "scale"), NotRequired[float])
    | dict.fromkeys(("samples_per_s", "step_mean_s", "step_median_s", "step_sd_s", "final_loss"), NotRequired[float])
    | dict.fromkeys(("terms", "bits", "skipped_steps", "nonzero_in_fp32", "zero_here"), NotRequired[int]),
    "noise": {"design": str, "process": int, "case": str, "allocation": NotRequired[int], "a": float, "b": float},
}
"""Forms by name of the document; the rows of `precision` differ by part. `clock` holds cells as they are shown, and has
no form but that of `_ANY`."""

_ANY: Form = {"status": NotRequired[Status]}


_TIMES = ("samples_s", "ours_s", "against_s", "forward_s", "backward_s", "optimizer_s", "step_s")
"""Those that every measured row has above 0: an exposed time may be below, and no GPU is busy beside a CPU."""


def faults(name: str, rows: Iterable[Any], *, whole: bool) -> Iterator[str]:
    """Yield the faults of rows of the document `name`.

    With `whole`, as a study writes them, a missing field is one; without, times that a measured row lacks are.
    """
    for number, row in enumerate(rows):
        if not whole and name in FORMS and row.get("status", "ok") == "ok":
            for field in _TIMES:
                if field in row and not _are_times(row[field]):
                    yield f"{name}, row {number}: {field} is {row[field]!r:.40}; allowed: seconds above 0"
        for field, kind in FORMS.get(name, _ANY).items():
            if field not in row:
                if whole and get_origin(kind) is not NotRequired:
                    yield f"{name}, row {number}: {field} is missing"
            elif not matches(row[field], kind):
                yield f"{name}, row {number}: {field} is {row[field]!r:.40}; allowed: {written(kind)}"


def _are_times(value: Any) -> bool:
    if isinstance(value, list):
        return value != [] and all(map(_are_times, value))
    return isinstance(value, int | float) and 0 < value < math.inf
