"""A Transformer language model on one batch: a phase of its training step, or all of it."""

from typing import Any

from perf.workloads import compile_any_number_of_shapes, measured
from perf.workloads.transformer_oracle import BATCH, SIZES, Size, batch_of, oracle
from perf.workloads.transformer_state import UPDATE_TOLERANCE, build_model, hold, restore, slope_and_norm, update_error
from perf.workloads.workload import Floor, Unavailable, Workload

MODES = ("forward", "backward", "optimizer", "step")
MATMUL_DTYPES = {"fp32": "float32", "tf32": "float32", "bf16": "bfloat16", "bf16_weights": "bfloat16"}

# Relative, of the loss: right code makes 1.2e-7 in fp32 and 3.2e-5 in bf16 at most, of 54 cases each on an H200. And of
# the gradient along a random direction, over the gradient's norm: what a gradient is off by as a whole. Without the
# gradient of one of 48 layers that is 0.14; right code makes 6.7e-6 in fp32 and 2.3e-2 in bf16 (480 cases), so that a
# gradient of 1.01 times the right one shows in fp32 alone.
LOSS_TOLERANCE = {"fp32": 2e-6, "tf32": 1e-3, "bf16": 1e-3, "bf16_weights": 1e-3}
GRADIENT_TOLERANCE = {"fp32": 1e-4, "tf32": 2e-2, "bf16": 5e-2, "bf16_weights": 5e-2}


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
    model = build_model(size, context_length, params["attention"], device)
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
        restore(model, train.optimizer)
        prepare()
        found = run()
        error = 0.0
        if mode != "optimizer":
            exact = oracle(params["size"], context_length, device)
            error = hold("the loss", abs(float(found) - exact.loss) / exact.loss, LOSS_TOLERANCE[precision])
        if mode in ("backward", "step"):
            slope, norm = slope_and_norm(model)
            error = max(error, hold("the gradient", abs(slope - exact.slope) / norm, GRADIENT_TOLERANCE[precision]))
        if mode in ("optimizer", "step"):
            error = max(error, hold("AdamW's update", update_error(model, train.optimizer), UPDATE_TOLERANCE))
        return error

    return Workload(
        run=run,
        check=check,
        floor=floor(size, context_length, precision, mode),
        prepare=prepare,
        settles=mode == "step",
    )


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
