"""A training step of a Transformer whose parameters, gradients and moments are divided over the ranks."""

import dataclasses
import gc
import inspect
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

from perf.workloads import compile_any_number_of_shapes, measured, rank_step
from perf.workloads.transformer import floor
from perf.workloads.transformer_oracle import SIZES, batch_of_rank, initial
from perf.workloads.transformer_state import LR, WEIGHT_DECAY, build_model, hold, update_sums
from perf.workloads.workload import Unavailable, Workload, WrongResult, require_allowed

PREFETCH = {"prefetch_0": 0, "prefetch_1": 1, "prefetch_2": 2}
"""Ours, by layers gathered ahead."""

TORCHS = ("torch", "torch_default")
"""FSDP2, which reduces gradients in float32, as ours sums them, or by default in the dtype of the gathered weights."""

SHARDINGS = (*PREFETCH, *TORCHS)
COMPUTE_DTYPES = ("float32", "bfloat16")
MODES = ("step", "gradients", "alone", "exposed")
# Errors relative to the mean gradient of whole models. bfloat16 gathers also round the embedding's output.
GRADIENT_TOLERANCE = {"fp32": 1e-5, "tf32": 2e-2, "bf16": 6e-2}
SLOPE_TOLERANCE = {"fp32": 1e-5, "tf32": 2e-3, "bf16": 5e-3}
UPDATE_TOLERANCE = 1e-3


def build(params: dict[str, Any], device: str) -> Workload:
    """Build a fully sharded step on this rank.

    `params`: sharding, compute_dtype, size, context_length, batch, precision, variant, world_size, mode. Sharding
    prefetch_N is `FullyShardedDataParallel` that gathers N blocks ahead, those of `TORCHS` are `fully_shard` (FSDP2),
    also by block. compute_dtype is that of the gathered weights. Mode step is the whole step, mode gradients its
    forward and backward, mode alone those of an unsharded model on this rank, mode exposed their difference. The batch
    is that of every rank; attention is PyTorch's.
    """
    import torch

    sharding, precision, mode = params["sharding"], params["precision"], params["mode"]
    coarsest = "bf16" if params["compute_dtype"] == "bfloat16" else precision
    require_allowed(params, sharding=SHARDINGS, compute_dtype=COMPUTE_DTYPES, mode=MODES)
    if sharding == "torch_default" and params["compute_dtype"] == "float32":
        raise Unavailable("with weights in float32 torch_default is torch")
    if params["variant"].startswith("compiled"):
        compile_any_number_of_shapes()
    if device == "cuda":
        torch.cuda.reset_peak_memory_stats()  # of the case before, in the same process
    size, context_length, batch = SIZES[params["size"]], params["context_length"], params["batch"]
    ids, targets = batch_of_rank(size, context_length, device, batch)

    def trained() -> Any:
        model = build_model(size, context_length, "sdpa", device)
        return measured("training", "make_train_step")(
            model, ids, targets, precision=precision, variant=params["variant"]
        )

    train = trained()
    compute_dtype = None if params["compute_dtype"] == "float32" else torch.bfloat16
    train.run, finish = _sharded(sharding, train.model if train.run is None else train.run, compute_dtype)
    train.optimizer = measured("training", "adamw")(train.run, LR, WEIGHT_DECAY)
    after_init = rank_step.peak_bytes(device)
    alone = trained() if mode in ("alone", "exposed") else None

    outside_bytes = partial(getattr, train.run, "outside_bytes", 0)

    gradients: Callable[[], Any] = partial(rank_step.gradients, train, finish)

    def step() -> Any:
        loss = rank_step.step(train, finish)
        train.optimizer.zero_grad(set_to_none=True)  # leave room for the other arm of a comparison
        return loss

    def check() -> float:
        """Compare a step from the initial weights with the mean of whole models' gradients, and with AdamW's rule."""
        shapes, mean = _mean_gradients(alone or trained())
        gc.collect()  # a compiled block refers to itself, and would keep the whole model
        _restore(train, shapes)
        gradients()
        error = _check_gradients(train.model, mean, coarsest)
        _check_update(train, shapes)
        train.optimizer.zero_grad(set_to_none=True)  # leave room for the whole model that another arm is held to
        train.optimizer.state.clear()
        if alone:
            alone.optimizer.zero_grad(set_to_none=True)
        return error

    def facts() -> dict[str, float]:
        step()  # the moments begin with it
        facts = rank_step.state_bytes(train.model.parameters(), train.optimizer, _rows)
        if traffic := getattr(train.run, "traffic", None):
            facts |= {"gathered_bytes": traffic.gathered.num_bytes, "scattered_bytes": traffic.scattered.num_bytes}
            facts["copy_engines"] = int(getattr(train.run, "uses_copy_engines", False))
            facts["calls"] = traffic.gathered.calls + traffic.scattered.calls + traffic.averaged.calls
        peaks = rank_step.peaks_of(after_init, gradients, train.optimizer_step, device)
        return facts | {point: peak + outside_bytes() for point, peak in peaks.items()}

    whole: Callable[[], Any] = partial(rank_step.gradients, alone)
    # The optimizer touches 1/N of the states, which is left out: both modes read weights twice and write gradients.
    weights = 4 * size.parameters
    least = floor(size, context_length, coarsest, "step", batch)
    least = dataclasses.replace(least, bytes_read=2 * weights, bytes_written=weights)
    return Workload(
        run={"step": step, "alone": whole}.get(mode, gradients),
        check=check,
        floor=least,
        without=whole if mode == "exposed" else None,
        settles=True,
        facts=facts,
        outside_bytes=outside_bytes,
    )


