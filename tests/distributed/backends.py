"""Backends for tests on any machine. A test that imports this module registers them in its ranks too."""

from typing import Any

import torch.distributed as dist
import torch.testing._internal.distributed.fake_pg  # noqa: F401, registers it in versions that do not themselves

FAKE = "fake"
"""torch's backend that sends nothing."""

LIKE_GLOO_ON_CUDA = "like_gloo_on_cuda"
"""Gloo on CPU tensors, restricted to the collectives that it has for CUDA tensors."""

PLAIN = ("allreduce", "broadcast", "reduce", "allgather", "gather", "scatter", "barrier", "send", "recv")
"""Collectives of ProcessGroupGloo that accept CUDA tensors in torch 2.11 and later."""

FAST = ("allreduce_coalesced", "allgather_coalesced", "reduce_scatter", "_start_coalescing", "_end_coalescing")
"""Collectives that it lacks for CUDA tensors in at least one version."""


class LikeGlooOnCuda(dist.ProcessGroup):
    """Process group that forwards plain collectives to gloo."""

    def __init__(self, store: dist.Store, rank: int, size: int, timeout: Any):
        super().__init__(rank, size)
        self._gloo = dist.ProcessGroupGloo(store, rank, size, timeout)

    def getBackendName(self) -> str:  # noqa: N802, torch's name
        return LIKE_GLOO_ON_CUDA

    def _set_group_name(self, name: str) -> None:
        self._name = name

    @property
    def group_name(self) -> str:  # torch's own is its first backend's, and this has none
        return self._name


def _plain(name: str) -> Any:
    def collective(self: LikeGlooOnCuda, *args: Any, **kwargs: Any) -> Any:
        for argument in (*args, *kwargs.values()):
            if getattr(argument, "reduceOp", dist.ReduceOp.SUM) == dist.ReduceOp.AVG:
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
