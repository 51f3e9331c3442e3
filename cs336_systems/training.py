"""One training step: precision, loss, optimizer and execution variants, as plain functions over any model.

A model is a `torch.nn.Module` that maps ids (batch, seq_len) to logits (batch, seq_len, vocab_size), and for a fused
loss also ids and targets to the mean cross-entropy.
"""

import contextlib
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass, field

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from cs336_systems.checks import require_one_of
from cs336_systems.configs import Checkpointing
from cs336_systems.optimizer.master_weights import master_weight_adamw
from cs336_systems.ranges import range_

PRECISIONS = ("fp32", "tf32", "bf16", "fp16", "bf16_weights")
"""fp32: IEEE matmuls. tf32: matmuls with a 10-bit mantissa. bf16, fp16: autocast; fp16 scales the loss.

bf16_weights: same arithmetic as bf16, but the model stores its matrices in bfloat16 and the optimizer keeps float32
master weights.
"""

VARIANTS = ("eager", "compiled_blocks", "compiled", "cuda_graph", "compiled_cuda_graph")
"""compiled_blocks: compile each layer and the loss. compiled: compile the whole model and the loss.

cuda_graph: capture the whole step. compiled_cuda_graph: capture a step of compiled layers; without host time to save,
compiling the whole model is no faster.
"""

_AUTOCAST = {"bf16": torch.bfloat16, "fp16": torch.float16, "bf16_weights": torch.bfloat16}


def cross_entropy(logits: Tensor, targets: Tensor) -> Tensor:
    """Mean cross-entropy in float32 of logits (..., vocab_size) against int64 targets (...).

    Raises `ValueError` for targets of another shape, although they may be as many, or of another dtype.
    """
    if logits.ndim == 0 or targets.shape != logits.shape[:-1]:
        raise ValueError(
            f"logits, targets have shapes {tuple(logits.shape)}, {tuple(targets.shape)}; "
            "allowed: (..., vocab_size), (...)"
        )
    if targets.dtype != torch.int64:
        raise ValueError(f"targets are {targets.dtype}; allowed: torch.int64")
    return F.cross_entropy(logits.float().reshape(targets.numel(), logits.shape[-1]), targets.flatten())


def autocast(precision: str, device: torch.device) -> AbstractContextManager[object]:
    """Cast the forward's operations as this precision of `PRECISIONS` requires; the backward needs no context."""
    require_one_of(PRECISIONS, precision=precision)
    if precision not in _AUTOCAST:
        return contextlib.nullcontext()
    return torch.autocast(device.type, dtype=_AUTOCAST[precision])


@contextlib.contextmanager
def matmul_precision(precision: str) -> Iterator[None]:
    """Set the precision of float32 matmuls: IEEE for fp32, TF32 allowed for every other precision.

    The flags are the process's: of threads that are inside at once, the last to enter sets them. Restores torch's flags
    when all have left: the older one, and the newer ones of CUDA and of the CPU, which need not agree.
    """
    require_one_of(PRECISIONS, precision=precision)
    entry = object()
    with _flags_lock:
        if not _entered:
            _restore.append(_restorer())
        _entered[entry] = precision
        _set_flags(precision)
    try:
        yield
    finally:
        with _flags_lock:
            del _entered[entry]
            if _entered:
                _set_flags(next(reversed(_entered.values())))
            else:
                _restore.pop()()


_flags_lock = threading.Lock()
_entered: dict[object, str] = {}
"""Precision of each `matmul_precision` that has not been left."""

_restore: list[Callable[[], None]] = []
"""Restores the flags of before the first of them."""


def _set_flags(precision: str) -> None:
    torch.set_float32_matmul_precision("highest" if precision == "fp32" else "high")  # sets them all


