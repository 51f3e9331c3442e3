"""What the studies of the language model share: its options, its training step, and out-of-memory as a row."""

import functools
import itertools
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, ClassVar

import click

from perf.workloads import imported, measured

SIZES = ("tiny", "small", "medium", "large", "xl", "2.7B", "10B")
PRECISIONS = ("fp32", "tf32", "bf16", "fp16", "bf16_weights")
VARIANTS = ("eager", "compiled_blocks", "compiled", "cuda_graph", "compiled_cuda_graph")
ATTENTIONS = ("reference", "pytorch", "triton", "sdpa")
OURS = "cs336_systems.transformer:TransformerLM"

ON_A_CPU = "Measured on a CPU: the method is the GPU's, the times and their ratios are not."


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

    AXES: ClassVar = ("size", "context", "precision", "variant", "attention")
    """The columns that name it in a table."""

    def axes(self) -> dict[str, Any]:
        """Its values of `AXES`."""
        values = (self.size, self.context_length, self.precision, self.variant, self.attention)
        return dict(zip(self.AXES, values, strict=True))


def model_options(command: Callable[..., None]) -> Callable[..., None]:
    """Every axis as an option, each repeatable; the command gets them as `settings` through `settings_of`."""
    for option in (
        click.option("--model", default=OURS, show_default=True, help="module:function of a model of your own."),
        click.option("--attention", multiple=True, type=click.Choice(ATTENTIONS), help="Default: reference."),
        click.option("--variant", multiple=True, type=click.Choice(VARIANTS), help="Default: eager."),
        click.option("--precision", multiple=True, type=click.Choice(PRECISIONS), help="Default: fp32."),
        click.option("--batch", default=4, show_default=True, type=click.IntRange(1)),
        click.option("--context", multiple=True, type=click.IntRange(1), help="Default: 512; 64 without a GPU."),
        click.option(
            "--size", multiple=True, type=click.Choice(SIZES), help="Default: all of 2025; tiny without a GPU."
        ),
    ):
        command = option(command)
    return command


def settings_of(
    size: tuple[str, ...],
    context: tuple[int, ...],
    batch: int,
    precision: tuple[str, ...],
    variant: tuple[str, ...],
    attention: tuple[str, ...],
    model: str,
) -> list[Setting]:
    """All combinations of what the options gave, small models first."""
    on_gpu = device_kind() == "cuda"
    axes = (
        size or (SIZES[1:6] if on_gpu else SIZES[:1]),
        context or ((512,) if on_gpu else (64,)),
        (batch,),
        precision or ("fp32",),
        variant or ("eager",),
        attention or ("reference",),
        (model,),
    )
    return [Setting(*cell) for cell in itertools.product(*axes)]


def device_kind() -> str:
    """cuda where there is one, else cpu."""
    import torch

    return "cuda" if torch.cuda.is_available() else "cpu"


def train_step_of(setting: Setting) -> Any:
    """A `cs336_systems.training.TrainStep` on seeded random tokens. Raises `click.ClickException` for a wrong hook."""
    import torch

    device = device_kind()
    config = measured("configs", "MODEL_CONFIGS")[setting.size]
    attend = functools.partial(measured("attention.api", "flash_attention"), is_causal=True, impl=setting.attention)
    torch.manual_seed(0)
    with torch.device(device):
        model = _factory(setting.model)(config, setting.context_length, attend)
        ids, targets = torch.randint(config.vocab_size, (2, setting.batch, setting.context_length))
    make = measured("training", "make_train_step")
    try:
        return make(model, ids, targets, precision=setting.precision, variant=setting.variant)
    except ValueError as error:
        raise click.ClickException(str(error)) from None


def rows_of(settings: list[Setting], measure: Callable[[Any, Setting], dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """One row per setting: what `measure(train_step, setting)` found, or the memory that could not be had.

    What is predicted to need more memory than the GPU has is not tried, and its row says so.
    """
    import torch
    from tqdm import tqdm

    for setting in tqdm(settings, unit="model", leave=False, disable=None):
        predicted = predicted_bytes(setting)
        known = {} if predicted is None else {"predicted_bytes": predicted}
        if predicted is not None and predicted > memory_bytes():
            yield setting.axes() | known | {"status": f"does not fit: predicted {predicted / 2**30:.0f} GiB"}
            continue
        try:
            found = known | {"status": "ok"} | measure(train_step_of(setting), setting)
        except torch.OutOfMemoryError as error:
            error.__traceback__ = None  # it holds the frames, and they the tensors
            found = known | {"status": f"out of memory: {asked_for(error)}"}
        release()
        yield setting.axes() | found


def predicted_bytes(setting: Setting) -> int | None:
    """The peak of a step by `cs336_systems.accounting`; None for a user's model and for compiled forms."""
    if setting.model != OURS or setting.variant not in ("eager", "cuda_graph"):
        return None
    return measured("accounting.peak", "peak_step_bytes")(
        measured("configs", "MODEL_CONFIGS")[setting.size],
        setting.batch,
        setting.context_length,
        attention="reference" if setting.attention == "reference" else "flash",
        precision=setting.precision,
    )


def memory_bytes() -> float:
    """Of the GPU; without one there is no limit that this could know."""
    import torch

    return torch.cuda.get_device_properties(0).total_memory if torch.cuda.is_available() else float("inf")


def largest_that_fits(settings: list[Setting]) -> Iterator[str]:
    """For every context length and precision of these settings, the largest model whose step fits this GPU."""
    if device_kind() == "cpu":
        return
    largest = measured("accounting.peak", "largest_size_that_fits")
    for context, precision in dict.fromkeys((setting.context_length, setting.precision) for setting in settings):
        name = largest(memory_bytes(), settings[0].batch, context, precision=precision)
        card = f"{memory_bytes() / 2**30:.0f} GiB"
        yield (
            f"Context {context}, {precision}: by prediction the largest model whose step fits {card} with eager "
            f"attention is {name or 'none of them'}."
        )


def asked_for(error: BaseException) -> str:
    """The allocation that failed, as torch puts it: "asked for 2.00 GiB"."""
    match = re.search(r"allocate ([\d.]+ \w+)", str(error))
    return f"asked for {match[1]}" if match else str(error).splitlines()[0]


def release() -> None:
    """Give back what the last model held, its compiled forms included."""
    import gc

    import torch

    torch.compiler.reset()
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()


def synchronize() -> None:
    """Wait for the device, where there is one."""
    import torch

    if torch.cuda.is_available():
        torch.cuda.synchronize()


def _factory(name: str) -> Callable[..., Any]:
    try:
        return imported(name)
    except ValueError as error:
        raise click.ClickException(f"--model {error}") from None
