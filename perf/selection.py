"""The classes that asv measures, and named sets of their cases: each is one pattern for `asv run -b`."""

import ast
import functools
import importlib
import pkgutil
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import click

from perf import benchmarks
from perf.harness.case import Case
from perf.harness.declaration import problem_of_class
from perf.harness.records import CaseResult
from perf.harness.suite import cases_of, is_selected, methods_of, names_of
from perf.workloads import attention_impls

SETS = {
    # At most 60 cases: our kernels at the shapes that a kernel author checks first, and one control.
    "history": (
        r"attention\.FlashAttention\.track_\w+\((1024|8192|65536), (64|128), 'bfloat16', '\w+', 'triton'\)"
        r"|attention\.FlashAttention\.track_\w+\(8192, (64|128), 'float32', '\w+', 'triton'\)"
        r"|controls\.Controls\.track_time\('matmul', 'cold'\)"
    ),
    "quick": (
        r"attention\.FlashAttention\.track_\w+\((1024|8192), 64, 'bfloat16', '\w+', '\w+'\)"
        r"|controls\.Controls\.track_time\('(matmul|copy)', 'cold'\)"
    ),
    # Judges a pull request: 49 cases of our code, ten minutes for both commits. A training step counts by its
    # device-busy time: the host time of the small model varies by 10 % between samples, too much for ten minutes.
    "pr": (
        r"attention\.FlashAttention\.track_\w+\((1024|8192|65536), (64|128), 'bfloat16', '(for|back)ward', 'triton'\)"
        r"|attention\.FlashAttention\.track_\w+\(8192, (64|128), 'float32', '(for|back)ward', 'triton'\)"
        r"|attention\.ShortAttention\.track_time\(\d+, \d+, 'bfloat16', 'forward_backward', 'triton'\)"
        r"|attention\.MultiHeadAttention\.track_\w+\(\d+, 2048, (512|4096|16384), \d+, True, .*, 'triton'\)"
        r"|attention\.Leaderboard\.track_\w+\(.*'triton'\)"
        r"|host\.AttentionCall\.track_time\(1024, (64|128), 'bfloat16', 'forward_backward', 'flash_attention'\)"
        r"|linear_cross_entropy\.LinearCrossEntropy\.track_\w+\(8192, 4096, \d+, .*, 'forward_backward', 'fused'\)"
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
"""Name -> regular expression, searched in `module.Class.method(params)` as asv does."""


def shard(pattern: str, number: int, count: int) -> str:
    """Return the pattern of shard `number` (from 1) of `count`: every case that `pattern` selects is in one shard.

    Cases are dealt out in turn, because neighbours in a grid take similar times.
    """
    instances = [cls() for _, cls in sound_classes()]
    selected = [case for instance in instances for case in cases_of(instance) if is_selected(case, instance, [pattern])]
    return pattern_of(selected[number - 1 :: count])


def pattern_of(cases: Iterable[Case]) -> str:
    """Return a pattern that selects exactly these cases, every series of theirs included."""
    params: dict[str, list[str]] = {}
    for case in cases:
        params.setdefault(case.benchmark, []).append(re.escape(", ".join(map(repr, case.params.values()))))
    parts = (rf"^{re.escape(name)}\.\w+\((?:{'|'.join(values)})\)$" for name, values in params.items())
    return "|".join(parts) or "(?!)"


def sound_classes() -> Iterator[tuple[str, Any]]:
    """Yield (`module.Class`, class) for each class of asv's. Raises `click.ClickException` if one cannot be measured.

    For a selection that would else be smaller, and its rows lost, without a word.
    """
    for name, cls, reason in asv_classes():
        if cls is None:
            raise click.ClickException(reason)
        yield name, cls


def asv_classes() -> Iterator[tuple[str, Any, str]]:
    """Yield (`module.Class`, class, "") for each class of asv's; (its name or module, None, reason) if it is unsound.

    The reason is a line: an import that fails, or an attribute that is missing or not allowed.
    """
    for name in sorted(module.name for module in pkgutil.iter_modules(benchmarks.__path__)):
        try:
            module = importlib.import_module(f"perf.benchmarks.{name}")
        except Exception as error:
            yield name, None, f"perf/benchmarks/{name}.py: {type(error).__name__}: {error}"
            continue
        for cls in vars(module).values():
            if not _is_benchmark(cls) or cls.__module__ != module.__name__:
                continue
            if problem := problem_of_class(cls):
                yield f"{name}.{cls.__name__}", None, f"perf/benchmarks/{name}.py: {cls.__name__}: {problem}"
            else:
                yield f"{name}.{cls.__name__}", cls, ""


def _is_benchmark(value: Any) -> bool:
    """Return whether asv collects a value of a module: a class with a series, unless its name has an underscore."""
    if not isinstance(value, type) or value.__name__.startswith("_"):
        return False
    return bool(methods_of(value))


def names(case: Case | CaseResult) -> list[str]:
    """Return the names by which a pattern selects a case; see `names_of`. A removed class may have had any method."""
    classes = _class_by_name()
    of = [classes[case.benchmark]] if case.benchmark in classes else classes.values()
    return names_of(case.key, {method for cls in of for method in methods_of(cls)})


def params_of(key: str) -> dict[str, Any] | None:
    """Return the parameters of a `Case.key`; None where today's class has not as many axes, or is gone."""
    benchmark, _, values = key.removesuffix(")").partition("(")
    axes = getattr(_class_by_name().get(benchmark), "param_names", ())
    try:
        return dict(zip(axes, ast.literal_eval(f"({values},)"), strict=True))
    except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError):
        return None


Negligible = Mapping[str, tuple[float, float]]
"""Negligible change of time of each class: the larger of this share and these seconds."""


def is_control(benchmark: str) -> bool:
    """Return the attribute `is_control` of `module.Class`: it runs no project code. False for a removed class."""
    return getattr(_class_by_name().get(benchmark), "is_control", False)


PEERS = frozenset({*attention_impls.PEERS, "eager", "compiled", "torch"})
"""PyTorch's implementations of attention and of the loss: a change of their times says nothing about a commit."""


def runs_project_code(benchmark: str, params: dict[str, Any]) -> bool:
    """Return whether a case of `module.Class` measures project code: it is neither a control nor a peer's.

    What torch's data parallelism, sharding and optimizer do to our model is a peer's.
    """
    is_torch = str(params.get("strategy", params.get("sharding", ""))).startswith("torch")
    return not (is_control(benchmark) or is_torch or params.get("impl") in PEERS)


@functools.cache
def _class_by_name() -> dict[str, Any]:
    return {name: cls for name, cls, _ in asv_classes() if cls}