def _restorer() -> Callable[[], None]:
    newer = torch.backends.cuda.matmul.fp32_precision
    of_cpu = torch.backends.mkldnn.matmul.fp32_precision  # type: ignore[attr-defined]
    try:
        older = torch.get_float32_matmul_precision()
    except RuntimeError:  # torch refuses to read the older flag while the newer one contradicts it
        older = "highest" if newer == "tf32" else "high"

    def restore() -> None:
        torch.set_float32_matmul_precision(older)
        torch.backends.cuda.matmul.fp32_precision = newer
        torch.backends.mkldnn.matmul.fp32_precision = of_cpu  # type: ignore[attr-defined]

    return restore


@dataclass
class TrainStep:
    """One training step on a fixed batch, whole (`step()`) or by phase.

    Gradients are freed (`set_to_none`) before the forward, so at the end of the forward only activations were added.
    """

    model: nn.Module
    optimizer: torch.optim.Optimizer
    ids: Tensor
    targets: Tensor
    precision: str = "fp32"
    scaler: torch.amp.GradScaler | None = None
    """Loss scaler for fp16: keeps small gradients from underflowing and skips steps whose gradients overflow."""

    run: Callable[..., Tensor] | None = None
    """Callable used for the model's forward, for example its compiled form. None calls the model itself."""

    loss_function: Callable[[Tensor, Tensor], Tensor] | None = cross_entropy
    """Maps logits and targets to the loss: `cross_entropy` or its compiled form. None: `model(ids, targets)` does."""

    is_captured: bool = False
    """Whether `step()` is one CUDA graph. The phases always run uncaptured."""

    _replay: Callable[[], Tensor] | None = field(default=None, init=False, repr=False)

    def forward(self) -> Tensor:
        """Return the loss with its graph."""
        device, run = self.ids.device, self.model if self.run is None else self.run
        with range_("forward"), matmul_precision(self.precision), autocast(self.precision, device):
            if self.loss_function is None:
                return run(self.ids, self.targets)
            return self.loss_function(run(self.ids), self.targets)

    def backward(self, loss: Tensor) -> None:
        """Compute the gradients of all parameters."""
        with range_("backward"), matmul_precision(self.precision):
            (self.scaler.scale(loss) if self.scaler else loss).backward()

    def optimizer_step(self) -> None:
        """Update the parameters and the optimizer's state."""
        with range_("optimizer"):
            if self.scaler:
                self.scaler.step(self.optimizer)
                self.scaler.update()
            else:
                self.optimizer.step()

    def step(self) -> Tensor:
        """Run zero_grad, forward, backward and the optimizer; return the detached loss.

        If `is_captured`, the first call captures (see `Captured`) and every call replays the graph.
        """
        if not self.is_captured:
            return self._all_phases()
        if self._replay is None:
            self._replay = Captured(self._all_phases)
        return self._replay()

    def _all_phases(self) -> Tensor:
        self.optimizer.zero_grad(set_to_none=True)
        loss = self.forward()
        self.backward(loss)
        self.optimizer_step()
        return loss.detach()


def adamw(
    model: nn.Module, lr: float = 1e-3, weight_decay: float = 0.01, *, capturable: bool = False
) -> torch.optim.AdamW:
    """Build torch's fused AdamW: one kernel for all parameters and no temporaries of their size.

    `capturable` keeps the step count on the device, which a CUDA graph requires.
    """
    return torch.optim.AdamW(model.parameters(), lr=lr, weight_decay=weight_decay, fused=True, capturable=capturable)


