"""A model in training on a fixed batch: the phases of its step, each with its check and its floor."""

import math
from collections.abc import Callable
from typing import Any

from perf.workloads import PACKAGE, compile_any_number_of_shapes, measured, require_triton
from perf.workloads.foreign_model import Foreign
from perf.workloads.transformer_oracle import BATCH, SIZES, ExactStep, Size, Weights, batch_of, initial, oracle
from perf.workloads.transformer_state import (
    CHECKPOINT_AXES,
    LR,
    UPDATE_TOLERANCE,
    build_model,
    hold,
    restore,
    slope_and_norm,
    update_error,
)
from perf.workloads.workload import Floor, Part, Unavailable, Workload, no_floor, require_allowed

MATMUL_DTYPES = {
    "fp32": "float32",
    "tf32": "float32",
    "bf16": "bfloat16",
    "fp16": "float16",
    "bf16_weights": "bfloat16",
}

# Relative error of the loss: correct code has at most 1.2e-7 in fp32 and 3.2e-5 in bf16 (54 cases each, H200). Error of
# the gradient along a random direction over the gradient's norm: correct code has at most 6.7e-6 in fp32 and 2.3e-2 in
# bf16 (480 cases), a gradient that lacks one of 48 layers 0.14. A gradient that is 1 % too large shows only in fp32.
LOSS_TOLERANCE = {"fp32": 2e-6, "tf32": 1e-3, "bf16": 1e-3, "fp16": 1e-3, "bf16_weights": 1e-3}
GRADIENT_TOLERANCE = {"fp32": 1e-4, "tf32": 2e-2, "bf16": 5e-2, "fp16": 5e-2, "bf16_weights": 5e-2}

MAX_SCALE_STEPS = 20
"""Maximum number of steps in which loss scaling halves its scale until no gradient overflows."""

OURS = f"{PACKAGE}.transformer:TransformerLM"
PHASES = ("forward", "backward", "optimizer")
UNKNOWN = no_floor("the minimum work of a user's own model is unknown")


class Training:
    """The commit's `TrainStep` of a model, `train`, and its workloads.

    `params`: size, context_length, precision, variant, attention (an impl of `flash_attention`); optional batch
    (default 4), `CHECKPOINT_AXES` (arguments of `TransformerLM`) and model (module:function, called with config,
    context_length and attention; default `OURS`, the commit's own).
    A user's own model is compared with itself in eager float32 with eager attention, ours with the float64 oracle.
    """

    def __init__(self, params: dict[str, Any], device: str, exact: ExactStep | None = None):
        """Build the model; `exact` is the result of `exact_of` for these params if it is known already."""
        self.precision, self.variant = params["precision"], params["variant"]
        require_allowed(params, precision=MATMUL_DTYPES)
        if self.precision not in measured("training", "PRECISIONS"):
            raise Unavailable(f"this commit has no precision {self.precision}")
        require_triton(params["attention"], device)
        if self.graphed and device == "cpu":
            raise Unavailable(f"{self.variant} needs a CUDA GPU")
        if self.variant.startswith("compiled"):
            compile_any_number_of_shapes()
        self._params, self._device, self._exact = params, device, exact
        self._foreign = foreign_of(params, device)
        if self._foreign:
            model = self._foreign.build(params["attention"])
        else:
            checkpoints = {axis: params[axis] for axis in CHECKPOINT_AXES if axis in params}
            size, context_length = SIZES[params["size"]], params["context_length"]
            model = build_model(size, context_length, params["attention"], device, **checkpoints)
        make = measured("training", "make_train_step")
        self.train = make(model, *data_of(params, device), precision=self.precision, variant=self.variant)

    @property
    def graphed(self) -> bool:
        """Return whether a step is a CUDA graph, which has no phases."""
        return self.variant.endswith("cuda_graph")

    def forward(self) -> Workload:
        """Return a forward that saves nothing for a backward."""
        import torch

        def run() -> Any:
            with torch.no_grad():
                return self.train.forward()

        return self._workload("forward", run)

    def backward(self) -> Workload:
        """Return a backward on a graph that is built before every sample."""
        loss: list[Any] = []

        def prepare() -> None:
            self.train.optimizer.zero_grad()
            loss[:] = [self.train.forward()]

        def run() -> Any:
            self.train.backward(loss[0])
            return loss[0].detach()

        return self._workload("backward", run, prepare=prepare)

    def optimizer(self) -> Workload:
        """Return an optimizer step on gradients that are computed once."""
        self.train.backward(self.train.forward())
        return self._workload("optimizer", self.train.optimizer_step)

    def step(self) -> Workload:
        """Return the whole step, zero_grad to optimizer, the only workload with a CUDA graph."""
        captures_itself = getattr(self.train, "is_captured", False)  # older commits leave the capture to the caller
        run = _captured(self.train.step) if self.graphed and not captures_itself else self.train.step
        return self._workload("step", run, settles=True)

    def phases(self) -> Workload:
        """Return the step with its parts; its gradients are freed before it."""
        loss: list[Any] = []

        def forward() -> None:
            loss[:] = [self.train.forward()]

        def run() -> Any:
            for part in calls.values():
                part()
            return loss[0].detach()

        calls = {
            "forward": forward,
            "backward": lambda: self.train.backward(loss[0]),
            "optimizer": self.train.optimizer_step,
        }
        parts = {name: Part(call, self.floor(name)) for name, call in calls.items()}
        return self._workload("step", run, prepare=self.train.optimizer.zero_grad, parts=parts)

    def floor(self, mode: str) -> Floor:
        """Return the floor of forward, backward, optimizer or step."""
        return floor_of(self._params, self.precision, mode)

    def _workload(
        self, mode: str, run: Callable[[], Any], prepare: Callable[[], None] = lambda: None, **more: Any
    ) -> Workload:
        return Workload(
            run=run,
            check=lambda: self._check(mode, prepare, run),
            floor=self.floor(mode),
            prepare=prepare,
            **more,
        )

    def _check(self, mode: str, prepare: Callable[[], None], run: Callable[[], Any]) -> float:
        weights = self._foreign.weights if self._foreign else initial
        return check(self.train, mode, run, self._truth, prepare=prepare, weights=weights)

    def _truth(self) -> ExactStep:
        self._exact = self._exact or exact_of(self._params, self._device)
        return self._exact


