"""Backends that no machine has to have: imported by a test, they are registered in its ranks too."""

from typing import Any

import torch.distributed as dist
import torch.testing._internal.distributed.fake_pg  # noqa: F401, registers it in versions that do not themselves

FAKE = "fake"
"""Torch's own, which sends nothing."""

LIKE_GLOO_ON_CUDA = "like_gloo_on_cuda"
"""On CPU tensors what gloo does with CUDA tensors: everything coalesced, or averaged, is refused."""

PLAIN = ("allreduce", "broadcast", "reduce", "allgather", "gather", "scatter", "barrier", "send", "recv")
"""The collectives of torch's ProcessGroupGloo that take CUDA tensors, in every version from 2.11."""

FAST = ("allreduce_coalesced", "allgather_coalesced", "reduce_scatter", "_start_coalescing", "_end_coalescing")
"""Those that it has for no CUDA tensor, or not in every version."""


class LikeGlooOnCuda(dist.ProcessGroup):
    """Hands what is plain on to gloo."""

    def __init__(self, store: dist.Store, rank: int, size: int, timeout: Any):
        super().__init__(rank, size)
        self._gloo = dist.ProcessGroupGloo(store, rank, size, timeout)

    def getBackendName(self) -> str:  # noqa: N802, torch's name
        return LIKE_GLOO_ON_CUDA


def _plain(name: str) -> Any:
    def collective(self: LikeGlooOnCuda, *args: Any, **kwargs: Any) -> Any:
        for one in (*args, *kwargs.values()):
            if getattr(one, "reduceOp", dist.ReduceOp.SUM) == dist.ReduceOp.AVG:
                raise ValueError("Cannot use ReduceOp.AVG with Gloo")
        return getattr(self._gloo, name)(*args, **kwargs)

    return collective


def _refused(name: str) -> Any:
    def collective(self: LikeGlooOnCuda, *args: Any, **kwargs: Any) -> Any:
        raise RuntimeError(f"ProcessGroupGloo::{name}: unsupported device type cuda")

    return collective


for _name in PLAIN:
    setattr(LikeGlooOnCuda, _name, _plain(_name))
for _name in FAST:
    setattr(LikeGlooOnCuda, _name, _refused(_name))
if LIKE_GLOO_ON_CUDA.upper() not in vars(dist.Backend):
    dist.Backend.register_backend(LIKE_GLOO_ON_CUDA, LikeGlooOnCuda, devices=["cpu"])