def make_train_step(
    model: nn.Module,
    ids: Tensor,
    targets: Tensor,
    *,
    precision: str = "fp32",
    variant: str = "eager",
    fused_loss: bool = False,
) -> TrainStep:
    """Build the `TrainStep` of a variant. The first step compiles and captures, as far as the variant does either.

    `fused_loss` has the model map ids and targets to the loss, which `TransformerLM` does by `linear_cross_entropy`,
    with the logits of one chunk of tokens at a time.

    Changes `model` in place: compiles its layers, and for bf16_weights rounds its linear weights to bfloat16.

    Raises `ValueError`, before anything is changed, for an unknown precision or variant, for trained parameters of 16
    bits with a precision that keeps no float32 masters of them, for a CUDA graph without a CUDA device or with fp16,
    whose loss scaling synchronizes with the host, for "compiled" with checkpoints that run hooks between layers, for a
    CUDA graph with checkpoints in host memory, and for layers to compile that are in no `nn.ModuleList`.
    """
    require_one_of(PRECISIONS, precision=precision)
    require_one_of(VARIANTS, variant=variant)
    has_masters = precision == "bf16_weights"
    for name, value in model.named_parameters():
        if value.requires_grad and value.dtype in (torch.bfloat16, torch.float16) and not has_masters:
            given = f"precision={precision!r} was given with {name} in {value.dtype}"
            raise ValueError(f"{given}; allowed: bf16_weights, or trained parameters of 32 bits or more")
    is_captured = variant.endswith("cuda_graph")
    if is_captured and not ids.is_cuda:
        raise ValueError(f"variant={variant!r} was given with ids on {ids.device}; allowed: a CUDA device")
    if is_captured and precision == "fp16":
        allowed = ", ".join(name for name in PRECISIONS if name != "fp16")
        raise ValueError(f"variant={variant!r} was given with precision='fp16'; allowed: {allowed}")
    how = getattr(model, "checkpointing", None)
    if isinstance(how, Checkpointing) and ((is_captured and how.offload) or (variant == "compiled" and how.runs_hooks)):
        raise ValueError(f"variant={variant!r} was given with {how}; allowed: eager, compiled_blocks")
    if variant.startswith("compiled") and variant != "compiled":
        blocks_of(model)  # refuses a model without layers before it is rounded
    scaler = torch.amp.GradScaler(ids.device.type) if precision == "fp16" else None
    optimizer = master_weight_adamw(model) if has_masters else adamw(model, capturable=is_captured)
    train = TrainStep(model, optimizer, ids, targets, precision, scaler, is_captured=is_captured)
    if variant == "compiled":
        train.run = torch.compile(model, dynamic=False)
    elif variant.startswith("compiled"):
        for block in blocks_of(model):
            block.compile(dynamic=False)
    if fused_loss:
        train.loss_function = None
    elif variant.startswith("compiled"):
        train.loss_function = torch.compile(cross_entropy, dynamic=False)
    return train


def make_step(
    model: nn.Module,
    ids: Tensor,
    targets: Tensor,
    *,
    precision: str = "fp32",
    variant: str = "eager",
    fused_loss: bool = False,
) -> Callable[[], Tensor]:
    """Build `make_train_step(...).step`: each call trains on the batch once and returns the loss."""
    return make_train_step(model, ids, targets, precision=precision, variant=variant, fused_loss=fused_loss).step


def blocks_of(model: nn.Module) -> nn.ModuleList:
    """Return the layers of any Transformer: its longest `ModuleList`. Raises `ValueError` if it has none."""
    lists = [module for module in model.modules() if isinstance(module, nn.ModuleList)]
    if not lists:
        raise ValueError(f"{type(model).__name__} was given; allowed: a model with its layers in an nn.ModuleList")
    return max(lists, key=len)


class Captured:
    """A step as a CUDA graph: the same kernels on the same memory, in one launch.

    Construction runs the step three times as warm-up and then records it. A call replays the recorded step and returns
    its result, which the next call overwrites.
    """

    def __init__(self, step: Callable[[], Tensor]):
        self.step = step  # the graph holds raw addresses, so the weights, batch and moments behind them must stay alive
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            for _ in range(3):
                step()
        torch.cuda.current_stream().wait_stream(stream)
        self._graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self._graph):
            self._loss = step()

    def __call__(self) -> Tensor:
        """Replay the graph on the current stream."""
        self._graph.replay()
        return self._loss
