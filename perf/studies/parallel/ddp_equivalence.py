"""Compare the weights trained on several ranks with those trained on one."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click

from perf.options import Count
from perf.studies.device import device_kind
from perf.studies.document import kept, out_option, present
from perf.studies.parallel.ranked import some_world_sizes, world_size_option
from perf.studies.rows import Row
from perf.workloads import measured
from perf.workloads.data_parallel import OURS

CONTEXT = 32
ALLOWED = 1e-5
"""Relative difference of all weights after all steps: the sum over ranks rounds in another order."""


@click.command("ddp-equivalence")
@world_size_option
@click.option("--size", default="tiny", show_default=True, type=click.Choice(["tiny", "small"]))
@click.option("--steps", default=3, show_default=True, type=Count())
@click.option("--local-batch-size", default=8, show_default=True, type=Count(), help="Sequences on each rank.")
@out_option
def command(world_sizes: tuple[int, ...], size: str, steps: int, local_batch_size: int, out: Path) -> None:
    """Compare the weights trained on several ranks with those trained on one. Seconds.

    \b
    python -m perf study ddp-equivalence --world-size 4 --steps 5

    A small Transformer, SGD in float32: every strategy, on ranks that start from different weights, against one process
    with the whole batch. Weights must be bit-identical on all ranks and equal those of one process up to rounding.
    """
    device = device_kind()
    spawn, backend = measured("distributed.process_group", "spawn"), "nccl" if device == "cuda" else "gloo"

    def rows() -> Iterator[Row]:
        for world_size in some_world_sizes(world_sizes, device):
            exact = trained(0, 1, None, steps, local_batch_size * world_size, device, size)
            for strategy in OURS:
                arguments = (world_size, strategy, steps, local_batch_size, device, size)
                try:
                    weights = spawn(trained, world_size, *arguments, backend=backend)
                except ValueError as error:
                    raise click.ClickException(str(error)) from None
                yield {"strategy": strategy, "world_size": world_size} | compared(weights, exact)

    whole = kept(rows(), device, out / "ddp-equivalence.json")
    present(whole, f"{size}, {steps} steps of SGD, {local_batch_size} sequences a rank, float32", shown(whole["rows"]))
    if not all(row["equal_on_ranks"] and row["difference"] <= ALLOWED for row in whole["rows"]):
        raise click.ClickException(
            f"the weights differ; allowed: {ALLOWED:g} (relative) against one process, 0 over ranks"
        )


def trained(
    rank: int, world_size: int, strategy: str | None, steps: int, batch: int, device: str, size: str
) -> dict[str, Any]:
    """Return the weights after `steps`; without a strategy, those of one process with the whole batch."""
    import torch

    torch.manual_seed(rank)  # rank 0's weights are everybody's
    config = measured("configs", "MODEL_CONFIGS")[size]
    model = measured("transformer", "TransformerLM")(config, CONTEXT).to(device)
    net = measured("distributed.ddp", OURS[strategy])(model) if strategy else model
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    generator = torch.Generator().manual_seed(7)
    loss_of = measured("training", "cross_entropy")
    for _ in range(steps):
        ids = torch.randint(config.vocab_size, (batch * world_size, CONTEXT), generator=generator)
        mine = ids[rank * batch : (rank + 1) * batch].to(device)
        optimizer.zero_grad()
        loss_of(net(mine), mine.roll(-1, 1)).backward()
        if strategy:
            net.finish_gradient_synchronization()
        optimizer.step()
    return {name: value.cpu() for name, value in model.state_dict().items()}


def compared(ranks: list[dict[str, Any]], exact: dict[str, Any]) -> dict[str, Any]:
    """Return whether all ranks agree bit by bit, and their distance from one process, relative to its weights."""
    import torch

    equal = all(torch.equal(ranks[0][name], other[name]) for other in ranks for name in ranks[0])
    error = sum(float((ranks[0][name].double() - value.double()).square().sum()) for name, value in exact.items())
    norm = sum(float(value.double().square().sum()) for value in exact.values())
    return {"equal_on_ranks": equal, "difference": (error / norm) ** 0.5}


def shown(rows: list[Row]) -> list[Row]:
    """Return the cells of each row by column title."""
    return [
        {
            "strategy": row["strategy"],
            "ranks": row["world_size"],
            "ranks equal, bit by bit": "yes" if row["equal_on_ranks"] else "NO",
            "against one process": f"{row['difference']:.1e}",
        }
        for row in rows
    ]