def check(
    train: Any,
    mode: str,
    run: Callable[[], Any],
    truth: Callable[[], ExactStep],
    *,
    prepare: Callable[[], None] = lambda: None,
    weights: Weights = initial,
    lr: float = LR,
) -> float:
    """Check one `run` from the initial weights: its loss, gradient and update, as far as `mode` computes them.

    Returns the largest error. Loss scaling first runs until its scale overflows no gradient.
    """
    scaler, model, optimizer, precision = train.scaler, train.model, train.optimizer, train.precision
    for _ in range(MAX_SCALE_STEPS):
        restore(model, optimizer, weights)
        scale = scaler.get_scale() if scaler else 1.0
        prepare()
        loss = run()
        if mode not in ("backward", "step"):
            break
        slope, norm = slope_and_norm(model)
        if scaler is None or math.isfinite(norm):
            break
        scaler.update(scale / 2)
    error = 0.0
    if mode != "optimizer":
        exact = truth()
        error = hold("the loss", abs(float(loss) - exact.loss) / exact.loss, LOSS_TOLERANCE[precision])
    if mode in ("backward", "step"):
        if mode == "backward":  # in a step the fused optimizer has unscaled the gradients
            slope, norm = slope / scale, norm / scale
        error = max(error, hold("the gradient", abs(slope - exact.slope) / norm, GRADIENT_TOLERANCE[precision]))
    if mode in ("optimizer", "step"):
        error = max(error, hold("AdamW's update", update_error(model, optimizer, weights, lr), UPDATE_TOLERANCE))
    return error


def exact_of(params: dict[str, Any], device: str) -> ExactStep:
    """Return loss and slope of the initial weights of `params`; see `Training`. It needs memory for a float64 layer."""
    if foreign := foreign_of(params, device):
        return foreign.exact(*data_of(params, device))
    return oracle(params["size"], params["context_length"], device, params.get("batch", BATCH))


def foreign_of(params: dict[str, Any], device: str) -> Foreign | None:
    """Return the user's own model if `params` name it."""
    name = params.get("model", OURS)
    return None if name == OURS else Foreign(name, params["size"], params["context_length"], device)


def data_of(params: dict[str, Any], device: str) -> tuple[Any, Any]:
    """Return ids and targets."""
    return batch_of(SIZES[params["size"]], params["context_length"], device, params.get("batch", BATCH))


def floor_of(params: dict[str, Any], precision: str, mode: str) -> Floor:
    """Return the floor of forward, backward, optimizer or step of the model in `params`."""
    if params.get("model", OURS) != OURS:
        return UNKNOWN
    return floor(SIZES[params["size"]], params["context_length"], precision, mode, params.get("batch", BATCH))


def floor(size: Size, context_length: int, precision: str, mode: str, batch: int = BATCH) -> Floor:
    """Count two FLOPs per weight and token forward, twice that backward, causal attention at half of its square."""
    tokens = batch * context_length
    pairs = batch * context_length * (context_length + 1) / 2
    forward = 2 * size.matmul_parameters * tokens + 4 * pairs * size.d_model * size.num_layers
    passes = {"forward": 1, "backward": 2, "optimizer": 0, "step": 3}[mode]
    weights = 4 * size.parameters
    # Adam reads weights, gradients and both moments, and writes all except the gradients.
    read = {"forward": 1, "backward": 1, "optimizer": 4, "step": 5}[mode] * weights
    written = {"forward": 0, "backward": 1, "optimizer": 3, "step": 4}[mode] * weights
    return Floor(flops=passes * forward, matmul_dtype=MATMUL_DTYPES[precision], bytes_read=read, bytes_written=written)


def _captured(step: Any) -> Any:
    """Return `step` as a CUDA graph that is captured at the first call."""
    captured: list[Any] = []

    def run() -> Any:
        if not captured:
            captured.append(measured("training", "Captured")(step))
        return captured[0]()

    return run
