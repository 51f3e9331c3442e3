"""Shared parts of the studies of the language model: options, training step, and its predicted memory."""

import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, ClassVar

import click

from perf.options import Count, Named, Terminated, gathered
from perf.studies.device import device_kind, memory_bytes, release
from perf.studies.progress import progress
from perf.studies.rows import Row, refusal
from perf.units import gib
from perf.workloads import imported, measured
from perf.workloads.transformer_state import CHECKPOINT_AXES
from perf.workloads.transformer_training import MATMUL_DTYPES, OURS, Training

SIZES_2025 = ("small", "medium", "large", "xl", "2.7B")
"""Of the handout of spring 2025, and what is measured by default."""

SIZES = ("tiny", *SIZES_2025, "10B")
PRECISIONS = tuple(MATMUL_DTYPES)
WITH_PHASES = ("eager", "compiled_blocks", "compiled")
VARIANTS = (*WITH_PHASES, "cuda_graph", "compiled_cuda_graph")  # a CUDA graph holds a whole step
ATTENTIONS = ("reference", "pytorch", "triton", "sdpa")


@dataclass(frozen=True)
class Setting:
    """One model on one batch, in one way to run it."""

    size: str
    context_length: int
    batch: int
    precision: str
    variant: str
    attention: str
    model: str = OURS
    """module:function, called with a `ModelConfig`, the context length and the attention: any user's own model."""

    checkpoint_every: int | None = None
    checkpoint_mode: str = "groups"
    checkpoint_offload: bool = False

    AXES: ClassVar = ("size", "context", "precision", "variant", "attention")
    """The columns that name it in a table."""

    def axes(self) -> dict[str, Any]:
        """Return the values of `AXES`."""
        values = (self.size, self.context_length, self.precision, self.variant, self.attention)
        return dict(zip(self.AXES, values, strict=True))


Axes = dict[str, tuple[Any, ...]]
"""Values of each axis that may take several."""

ON_A_GPU: Axes = {
    "size": SIZES_2025,
    "context": (512,),
    "precision": ("fp32",),
    "variant": ("eager",),
    "attention": ("reference",),
}
ELSEWHERE: Axes = ON_A_GPU | {"size": ("tiny",), "context": (64,)}
ALLOWED = {"precision": PRECISIONS, "variant": VARIANTS, "attention": ATTENTIONS, "size": SIZES}


@dataclass(frozen=True)
class Models:
    """The values of the options of `model_options`."""

    requested: Axes
    batch: int = 4
    model: str = OURS
    on_a_gpu: Axes = field(default_factory=lambda: ON_A_GPU)
    elsewhere: Axes = field(default_factory=lambda: ELSEWHERE)

    def values(self, axis: str) -> tuple[Any, ...]:
        """Return the requested values of an axis, or those that suit this machine."""
        return self.requested.get(axis) or (self.on_a_gpu if device_kind() == "cuda" else self.elsewhere)[axis]

    def settings(self) -> list[Setting]:
        """Return all combinations, small models first."""
        return [
            Setting(size, context, self.batch, precision, variant, attention, self.model)
            for size, context, precision, variant, attention in itertools.product(*map(self.values, ON_A_GPU))
        ]


