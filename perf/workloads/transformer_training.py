"""A model in training on one batch: what of its step can be timed, with the check and the floor of each."""

import math
from collections.abc import Callable
from typing import Any

from perf.workloads import compile_any_number_of_shapes, measured
from perf.workloads.foreign_model import Foreign
from perf.workloads.transformer_oracle import BATCH, SIZES, ExactStep, Size, Weights, batch_of, initial, oracle
from perf.workloads.transformer_state import (
    LR,
    UPDATE_TOLERANCE,
    build_model,
    hold,
    restore,
    slope_and_norm,
    update_error,
)
from perf.workloads.workload import Floor, Part, Unavailable, Workload, no_floor

MATMUL_DTYPES = {
    "fp32": "float32",
    "tf32": "float32",
    "bf16": "bfloat16",
    "fp16": "float16",
    "bf16_weights": "bfloat16",
}

# Relative, of the loss: right code makes 1.2e-7 in fp32 and 3.2e-5 in bf16 at most, of 54 cases each on an H200. And of
# the gradient along a random direction, over the gradient's norm: what a gradient is off by as a whole. Without the
# gradient of one of 48 layers that is 0.14; right code makes 6.7e-6 in fp32 and 2.3e-2 in bf16 (480 cases), so that a
# gradient of 1.01 times the right one shows in fp32 alone.
LOSS_TOLERANCE = {"fp32": 2e-6, "tf32": 1e-3, "bf16": 1e-3, "fp16": 1e-3, "bf16_weights": 1e-3}
GRADIENT_TOLERANCE = {"fp32": 1e-4, "tf32": 2e-2, "bf16": 5e-2, "fp16": 5e-2, "bf16_weights": 5e-2}

SCALES = 20
"""Steps in which loss scaling finds a scale that overflows no gradient: it halves in each."""

PHASES = ("forward", "backward", "optimizer")
UNKNOWN = no_floor("what a model of a user's own has to compute at least is not known")


class Training:
    """`train`, the commit's `TrainStep` of a model, and its workloads.

    `params`: size, context_length, precision, variant, attention (an impl of `flash_attention`); batch and model
    (module:function, called with config, context_length and attention) where they are not 4 and the commit's own.
    A model of a user's own is held to itself in eager float32 with eager attention, ours to the float64 oracle.
    """

    def __init__(self, params: dict[str, Any], device: str, exact: ExactStep | None = None):
        """`exact` is what `exact_of` gives for these params, where that is known already."""
        self.precision, self.variant = params["precision"], params["variant"]
        if self.precision not in MATMUL_DTYPES:
            raise ValueError(f"precision={self.precision!r} was given; allowed: {', '.join(MATMUL_DTYPES)}")
        if self.precision not in measured("training", "PRECISIONS"):
            raise Unavailable(f"this commit has no precision {self.precision}")
        if self.variant.startswith("compiled"):
            compile_any_number_of_shapes()
        self._params, self._device, self._exact = params, device, exact
        self._foreign = foreign_of(params, device)
        if self._foreign:
            model = self._foreign.build(params["attention"])
        else:
            model = build_model(SIZES[params["size"]], params["context_length"], params["attention"], device)
        make = measured("training", "make_train_step")
        self.train = make(model, *data_of(params, device), precision=self.precision, variant=self.variant)

    @property
    def graphed(self) -> bool:
        """Whether a step is one CUDA graph, which has no phases."""
        return self.variant.endswith("cuda_graph")

    def forward(self) -> Workload:
        """A forward that keeps nothing for a backward."""
        import torch

        def run() -> Any:
            with torch.no_grad():
                return self.train.forward()

        return self._workload("forward", run)

    def backward(self) -> Workload:
        """On a graph made before every sample."""
        loss: list[Any] = []

        def prepare() -> None:
            self.train.optimizer.zero_grad()
            loss[:] = [self.train.forward()]

        def run() -> Any:
            self.train.backward(loss[0])
            return loss[0].detach()

        return self._workload("backward", run, prepare=prepare)

    def optimizer(self) -> Workload:
        """On gradients made once."""
        self.train.backward(self.train.forward())
        return self._workload("optimizer", self.train.optimizer_step)

    def step(self) -> Workload:
        """zero_grad, forward, backward and optimizer, and the one that a CUDA graph can hold."""
        captures_itself = getattr(self.train, "is_captured", False)  # older commits leave the capture to the caller
        run = _captured(self.train.step) if self.graphed and not captures_itself else self.train.step
        return self._workload("step", run, settles=True)

    def phases(self) -> Workload:
        """The step with its parts: the gradients are freed beforehand."""
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
        """Of forward, backward, optimizer or step."""
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
    """One `run` from the initial weights on: its loss, gradient and update, as far as `mode` makes them.

    Returns the largest error. The first runs of a step with loss scaling look for a scale.
    """
    scaler, model, optimizer, precision = train.scaler, train.model, train.optimizer, train.precision
    for _ in range(SCALES):
        restore(model, optimizer, weights)
        scale = scaler.get_scale() if scaler else 1.0
        prepare()
        found = run()
        if mode not in ("backward", "step"):
            break
        slope, norm = slope_and_norm(model)
        if scaler is None or math.isfinite(norm):
            break
        scaler.update(scale / 2)
    error = 0.0
    if mode != "optimizer":
        exact = truth()
        error = hold("the loss", abs(float(found) - exact.loss) / exact.loss, LOSS_TOLERANCE[precision])
    if mode in ("backward", "step"):
        if mode == "backward":  # a fused optimizer leaves its gradients unscaled
            slope, norm = slope / scale, norm / scale
        error = max(error, hold("the gradient", abs(slope - exact.slope) / norm, GRADIENT_TOLERANCE[precision]))
    if mode in ("optimizer", "step"):
        error = max(error, hold("AdamW's update", update_error(model, optimizer, weights, lr), UPDATE_TOLERANCE))
    return error


