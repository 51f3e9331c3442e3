"""A data-parallel training step of a Transformer: each rank has a batch of its own, gradients are averaged."""

from collections.abc import Callable
from functools import partial
from typing import Any

from perf.workloads import compile_any_number_of_shapes, measured, rank_step
from perf.workloads.transformer import floor
from perf.workloads.transformer_oracle import SIZES, batch_of_rank
from perf.workloads.transformer_state import (
    UPDATE_TOLERANCE,
    build_model,
    hold,
    projections,
    projections_of_backward,
    restore,
    slope_and_norm,
    update_error,
)
from perf.workloads.workload import Workload, require_allowed

OURS = {"naive": "NaiveDDP", "flat": "FlatDDP", "overlapped": "OverlappedDDP", "bucketed": "BucketedDDP"}
STRATEGIES = (*OURS, "torch", "torch_static")
# Error of a sum over the ranks, relative to the gradient's norm: float32, or bfloat16 for bfloat16 matrices.
GRADIENT_TOLERANCE = {"fp32": 1e-4, "tf32": 1e-4, "bf16": 1e-4, "bf16_weights": 1e-2}
# Error of a second backward, whose sums are in another order: up to 8e-3 in bfloat16 on an H200, 48 layers deep.
REPLAY_TOLERANCE = {"fp32": 1e-3, "tf32": 2e-2, "bf16": 5e-2, "bf16_weights": 5e-2}


def build(params: dict[str, Any], device: str) -> Workload:
    """Build a step with averaged gradients on this rank.

    `params`: strategy, bucket_size_mb, size, context_length, batch, precision, variant, world_size, mode. mode step is
    the whole step, mode alone the step without communication, mode exposed their difference. The batch is that of every
    rank; attention is PyTorch's. strategy "torch" is DistributedDataParallel, "torch_static" the same with
    `static_graph`.
    """
    strategy, precision, variant = params["strategy"], params["precision"], params["variant"]
    require_allowed(params, strategy=STRATEGIES, mode=("step", "alone", "exposed"))
    mode = params["mode"]
    if variant.startswith("compiled"):
        compile_any_number_of_shapes()
    size, context_length = SIZES[params["size"]], params["context_length"]
    model = build_model(size, context_length, "sdpa", device)
    batch = params["batch"]
    ids, targets = batch_of_rank(size, context_length, device, batch)
    train = measured("training", "make_train_step")(model, ids, targets, precision=precision, variant=variant)
    net, finish = _wrapped(strategy, params["bucket_size_mb"], model if train.run is None else train.run)
    train.run = net

    step: Callable[[], Any] = partial(rank_step.step, train, finish)

    def alone() -> Any:
        with net.no_sync():
            return rank_step.step(train)

    if strategy == "torch_static":
        step()  # DistributedDataParallel learns the static graph from its first backward, which must synchronize
    check_mean = partial(_check_mean, model, train.optimizer, step, precision)
    is_captured = variant.endswith("cuda_graph")
    if is_captured:  # checked before the capture, since a replay calls no hooks
        error, (slope, _) = check_mean(), slope_and_norm(model)
        step = _captured(step, model)
        if mode != "step":
            alone = _captured(alone, model)

    def check() -> float:
        gradient_error = error if is_captured else check_mean()
        if is_captured:
            restore(model, train.optimizer)
            step()
            replayed, norm = slope_and_norm(model)
            replay_error = abs(replayed - slope) / norm
            hold("the replayed gradient", replay_error, REPLAY_TOLERANCE[precision], "that of the step in the graph")
        hold("AdamW's update", update_error(model, train.optimizer), UPDATE_TOLERANCE)
        rank_step.require_equal_on_all_ranks(model)
        return gradient_error

    def facts() -> dict[str, float]:
        num_bytes = rank_step.state_bytes(model.parameters(), train.optimizer)
        traffic = getattr(net, "traffic", None)
        return num_bytes | ({"calls": traffic.calls, "bytes": traffic.num_bytes} if traffic else {})

    return Workload(
        run=alone if mode == "alone" else step,
        check=check,
        floor=floor(size, context_length, precision, "step", batch),
        without=alone if mode == "exposed" else None,
        settles=True,
        facts=facts,
    )


def _wrapped(strategy: str, bucket_size_mb: float, model: Any) -> tuple[Any, Callable[[], None]]:
    """Wrap the model, compiled or not, in its data parallelism; return it and the function to call after a backward."""
    import torch

    if strategy.startswith("torch"):
        parallel = torch.nn.parallel.DistributedDataParallel(
            model,
            bucket_cap_mb=bucket_size_mb,
            gradient_as_bucket_view=True,
            static_graph=strategy == "torch_static",
        )
        return parallel, lambda: None
    cls = measured("distributed.ddp", OURS[strategy])
    net = cls(model, bucket_size_mb) if strategy == "bucketed" else cls(model)
    return net, net.finish_gradient_synchronization


def _check_mean(model: Any, optimizer: Any, step: Callable[[], Any], precision: str) -> float:
    """Return the largest error of a parameter's averaged gradient, after one step from the initial weights.

    The reference is the mean over the ranks of the same backward's gradients: a second backward sums in another order.
    """
    import torch
    import torch.distributed as dist

    restore(model, optimizer)
    with projections_of_backward(model) as computed:
        step()
    averaged = projections(model)
    mean = torch.stack([computed[name] for name in averaged])
    dist.all_reduce(mean)
    mean /= dist.get_world_size()
    errors = (torch.stack(list(averaged.values())) - mean)[:, 0].abs() / mean[:, 1].sqrt()
    worst = int(errors.argmax())  # argmax returns the index of a NaN
    what = f"the averaged gradient of {list(averaged)[worst]}"
    return hold(what, float(errors[worst]), GRADIENT_TOLERANCE[precision], "the mean over the ranks")


def _captured(step: Callable[[], Any], model: Any) -> Callable[[], Any]:
    """Capture `step` as a CUDA graph and bind its gradients after each replay, which by itself binds none."""
    replay, parameters = measured("training", "Captured")(step), list(model.parameters())
    gradients = [parameter.grad for parameter in parameters]

    def run() -> Any:
        loss = replay()
        for parameter, gradient in zip(parameters, gradients, strict=True):
            parameter.grad = gradient
        return loss

    return run