def _sharded(sharding: str, model: Any, compute_dtype: Any) -> tuple[Any, Any]:
    """Shard the model, compiled or not; return what to call in its place, and after a backward."""
    blocks = measured("training", "blocks_of")(model)
    if sharding in PREFETCH:
        cls = measured("distributed.fsdp", "FullyShardedDataParallel")
        knows = "together" in inspect.signature(cls).parameters  # older commits gather each layer by itself
        net = cls(model, compute_dtype, prefetch=PREFETCH[sharding], **({"together": blocks} if knows else {}))
        return net, net.finish_gradient_synchronization
    try:
        from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
    except ImportError as error:
        raise Unavailable(f"this torch has no fully_shard: {error}") from error
    import torch
    import torch.distributed as dist

    reduce_dtype = torch.float32 if sharding == "torch" else compute_dtype
    policy = MixedPrecisionPolicy(param_dtype=compute_dtype, reduce_dtype=reduce_dtype)
    device = next(model.parameters()).device.type  # by default of a GPU if there is one, wherever the model is
    mesh = dist.init_device_mesh(device, (dist.get_world_size(),))
    for block in blocks:
        fully_shard(block, mesh=mesh, mp_policy=policy)
    return fully_shard(model, mesh=mesh, mp_policy=policy), lambda: None


def _rows(value: Any) -> Any:
    """Return this rank's rows of a parameter, gradient or moment; torch's are DTensors."""
    return value.to_local() if hasattr(value, "to_local") else value.detach()


def _named(model: Any) -> Iterator[tuple[str, Any]]:
    """Yield the parameters by the plain model's names."""
    for name, parameter in model.named_parameters():
        yield name.replace("_orig_mod.", ""), parameter


def _mean_gradients(alone: Any) -> tuple[dict[str, tuple[int, ...]], dict[str, Any]]:
    """Return the whole shapes, and the gradients of whole models averaged over the ranks."""
    import torch.distributed as dist

    alone.optimizer.zero_grad(set_to_none=True)
    alone.backward(alone.forward())
    mean = {}
    for name, parameter in _named(alone.model):
        mean[name] = parameter.grad
        dist.all_reduce(mean[name])
        mean[name] /= dist.get_world_size()
    return {name: tuple(gradient.shape) for name, gradient in mean.items()}, mean


def _restore(train: Any, shapes: dict[str, tuple[int, ...]]) -> None:
    """Restore the initial weights and forget the moments."""
    import torch

    train.optimizer.state.clear()
    with torch.no_grad():
        for name, parameter in _named(train.model):
            local = _rows(parameter)
            local.copy_(rank_step.own_rows(initial(name, shapes[name], str(local.device)), local))


def _check_gradients(model: Any, mean: dict[str, Any], precision: str) -> float:
    """Return the largest error of a parameter's gradient, over all ranks. Raises `WrongResult`."""
    import torch
    import torch.distributed as dist

    sums = []  # of each parameter: the squared error, the product with the mean, and the mean's square
    names = list(mean)
    parameters = dict(_named(model))
    for name in names:
        if parameters[name].grad is None:
            raise WrongResult(f"{name} has no gradient")
        found = _rows(parameters[name].grad).double()
        exact = rank_step.own_rows(mean[name], found).double()
        # what is replicated counts on every rank, in all three sums
        sums.append(torch.stack([(found - exact).square().sum(), (found * exact).sum(), exact.square().sum()]))
    stacked = torch.stack(sums)
    dist.all_reduce(stacked)
    errors = (stacked[:, 0] / stacked[:, 2]).sqrt()
    worst = int(errors.argmax())  # argmax returns the index of a NaN
    of_whole = "the mean of whole models"
    hold(f"the gradient of {names[worst]}", float(errors[worst]), GRADIENT_TOLERANCE[precision], of_whole)
    _, product, square = stacked.sum(0).tolist()
    hold("the gradient's slope", abs(product / square - 1), SLOPE_TOLERANCE[precision], of_whole)
    return float(errors[worst])


def _check_update(train: Any, shapes: dict[str, tuple[int, ...]]) -> None:
    """Raise `WrongResult` unless the optimizer takes AdamW's first step on every rank's rows."""
    import torch
    import torch.distributed as dist

    train.optimizer_step()
    sums = torch.zeros(2, dtype=torch.float64, device=next(iter(train.model.parameters())).device)
    for name, parameter in _named(train.model):
        local = _rows(parameter)
        old = rank_step.own_rows(initial(name, shapes[name], str(local.device)), local)
        sums += update_sums(local, old, _rows(parameter.grad))
    dist.all_reduce(sums)
    hold("the step", float((sums[0] / sums[1]).sqrt()), UPDATE_TOLERANCE, "AdamW's")
