"""One training step: precision, loss, optimizer, and the ways to run it, as plain functions over any model.

A model is a `torch.nn.Module` that turns ids (batch, seq_len) into logits (batch, seq_len, vocab_size).
"""

import contextlib
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from cs336_systems.optimizer.master_weights import master_weight_adamw
from cs336_systems.ranges import range_

PRECISIONS = ("fp32", "tf32", "bf16", "fp16", "bf16_weights")
"""fp32: IEEE products. tf32: ten bits of mantissa in products. bf16, fp16: autocast; fp16 with loss scaling.

bf16_weights: the numbers of bf16, with the matrices held in bfloat16 and their float32 masters in the optimizer.
"""

VARIANTS = ("eager", "compiled_blocks", "compiled", "cuda_graph", "compiled_cuda_graph")
"""compiled_blocks: each layer by itself; compiled: the whole model; both with the loss. cuda_graph: the whole step,
without a host; compiled_cuda_graph: of compiled layers, since without a host the whole model is no faster."""

_AUTOCAST = {"bf16": torch.bfloat16, "fp16": torch.float16, "bf16_weights": torch.bfloat16}


def cross_entropy(logits: Tensor, targets: Tensor) -> Tensor:
    """Mean over all positions, in float32: logits (batch, seq_len, vocab_size), targets (batch, seq_len) int64."""
    return F.cross_entropy(logits.float().flatten(0, -2), targets.flatten())


def autocast(precision: str, device: torch.device) -> AbstractContextManager[object]:
    """The forward's casts in one of `PRECISIONS`; the backward follows them by itself."""
    if precision not in PRECISIONS:
        raise ValueError(f"precision={precision!r} was given; allowed: {', '.join(PRECISIONS)}")
    if precision not in _AUTOCAST:
        return contextlib.nullcontext()
    return torch.autocast(device.type, dtype=_AUTOCAST[precision])


@contextlib.contextmanager
def matmul_precision(precision: str) -> Iterator[None]:
    """Float32 products inside are IEEE for fp32, and may take TF32 for every other precision.

    Afterwards torch's older flag and its newer one are what they were, which need not agree.
    """
    newer = torch.backends.cuda.matmul.fp32_precision
    try:
        older = torch.get_float32_matmul_precision()
    except RuntimeError:  # torch does not read it while the newer flag says otherwise
        older = "highest" if newer == "tf32" else "high"
    torch.set_float32_matmul_precision("highest" if precision == "fp32" else "high")  # both
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(older)
        torch.backends.cuda.matmul.fp32_precision = newer


@dataclass
class TrainStep:
    """The phases of a step on one batch; `step()` is all of them.

    Gradients are freed before the forward (`set_to_none`), so that at its end only activations have been added.
    """

    model: nn.Module
    optimizer: torch.optim.Optimizer
    ids: Tensor
    targets: Tensor
    precision: str = "fp32"
    scaler: torch.amp.GradScaler | None = None
    """Scales the loss of fp16, so that small gradients do not vanish; skips steps whose gradients overflowed."""

    run: Callable[[Tensor], Tensor] | None = None
    """What calls the model: the model itself if None, or a compiled form of it."""

    loss_function: Callable[[Tensor, Tensor], Tensor] = cross_entropy
    """Logits and targets to the loss: `cross_entropy`, or a compiled form of it."""

    def forward(self) -> Tensor:
        """The loss, with its graph."""
        device, run = self.ids.device, self.model if self.run is None else self.run
        with range_("forward"), matmul_precision(self.precision), autocast(self.precision, device):
            return self.loss_function(run(self.ids), self.targets)

    def backward(self, loss: Tensor) -> None:
        """Gradients of all parameters."""
        with range_("backward"), matmul_precision(self.precision):
            (self.scaler.scale(loss) if self.scaler else loss).backward()

    def optimizer_step(self) -> None:
        """Parameters and the optimizer's state."""
        with range_("optimizer"):
            if self.scaler:
                self.scaler.step(self.optimizer)
                self.scaler.update()
            else:
                self.optimizer.step()

    def step(self) -> Tensor:
        """zero_grad, forward, backward, optimizer; returns the detached loss."""
        self.optimizer.zero_grad(set_to_none=True)
        loss = self.forward()
        self.backward(loss)
        self.optimizer_step()
        return loss.detach()


