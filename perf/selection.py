"""What asv measures here, and selections of it: each is one pattern for `asv run -b`."""

import functools
import importlib
import pkgutil
import re
from collections.abc import Iterator
from typing import Any

from perf import benchmarks
from perf.harness.suite import cases_of, is_selected

SETS = {
    # At most 60 cells: ours where a kernel author looks first, and one control.
    "history": (
        r"attention\.FlashAttention\.track_\w+\((1024|8192|65536), (64|128), 'bfloat16', '\w+', 'triton'\)"
        r"|attention\.FlashAttention\.track_\w+\(8192, (64|128), 'float32', '\w+', 'triton'\)"
        r"|controls\.Controls\.track_time\('matmul', 'cold'\)"
    ),
    "quick": (
        r"attention\.FlashAttention\.track_\w+\((1024|8192), 64, 'bfloat16', '\w+', '\w+'\)"
        r"|controls\.Controls\.track_time\('(matmul|copy)', 'cold'\)"
    ),
    # What a pull request is judged by: ours at 45 places, in ten minutes with both commits. Of a training step what the
    # device does: what small's host needs for it moves by 10 % between two samples, and shows nothing in that time.
    "pr": (
        r"attention\.FlashAttention\.track_\w+\((1024|8192|65536), (64|128), 'bfloat16', '(for|back)ward', 'triton'\)"
        r"|attention\.FlashAttention\.track_\w+\(8192, (64|128), 'float32', '(for|back)ward', 'triton'\)"
        r"|attention\.ShortAttention\.track_time\(\d+, \d+, 'bfloat16', 'forward_backward', 'triton'\)"
        r"|attention\.MultiHeadAttention\.track_\w+\(\d+, 2048, (512|4096|16384), \d+, True, .*, 'triton'\)"
        r"|attention\.Leaderboard\.track_\w+\(.*'triton'\)"
        r"|transformer\.Transformer\.track_\w+\('small', 512, 'bf16', 'eager', 'reference', '\w+', 'device_busy'\)"
        r"|transformer\.TransformerVariants\.track_\w+\('small', 512, 'bf16\w*', '\w*cuda_graph', 'triton'"
    ),
    "demo": (
        r"smoke\.(SmokeAttention|SmokeControls)\.|smoke\.SmokeTransformer\..*'fp32'.*'step'"
        r"|smoke\.SmokeDataParallel\..*'(naive|bucketed)'.*'step'"
    ),
    "smoke": r"^smoke\.",
    "gpu": r"^(?!smoke\.)",
}
"""Name -> regular expression, searched for in `module.Class.method(params)` as asv does."""


def shard(pattern: str, number: int, count: int) -> str:
    """The pattern of part `number` (from 1) of `count` of what `pattern` selects: every case is in exactly one part.

    Cases are dealt out in turn, because neighbours in a grid cost alike.
    """
    benchmarks = [cls() for _, cls, _ in asv_classes() if cls]
    chosen = [case for one in benchmarks for case in cases_of(one) if is_selected(case, one, [pattern])]
    cells: dict[str, list[str]] = {}
    for case in chosen[number - 1 :: count]:
        cells.setdefault(case.benchmark, []).append(re.escape(", ".join(map(repr, case.params.values()))))
    parts = (rf"^{re.escape(name)}\.\w+\((?:{'|'.join(values)})\)$" for name, values in cells.items())
    return "|".join(parts) or "(?!)"


def asv_classes() -> Iterator[tuple[str, Any, str]]:
    """`module.Class`, the class, "" for everything that asv measures; or a module, None and why it cannot be read."""
    for found in sorted(pkgutil.iter_modules(benchmarks.__path__), key=lambda module: module.name):
        try:
            module = importlib.import_module(f"perf.benchmarks.{found.name}")
        except Exception as error:
            yield found.name, None, f"perf/benchmarks/{found.name}.py: {type(error).__name__}: {error}"
            continue
        for cls in vars(module).values():
            if isinstance(cls, type) and cls.__module__ == module.__name__ and "setup_cache" in vars(cls):
                yield f"{found.name}.{cls.__name__}", cls, ""


def is_control(benchmark: str) -> bool:
    """Whether the class `module.Class` runs no project code: its attribute `is_control`. False for a removed class."""
    return getattr(_class_by_name().get(benchmark), "is_control", False)


PEERS = frozenset({"sdpa", "sdpa_flash", "sdpa_cudnn", "sdpa_efficient", "sdpa_math", "flex"})
"""Implementations of attention that are PyTorch's: what they do says nothing of a commit."""


def runs_project_code(benchmark: str, params: dict[str, Any]) -> bool:
    """Whether a case of the class `module.Class` does: it is no control, and no peer's."""
    return not is_control(benchmark) and params.get("impl") not in PEERS


@functools.cache
def _class_by_name() -> dict[str, Any]:
    return {name: cls for name, cls, _ in asv_classes() if cls}