def exact_of(params: dict[str, Any], device: str) -> ExactStep:
    """Loss and slope of the initial weights of `params`; see `Training`. It needs memory for a float64 layer."""
    if foreign := foreign_of(params, device):
        return foreign.exact(*data_of(params, device))
    return oracle(params["size"], params["context_length"], device, params.get("batch", BATCH))


def foreign_of(params: dict[str, Any], device: str) -> Foreign | None:
    """The user's own model, if `params` name one."""
    name = params.get("model")
    return Foreign(name, params["size"], params["context_length"], device) if name else None


def data_of(params: dict[str, Any], device: str) -> tuple[Any, Any]:
    """ids and targets."""
    return batch_of(SIZES[params["size"]], params["context_length"], device, params.get("batch", BATCH))


def floor_of(params: dict[str, Any], precision: str, mode: str) -> Floor:
    """Of forward, backward, optimizer or step of the model that `params` name."""
    if params.get("model"):
        return UNKNOWN
    return floor(SIZES[params["size"]], params["context_length"], precision, mode, params.get("batch", BATCH))


def floor(size: Size, context_length: int, precision: str, mode: str, batch: int = BATCH) -> Floor:
    """Two FLOPs per weight and token forward, twice that backward, causal attention at half of its square."""
    tokens = batch * context_length
    pairs = batch * context_length * (context_length + 1) / 2
    forward = 2 * size.matmul_parameters * tokens + 4 * pairs * size.d_model * size.num_layers
    passes = {"forward": 1, "backward": 2, "optimizer": 0, "step": 3}[mode]
    weights = 4 * size.parameters
    # Adam reads weights, gradients and both moments, and writes all but the gradients.
    read = {"forward": 1, "backward": 1, "optimizer": 4, "step": 5}[mode] * weights
    written = {"forward": 0, "backward": 1, "optimizer": 3, "step": 4}[mode] * weights
    return Floor(flops=passes * forward, matmul_dtype=MATMUL_DTYPES[precision], bytes_read=read, bytes_written=written)


def _captured(step: Any) -> Any:
    """`step` as a CUDA graph, captured when it is first called."""
    held: list[Any] = []

    def run() -> Any:
        if not held:
            held.append(measured("training", "Captured")(step))
        return held[0]()

    return run