def adamw(
    model: nn.Module, lr: float = 1e-3, weight_decay: float = 0.01, *, capturable: bool = False
) -> torch.optim.AdamW:
    """torch's AdamW, fused: one kernel for all parameters, and no temporary of their size.

    `capturable`: its step count lives on the device, so that a CUDA graph can hold it.
    """
    return torch.optim.AdamW(model.parameters(), lr=lr, weight_decay=weight_decay, fused=True, capturable=capturable)


def make_train_step(
    model: nn.Module, ids: Tensor, targets: Tensor, *, precision: str = "fp32", variant: str = "eager"
) -> TrainStep:
    """A `TrainStep` of `model` on this batch, compiled as `variant` says; the first call compiles.

    Changes `model` in place: its layers' `compile`, and for bf16_weights the dtype of its linear weights.

    Raises `ValueError` for an unknown variant, and for what no CUDA graph can hold: it needs a GPU, and loss scaling
    asks the host whether a gradient overflowed.
    """
    if variant not in VARIANTS:
        raise ValueError(f"variant={variant!r} was given; allowed: {', '.join(VARIANTS)}")
    graphed = variant.endswith("cuda_graph")
    if graphed and not ids.is_cuda:
        raise ValueError(f"variant={variant!r} was given with ids on {ids.device}; allowed: a CUDA device")
    if graphed and precision == "fp16":
        allowed = ", ".join(name for name in PRECISIONS if name != "fp16")
        raise ValueError(f"variant={variant!r} was given with precision='fp16'; allowed: {allowed}")
    scaler = torch.amp.GradScaler(ids.device.type) if precision == "fp16" else None
    masters = precision == "bf16_weights"
    optimizer = master_weight_adamw(model) if masters else adamw(model, capturable=graphed)
    train = TrainStep(model, optimizer, ids, targets, precision, scaler)
    if variant == "compiled":
        train.run = torch.compile(model, dynamic=False)
    elif variant.startswith("compiled"):
        for block in blocks_of(model):
            block.compile(dynamic=False)
    if variant.startswith("compiled"):
        train.loss_function = torch.compile(cross_entropy, dynamic=False)
    return train


def make_step(
    model: nn.Module, ids: Tensor, targets: Tensor, *, precision: str = "fp32", variant: str = "eager"
) -> Callable[[], Tensor]:
    """The whole step of `make_train_step`, captured if `variant` says so: call it to train; it returns the loss."""
    train = make_train_step(model, ids, targets, precision=precision, variant=variant)
    return Captured(train.step) if variant.endswith("cuda_graph") else train.step


def blocks_of(model: nn.Module) -> nn.ModuleList:
    """The layers of any Transformer: its longest `ModuleList`. Raises `ValueError` if it has none."""
    lists = [module for module in model.modules() if isinstance(module, nn.ModuleList)]
    if not lists:
        raise ValueError(f"{type(model).__name__} was given; allowed: a model with its layers in an nn.ModuleList")
    return max(lists, key=len)


class Captured:
    """`step` as a CUDA graph: the same kernels on the same memory, launched at once. Runs three steps to get there.

    Calling it takes a step and returns what `step` returned, overwritten by the next call.
    """

    def __init__(self, step: Callable[[], Tensor]):
        self.step = step  # a graph knows addresses: what lives there (weights, batch, moments) must stay alive
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
        """Replay, on the current stream."""
        self._graph.replay()
        return self._loss
