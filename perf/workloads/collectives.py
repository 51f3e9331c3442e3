"""A collective of torch.distributed over all ranks; see `perf.harness.ranks`."""

from typing import Any

from perf.workloads.workload import Workload, WrongResult, no_floor

MB = 10**6
FLOOR = no_floor("the rate of the links between the ranks is what is measured")


def build(params: dict[str, Any], device: str) -> Workload:
    """Build this rank's part of an in-place all-reduce.

    `params`: world_size, megabytes (of float32, 10^6 bytes each).
    """
    import torch
    import torch.distributed as dist

    rank, world_size = dist.get_rank(), dist.get_world_size()
    data = torch.zeros(params["megabytes"] * MB // 4, dtype=torch.float32, device=device)  # sums of zeros stay finite

    def run() -> None:
        dist.all_reduce(data)

    def check() -> float:
        data.copy_(torch.arange(data.numel(), device=device) % 1000)
        data.mul_(rank + 1)
        dist.all_reduce(data)
        exact = (torch.arange(data.numel(), device=device) % 1000) * (world_size * (world_size + 1) // 2)
        if not torch.equal(data, exact.float()):
            raise WrongResult("the sum over the ranks is not exact, though its terms are small integers")
        data.zero_()
        return 0.0

    return Workload(run=run, check=check, floor=FLOOR, facts=lambda: {"bytes": data.nbytes})
