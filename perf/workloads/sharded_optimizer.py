"""A training step of a Transformer on every rank, with the optimizer's state replicated or sharded."""

from functools import partial
from typing import Any

from perf.workloads import compile_any_number_of_shapes, measured, rank_step
from perf.workloads.transformer import floor
from perf.workloads.transformer_oracle import SIZES, batch_of_rank, initial
from perf.workloads.transformer_state import LR, WEIGHT_DECAY, build_model, hold, restore, update_sums
from perf.workloads.workload import Workload, require_allowed

SHARDINGS = ("none", "sharded", "sharded_reducing", "torch")
# Relative error of an update; 3.2e-6 on H200s. AdamW's direction is arbitrary for a gradient of almost zero.
WEIGHT_TOLERANCE = 2e-3


def build(params: dict[str, Any], device: str) -> Workload:
    """Build a step with the given sharding on this rank.

    `params`: sharding, size, context_length, batch, precision, variant, world_size. Sharding none is torch's AdamW on
    every rank, sharded `ShardedOptimizer` after an all-reduce (3P), sharded_reducing the same with gradients reduced to
    their owners (2P), torch ZeroRedundancyOptimizer. `BucketedDDP` averages the gradients, except in sharded_reducing.
    The batch is that of every rank; attention is PyTorch's.
    """
    import torch
    import torch.distributed as dist

    sharding, precision, variant = params["sharding"], params["precision"], params["variant"]
    require_allowed(params, sharding=SHARDINGS)
    if variant.startswith("compiled"):
        compile_any_number_of_shapes()
    if device == "cuda":
        torch.cuda.reset_peak_memory_stats()  # of the case before, in the same process
    size, context_length = SIZES[params["size"]], params["context_length"]
    model = build_model(size, context_length, "sdpa", device)
    after_init = rank_step.peak_bytes(device)
    batch = params["batch"]
    ids, targets = batch_of_rank(size, context_length, device, batch)
    train = measured("training", "make_train_step")(model, ids, targets, precision=precision, variant=variant)
    parallel = None
    if sharding != "sharded_reducing":
        parallel = train.run = measured("distributed.ddp", "BucketedDDP")(model if train.run is None else train.run)
    finish = parallel.finish_gradient_synchronization if parallel else lambda: None
    if sharding != "none":
        train.optimizer = _optimizer(sharding, model)

    gradients = partial(rank_step.gradients, train, finish)

    def check() -> float:
        """Compare a step from the initial weights with torch's AdamW on averaged gradients, on every rank."""
        restore(model, None)
        rank_step.state_of(train.optimizer).clear()  # the moments start again; no CUDA graph refers to them
        gradients()
        mean = {name: parameter.grad.double() for name, parameter in model.named_parameters()}
        if sharding == "sharded_reducing":
            for gradient in mean.values():
                dist.all_reduce(gradient)
                gradient /= dist.get_world_size()
        train.optimizer_step()
        error, square = sum(
            update_sums(parameter, initial(name, tuple(parameter.shape), device), mean[name])
            for name, parameter in model.named_parameters()
        ).tolist()
        relative = (error / square) ** 0.5
        hold("the step", relative, WEIGHT_TOLERANCE, "AdamW's")
        rank_step.require_equal_on_all_ranks(model)
        return relative

    def facts() -> dict[str, float]:
        facts = rank_step.state_bytes(model.parameters(), train.optimizer)
        if traffic := getattr(train.optimizer, "traffic", None):
            facts |= {"optimizer_calls": traffic.calls, "communicated_bytes": traffic.num_bytes}
        return facts | rank_step.peaks_of(after_init, gradients, train.optimizer_step, device)

    run, least = partial(rank_step.step, train, finish), floor(size, context_length, precision, "step", batch)
    return Workload(run=run, check=check, floor=least, settles=True, facts=facts)


def _optimizer(sharding: str, model: Any) -> Any:
    """Build AdamW with the course's hyperparameters and its state sharded over the ranks."""
    import torch
    from torch.distributed.optim import ZeroRedundancyOptimizer

    rule: dict[str, Any] = {"lr": LR, "weight_decay": WEIGHT_DECAY, "fused": True}
    if sharding == "torch":
        return ZeroRedundancyOptimizer(model.parameters(), torch.optim.AdamW, parameters_as_bucket_view=False, **rule)
    cls = measured("distributed.sharded_optimizer", "ShardedOptimizer")
    return cls(model.parameters(), torch.optim.AdamW, reduces_gradients=sharding == "sharded_reducing", **rule)