def model_options(
    on_a_gpu: Axes | None = None,
    elsewhere: Axes | None = None,
    axes: Sequence[str] = tuple(ON_A_GPU),
    *,
    allowed: Axes | None = None,
    of_others: bool = True,
) -> Callable[[Any], Any]:
    """Add each of `axes` as a repeatable option: the command gets `models`. These values replace common ones.

    With `of_others` the model may be a user's own.
    """
    choices = ALLOWED | (allowed or {})
    on_a_gpu, elsewhere = ON_A_GPU | (on_a_gpu or {}), ELSEWHERE | (elsewhere or {})

    def option(axis: str) -> Callable[[Any], Any]:
        default, without = (", ".join(map(str, where[axis])) for where in (on_a_gpu, elsewhere))
        words = f"Default: {default}{f'; {without} without a GPU' if without != default else ''}."
        kind = click.Choice(choices[axis]) if axis in choices else Count()
        return click.option(f"--{axis}", multiple=True, type=kind, help=words)

    def models(
        size: Any,
        context: Any,
        batch: int,
        model: str = OURS,
        precision: Any = (),
        variant: Any = (),
        attention: Any = (),
    ) -> Models:
        requested = dict(zip(ON_A_GPU, (size, context, precision, variant, attention), strict=True))
        return Models(requested, batch, model, on_a_gpu, elsewhere)

    own = click.option(
        "--model", default=OURS, show_default=True, type=Named(_importable), help="Your own model, module:function."
    )
    return gathered(
        "models",
        models,
        *map(option, axes[:2]),
        click.option("--batch", default=4, show_default=True, type=Count()),
        *map(option, axes[2:]),
        *([own] if of_others else []),
    )


def _importable(model: str) -> None:
    """Raise `ValueError` for a user's own model that cannot be imported."""
    if model != OURS:
        imported(model)


def training_of(setting: Setting) -> Training:
    """Return the training workload of the setting here. Raises `ValueError` for a model that refuses this setting."""
    return Training(asdict(setting), device_kind())


def rows_of(
    settings: list[Setting], measure: Callable[[Training, Setting], Row], *, tries_all: bool = False
) -> Iterator[Row]:
    """Yield a row for each setting: the fields of `measure(training, setting)`, or the status of its failure.

    A setting whose step is predicted to exceed the GPU's memory is not tried, unless `tries_all`.
    """
    for setting in progress(settings, unit="model"):
        predicted = predicted_bytes(setting)
        row = setting.axes() | ({} if predicted is None else {"predicted_bytes": predicted})
        if not tries_all and predicted is not None and predicted > memory_bytes():
            yield row | {"status": "out_of_memory", "reason": f"predicted {gib(predicted, 0)}"}
            continue
        try:
            row |= {"status": "ok"} | measure(training_of(setting), setting)
        except (click.ClickException, KeyboardInterrupt, Terminated):
            raise
        except BaseException as error:  # a user's model may raise anything, which costs its own row alone
            row |= refusal(error)
        release()
        yield row


def predicted_bytes(setting: Setting) -> int | None:
    """Return the peak of a step by `cs336_systems.accounting`.

    None for what it does not model: a user's model, compiled forms, and bf16_weights.
    """
    if setting.model != OURS or setting.variant not in ("eager", "cuda_graph") or setting.precision == "bf16_weights":
        return None
    return measured("accounting.peak", "peak_step_bytes")(
        measured("configs", "MODEL_CONFIGS")[setting.size],
        setting.batch,
        setting.context_length,
        attention="reference" if setting.attention == "reference" else "flash",
        precision=setting.precision,
        **accounted(setting),
    )


def accounted(setting: Setting) -> dict[str, Any]:
    """Return the argument of closed forms that says which checkpoints a setting has; none without any."""
    if setting.checkpoint_every is None:
        return {}
    checkpoints = (getattr(setting, axis) for axis in CHECKPOINT_AXES)
    return {"checkpointing": measured("configs", "Checkpointing")(*checkpoints)}


def largest_that_fits(settings: list[Setting]) -> Iterator[str]:
    """Name the largest model whose step fits this GPU, for every context length and precision of these settings."""
    if device_kind() == "cpu":
        return
    largest = measured("accounting.peak", "largest_size_that_fits")
    for context, precision in dict.fromkeys((setting.context_length, setting.precision) for setting in settings):
        name = largest(memory_bytes(), settings[0].batch, context, precision=precision)
        card = gib(memory_bytes(), 0)
        yield (
            f"Context {context}, {precision}: by prediction the largest model whose step fits {card} with eager "
            f"attention is {name or 'none of them'}."
        )
