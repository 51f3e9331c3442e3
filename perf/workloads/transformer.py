"""A Transformer language model on one batch: a phase of its training step, or all of it."""

import functools
from typing import Any

from perf.workloads import compile_any_number_of_shapes, measured
from perf.workloads.transformer_oracle import BATCH, SIZES, Size, batch_of, direction, initial, oracle
from perf.workloads.workload import Floor, Unavailable, Workload, WrongResult

MODES = ("forward", "backward", "optimizer", "step")
MATMUL_DTYPES = {"fp32": "float32", "tf32": "float32", "bf16": "bfloat16", "bf16_weights": "bfloat16"}

# Relative, of the loss. And of the gradient along a random direction, over the gradient's norm: what a gradient is off
# by as a whole. Without the gradient of one of 48 layers that is 0.14.
LOSS_TOLERANCE = {"fp32": 1e-5, "tf32": 1e-3, "bf16": 1e-2, "bf16_weights": 1e-2}
GRADIENT_TOLERANCE = {"fp32": 1e-3, "tf32": 2e-2, "bf16": 1e-1, "bf16_weights": 1e-1}
UPDATE_TOLERANCE = 1e-2  # of AdamW's step: float32 weights of 1 keep four digits of a change of 1e-3

LR, WEIGHT_DECAY, EPS = 1e-3, 0.01, 1e-8


def build(params: dict[str, Any], device: str) -> Workload:
    """`params`: size, context_length, precision, variant, attention (an impl of `flash_attention`), mode (of `MODES`).

    forward keeps nothing for a backward. backward is timed on a graph made before every sample, optimizer on gradients
    made once. step is zero_grad, forward, backward and optimizer, and the one mode that a CUDA graph can hold.
    """
    import torch

    mode, precision, variant = params["mode"], params["precision"], params["variant"]
    if mode not in MODES:
        raise ValueError(f"mode={mode!r} was given; allowed: {', '.join(MODES)}")
    if precision not in MATMUL_DTYPES:
        raise ValueError(f"precision={precision!r} was given; allowed: {', '.join(MATMUL_DTYPES)}")
    if precision not in measured("training", "PRECISIONS"):
        raise Unavailable(f"this commit has no precision {precision}")
    graphed = variant.endswith("cuda_graph")
    if graphed and mode != "step":
        raise ValueError(f"variant={variant!r} was given with mode={mode!r}; allowed: mode='step'")
    if variant.startswith("compiled"):
        compile_any_number_of_shapes()
    size, context_length = SIZES[params["size"]], params["context_length"]
    model = _model(size, context_length, params["attention"], device)
    batch = batch_of(size, context_length, device)
    train = measured("training", "make_train_step")(model, *batch, precision=precision, variant=variant)
    loss = torch.zeros(())

    def prepare() -> None:
        nonlocal loss
        if mode == "backward":
            train.optimizer.zero_grad()
            loss = train.forward()

    def forward() -> Any:
        with torch.no_grad():
            return train.forward()

    def backward() -> Any:
        train.backward(loss)
        return loss.detach()

    step = _captured(train.step) if graphed else train.step
    if mode == "optimizer":
        train.backward(train.forward())
    run = {"forward": forward, "backward": backward, "optimizer": train.optimizer_step, "step": step}[mode]

    def check() -> float:
        _restore(model, train.optimizer)
        prepare()
        found = run()
        error = 0.0
        if mode != "optimizer":
            exact = oracle(params["size"], context_length, device)
            error = _hold("the loss", abs(float(found) - exact.loss) / exact.loss, LOSS_TOLERANCE[precision])
        if mode in ("backward", "step"):
            error = max(error, _hold("the gradient", _slope_error(model, exact.slope), GRADIENT_TOLERANCE[precision]))
        if mode in ("optimizer", "step"):
            update_error = _update_error(model, train.optimizer)
            error = max(error, _hold("AdamW's update", update_error, UPDATE_TOLERANCE))
        return error

    return Workload(run=run, check=check, floor=floor(size, context_length, precision, mode), prepare=prepare)


def floor(size: Size, context_length: int, precision: str, mode: str) -> Floor:
    """Two FLOPs per weight and token forward, twice that backward, causal attention at half of its square."""
    tokens = BATCH * context_length
    pairs = BATCH * context_length * (context_length + 1) / 2
    forward = 2 * size.matmul_parameters * tokens + 4 * pairs * size.d_model * size.num_layers
    passes = {"forward": 1, "backward": 2, "optimizer": 0, "step": 3}[mode]
    weights = 4 * size.parameters
    # Adam reads weights, gradients and both moments, and writes all but the gradients.
    read = {"forward": 1, "backward": 1, "optimizer": 4, "step": 5}[mode] * weights
    written = {"forward": 0, "backward": 1, "optimizer": 3, "step": 4}[mode] * weights
    return Floor(flops=passes * forward, matmul_dtype=MATMUL_DTYPES[precision], bytes_read=read, bytes_written=written)


def _model(size: Size, context_length: int, attention: str, device: str) -> Any:
    """The commit's TransformerLM, with the weights that the oracle has."""
    import torch

    config = measured("configs", "ModelConfig")(*size)
    attend = functools.partial(measured("attention.api", "flash_attention"), is_causal=True, impl=attention)
    with torch.device(device):
        model = measured("transformer", "TransformerLM")(config, context_length, attend)
    _restore(model, None)
    return model


def _restore(model: Any, optimizer: Any) -> None:
    """The initial weights and a fresh optimizer, in place: a CUDA graph knows where they are."""
    import torch

    with torch.no_grad():
        for name, parameter in model.named_parameters():
            weight = initial(name, tuple(parameter.shape), str(parameter.device))
            parameter.copy_(weight)
            for key, value in (optimizer.state.get(parameter, {}) if optimizer else {}).items():
                value.copy_(weight) if key == "master" else value.zero_()


def _captured(step: Any) -> Any:
    """`step` as a CUDA graph, captured when it is first called."""
    held: list[Any] = []

    def run() -> Any:
        if not held:
            held.append(measured("training", "Captured")(step))
        return held[0]()

    return run


def _slope_error(model: Any, exact: float) -> float:
    slope = square = 0.0
    for name, parameter in model.named_parameters():
        if parameter.grad is None:
            raise WrongResult(f"{name} has no gradient")
        gradient = parameter.grad.double()
        slope += float((gradient * direction(name, tuple(gradient.shape), str(gradient.device))).sum())
        square += float(gradient.square().sum())
    return abs(slope - exact) / square**0.5


def _update_error(model: Any, optimizer: Any) -> float:
    """Of AdamW's first step from the initial weights: decay, then lr g / (|g| + eps), since both moments are g's.

    Of the float32 master weight, where the model's own is rounded.
    """
    error = square = 0.0
    for name, parameter in model.named_parameters():
        old = initial(name, tuple(parameter.shape), str(parameter.device)).double()
        gradient = parameter.grad.double()
        update = -LR * WEIGHT_DECAY * old - LR * gradient / (gradient.abs() + EPS)
        new = optimizer.state[parameter].get("master", parameter).detach().double()
        error += float((new - old - update).square().sum())
        square += float(update.square().sum())
    return (error / square) ** 0.5


def _hold(what: str, error: float, allowed: float) -> float:
    if not error <= allowed:  # NaN compares false
        raise WrongResult(f"{what} differs from float64 by {error:.1e} (relative), allowed {allowed:.1e}")
    return error
