"""The timed call of the CS336 leaderboard of 2026: a whole training step, its states sharded over the ranks."""

from functools import partial
from typing import Any

from perf.workloads import compile_any_number_of_shapes, measured, rank_step
from perf.workloads.transformer_oracle import Size, batch_of_rank, direction, exact_of, initial
from perf.workloads.transformer_state import UPDATE_TOLERANCE, build_model, hold, update_sums
from perf.workloads.transformer_training import GRADIENT_TOLERANCE, LOSS_TOLERANCE, floor
from perf.workloads.workload import Workload

CHECKED = 512
"""Tokens of each sequence on which the step is checked: float64 of 32768 would take the memory and time of many."""

ROWS = 4096
"""Rows of a matrix that are compared at a time."""


def build(params: dict[str, Any], device: str) -> Workload:
    """Build this rank's part of the step: fused loss, checkpointed groups, `FullyShardedDataParallel` and AdamW.

    `params`: the fields of `Size`, context_length, batch (of each rank), checkpoint_every, precision (fp32 or bf16),
    variant, attention, prefetch and world_size.
    """
    import torch
    import torch.distributed as dist

    size = Size(*(params[name] for name in Size._fields))
    context_length, precision, batch = params["context_length"], params["precision"], params["batch"]
    if params["variant"].startswith("compiled"):
        compile_any_number_of_shapes()
    every = params["checkpoint_every"]
    model = build_model(size, context_length, params["attention"], device, checkpoint_every=every)
    shapes = {name: tuple(parameter.shape) for name, parameter in model.named_parameters()}
    ids, targets = batch_of_rank(size, context_length, device, batch)
    train = measured("training", "make_train_step")(
        model, ids, targets, precision=precision, variant=params["variant"], fused_loss=True
    )
    dtype = torch.bfloat16 if precision == "bf16" else None
    net = measured("distributed.fsdp", "FullyShardedDataParallel")(model, dtype, prefetch=params["prefetch"])
    train.run = net

    step = partial(rank_step.step, train, net.finish_gradient_synchronization)

    def check() -> float:
        """Compare a step on the first tokens with float64: the loss, the gradient's projection and the update."""
        with torch.no_grad():
            for name, parameter in model.named_parameters():
                parameter.copy_(rank_step.own_rows(initial(name, shapes[name], device), parameter))
        train.optimizer.state.clear()
        train.optimizer.zero_grad()  # float64 needs the memory
        train.ids, train.targets = ids[:, :CHECKED], targets[:, :CHECKED]
        try:
            exact = exact_of(size, train.ids, train.targets, initial)
            loss = step()
        finally:
            train.ids, train.targets = ids, targets
        sums = torch.tensor([float(loss), exact.loss, exact.slope], dtype=torch.float64, device=device)
        sums = torch.cat((sums / dist.get_world_size(), sums.new_zeros(4)))
        for name, parameter in model.named_parameters():
            share = 1 / dist.get_world_size() if parameter.shape == shapes[name] else 1.0  # in a sum over the ranks
            wholes = (make(name, shapes[name], device) for make in (initial, direction))
            local = (parameter.detach(), parameter.grad, *(rank_step.own_rows(whole, parameter) for whole in wholes))
            for part in zip(*(x.split(ROWS) for x in local), strict=True):
                new, gradient, old, towards = (x.double() for x in part)
                sums[3:5] += share * torch.stack([(gradient * towards).sum(), gradient.square().sum()])
                sums[5:] += share * update_sums(new, old, gradient)
        dist.all_reduce(sums)
        loss, exact_loss, exact_slope, slope, square, update_error, update_square = sums.tolist()
        hold("the loss", abs(loss / exact_loss - 1), LOSS_TOLERANCE[precision])
        hold("AdamW's update", (update_error / update_square) ** 0.5, UPDATE_TOLERANCE)
        return hold("the gradient", abs(slope - exact_slope) / square**0.5, GRADIENT_TOLERANCE[precision])

    exact = floor(size, context_length, precision, "step", batch)
    outside = partial(getattr, net, "outside_bytes", 0)
    return Workload(run=step, check=check, floor=exact, settles=True, outside_bytes=outside)
