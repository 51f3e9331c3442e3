"""Runs the kernels in Gluon, with their launchers, on the CPU: their own text, over tensors instead of registers.

Warp groups are threads, mbarriers count as they count, a copy by TMA fills with zeros and clips what is beyond the end.
So indices, masks, phases and the order of the warp groups are what is tested, and a deadlock is an error. Layouts, how
wgmma overlaps and what the proxies of memory see in which order are not.
"""

import importlib
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import ModuleType, SimpleNamespace
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor

PACKAGE = "cs336_systems.attention"
KERNELS = (
    "scaffold",
    "columns",
    "order",
    "pieces",
    "forward",
    "forward_float32",
    "backward",
    "backward_64",
    "backward_128",
    "backward_float32",
)
LAUNCHERS = ("tma", "gluon_plans")


class Shared:
    """Tiles of shared memory."""

    layout = None

    def __init__(self, tensor: Tensor) -> None:
        self.tensor, self.dtype, self.shape = tensor, tensor.dtype, tensor.shape

    def index(self, i: Any) -> "Shared":
        return Shared(self.tensor[int(i)])

    def reshape(self, shape: tuple[int, ...]) -> "Shared":
        return Shared(self.tensor.view(shape))

    def permute(self, order: tuple[int, ...]) -> "Shared":
        return Shared(self.tensor.permute(order))

    def slice(self, start: int, length: int, dim: int = 0) -> "Shared":
        return Shared(self.tensor.narrow(dim, start, length))

    def store(self, x: Tensor) -> None:
        assert x.shape == self.tensor.shape, (x.shape, self.tensor.shape)
        self.tensor.copy_(x)

    def load(self, layout: object) -> Tensor:
        return self.tensor.clone()

    def reinterpret(self, dtype: torch.dtype, shape: list[int], layout: object, _semantic: None) -> "Shared":
        """View the memory; where float32 stands for 16 bits it may be too small, and then it is new."""
        elements = torch.Size(shape).numel()
        flat = self.tensor.reshape(-1).view(dtype)
        if flat.numel() < elements:
            return _allocate(dtype, shape, layout)
        return Shared(flat[:elements].view(shape))


class Pointer:
    """Into a tensor's memory, at one place or at many."""

    def __init__(self, tensor: Tensor, at: Any = 0) -> None:
        elements = tensor.untyped_storage().nbytes() // tensor.element_size() - tensor.storage_offset()
        self.flat, self.at = tensor.as_strided((elements,), (1,)), at

    def __add__(self, x: Any) -> "Pointer":
        return Pointer(self.flat, self.at + x)


@dataclass
class TensorDescriptor:
    """A tensor in global memory, read and written in tiles."""

    base: Tensor
    shape: list[int]
    strides: list[int]
    block_shape: list[int]
    layout: object

    def __post_init__(self) -> None:
        assert self.base.data_ptr() % 16 == 0
        assert self.strides[-1] == 1 and all(one * self.base.element_size() % 16 == 0 for one in self.strides[:-1])

    @property
    def dtype(self) -> torch.dtype:
        return self.base.dtype

    @property
    def block_type(self) -> SimpleNamespace:
        size = torch.Size(self.block_shape)
        return SimpleNamespace(nbytes=size.numel() * self.base.element_size(), shape=size)

    @property
    def memory(self) -> Tensor:
        return self.base.as_strided(self.shape, self.strides)

    def tile(self, coord: list[Any]) -> tuple[tuple[slice, ...], tuple[slice, ...]]:
        """What of the tile at `coord` exists: in the tensor, and in the tile."""
        ends = [(int(c), b, n) for c, b, n in zip(coord, self.block_shape, self.shape, strict=True)]
        assert all(c >= 0 for c, _, _ in ends)
        inside = tuple(slice(min(c, n), min(c + b, n)) for c, b, n in ends)
        return inside, tuple(slice(0, max(min(c + b, n) - c, 0)) for c, b, n in ends)


class Program:
    """One program's mbarriers, and what went wrong in it."""

    def __init__(self, program_id: int, num_programs: int) -> None:
        self.program_id, self.num_programs = torch.tensor(program_id), num_programs
        self.barriers: dict[int, dict[str, int]] = {}
        self.changed = threading.Condition()
        self.running = 1  # warp groups that have not ended
        self.waiting: dict[int, tuple[dict[str, int], int]] = {}  # thread -> its barrier, and the phase that must end
        self.errors: list[BaseException] = []

    def look_for_deadlock(self) -> None:
        """Note an error if all warp groups that have not ended wait, and none for a phase that has ended."""
        stuck = [state["phase"] % 2 == phase for state, phase in self.waiting.values()]
        if self.running and len(stuck) == self.running and all(stuck):
            self.errors.append(RuntimeError(f"deadlock of {self.running} warp groups"))
            self.changed.notify_all()


CURRENT = threading.local()  # .program, and of a warp group .passed: phases of barriers that it has waited for


def _change(barrier: Shared, arrivals: int, num_bytes: int) -> None:
    program = CURRENT.program
    with program.changed:
        state = program.barriers[barrier.tensor.data_ptr()]
        state["pending"] -= arrivals
        state["bytes"] += num_bytes
        assert state["pending"] >= 0, "more arrivals than the barrier counts"
        if state["pending"] == state["bytes"] == 0:
            state["phase"] += 1
            state["pending"] = state["count"]
            program.changed.notify_all()


def _init(barrier: Shared, count: int) -> None:
    state = {"count": count, "pending": count, "bytes": 0, "phase": 0}
    CURRENT.program.barriers[barrier.tensor.data_ptr()] = state


def _wait(barrier: Shared, phase: Any, pred: Any = True) -> None:
    if not bool(pred):
        return
    program = CURRENT.program
    with program.changed:
        state = program.barriers[barrier.tensor.data_ptr()]
        program.waiting[threading.get_ident()] = state, int(phase)
        program.look_for_deadlock()
        program.changed.wait_for(lambda: state["phase"] % 2 != int(phase) or program.errors)
        del program.waiting[threading.get_ident()]
        if program.errors:
            raise RuntimeError("another warp group failed")
        # A parity cannot tell a phase from the one after the next: who misses one may pass too early, or never.
        missed = state["phase"] - CURRENT.passed.setdefault(barrier.tensor.data_ptr(), state["phase"])
        assert missed in (0, 1), "a warp group missed a phase of a barrier"
        CURRENT.passed[barrier.tensor.data_ptr()] = state["phase"]


def _copy_to_shared(desc: TensorDescriptor, coord: list[Any], barrier: Shared, tile: Shared) -> None:
    inside, within = desc.tile(coord)
    tile.tensor.zero_()
    tile.tensor[within] = desc.memory[inside]
    _change(barrier, 0, -desc.block_type.nbytes)


def _copy_to_global(desc: TensorDescriptor, coord: list[Any], tile: Shared) -> None:
    inside, within = desc.tile(coord)
    desc.memory[inside] = tile.tensor[within]


def _add_to_global(desc: TensorDescriptor, coord: list[Any], tile: Shared) -> None:
    inside, within = desc.tile(coord)
    with CURRENT.program.changed:
        desc.memory[inside] += tile.tensor[within]


def _warp_specialize(parts: list[tuple[Callable[..., None], tuple[Any, ...]]], warps: list[int], registers: list[int]):
    program = CURRENT.program
    assert len(parts) - 1 == len(warps) == len(registers)

    def run(part: Callable[..., None], arguments: tuple[Any, ...]) -> None:
        CURRENT.program, CURRENT.passed = program, {}
        try:
            with torch.no_grad():  # a thread's own
                part(*arguments)
        except BaseException as error:  # raised below, in the thread that asked
            with program.changed:
                program.errors.append(error)
                program.changed.notify_all()
        with program.changed:
            program.running -= 1
            program.look_for_deadlock()

    program.running = len(parts)
    threads = [threading.Thread(target=run, args=part) for part in parts]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if program.errors:
        raise program.errors[0]
    for state in program.barriers.values():
        assert state["pending"] == state["count"] and not state["bytes"], "an arrival is missing"


def _mma(a: Any, b: Any, acc: Tensor, *, use_acc: bool = True, is_async: bool = False) -> Tensor:
    a, b = (x.tensor if isinstance(x, Shared) else x for x in (a, b))
    assert acc.shape == (a.shape[0], b.shape[1]), (a.shape, b.shape, acc.shape)
    return a.float() @ b.float() + (acc if use_acc else 0)


def _allocate(dtype: torch.dtype, shape: list[int], layout: object) -> Shared:
    return Shared(torch.full(shape, 0 if dtype == torch.int64 else float("nan"), dtype=dtype))


def _load(pointer: Pointer, mask: Tensor, other: float) -> Tensor:
    return torch.where(mask, pointer.flat[torch.where(mask, pointer.at, 0)], other)


def _store(pointer: Pointer, x: Tensor, mask: Tensor) -> None:
    pointer.flat[pointer.at[mask]] = x[mask]


def _atomic_add(pointer: Pointer, x: Tensor, mask: Tensor, sem: str) -> None:
    with CURRENT.program.changed:
        pointer.flat[pointer.at[mask]] += x[mask]


def _as_function(function: Any = None, **options: object) -> Any:
    return function if function is not None else lambda decorated: decorated


class _Kernel:
    def __init__(self, function: Callable[..., None]) -> None:
        self.function = function

    def __getitem__(self, grid: tuple[int]) -> Callable[..., None]:
        def launch(*arguments: Any, num_warps: int, maxnreg: int = 0, **constants: Any) -> None:
            told = [Pointer(x) if isinstance(x, Tensor) else torch.tensor(x) if isinstance(x, int) else x
                    for x in arguments]  # fmt: skip
            for program_id in range(grid[0]):
                CURRENT.program = Program(program_id, grid[0])
                self.function(*told, **constants)

        return launch


def _nothing(*arguments: object, **options: object) -> None:
    return None


_GL = {
    "constexpr": lambda x: x,
    "bfloat16": torch.bfloat16,
    "float32": torch.float32,
    "int32": torch.int32,
    "int64": torch.int64,
    "tuple": tuple,
    "NVMMADistributedLayout": _nothing,
    "DotOperandLayout": _nothing,
    "SliceLayout": _nothing,
    "BlockedLayout": _nothing,
    "SwizzledSharedLayout": _nothing,
    "static_range": range,
    "program_id": lambda axis: CURRENT.program.program_id,
    "num_programs": lambda axis: CURRENT.program.num_programs,
    "cdiv": lambda a, b: (a + b - 1) // b,
    "minimum": lambda a, b: torch.minimum(torch.as_tensor(a), torch.as_tensor(b)),
    "maximum": lambda a, b: torch.maximum(torch.as_tensor(a), torch.as_tensor(b)),
    "zeros": lambda shape, dtype, layout: torch.zeros(shape, dtype=dtype),
    "full": lambda shape, value, dtype, layout: torch.full(shape, value, dtype=dtype),
    "arange": lambda start, end, layout: torch.arange(start, end),
    "where": torch.where,
    "max": lambda x, dim: x.amax(dim),
    "sum": lambda x, dim: x.sum(dim),
    "join": lambda a, b: torch.stack((a, b), -1),
    "exp2": torch.exp2,
    "log2": torch.log2,
    "split": lambda x: x.unbind(-1),
    "convert_layout": lambda x, layout: x,
    "load": _load,
    "store": _store,
    "atomic_add": _atomic_add,
    "allocate_shared_memory": _allocate,
    "warp_specialize": _warp_specialize,
}


def _module(name: str, **names: Any) -> ModuleType:
    module = ModuleType(name)
    module.__dict__.update(names)
    return module


def _stand_ins() -> dict[str, ModuleType]:
    gluon = "triton.experimental.gluon"
    layout = type("NVMMASharedLayout", (), {"__init__": _nothing, "get_default_for": staticmethod(_nothing)})
    language = _module(f"{gluon}.language", **_GL, NVMMASharedLayout=layout)
    barrier = SimpleNamespace(
        MBarrierLayout=_nothing,
        init=_init,
        arrive=lambda barrier, count, pred=True: _change(barrier, count, 0) if pred else None,
        expect=lambda barrier, num_bytes: _change(barrier, 1, num_bytes),
        wait=_wait,
    )
    tma = SimpleNamespace(
        async_load=_copy_to_shared,
        async_store=_copy_to_global,
        async_atomic_add=_add_to_global,
        store_wait=_nothing,
    )
    return {
        gluon: _module(gluon, jit=_as_function, constexpr_function=_as_function, language=language),
        f"{gluon}.language": language,
        f"{gluon}.language._core": _module(f"{gluon}.language._core", builtin=_as_function),
        f"{gluon}.language.nvidia.hopper": _module(
            f"{gluon}.language.nvidia.hopper",
            fence_async_shared=_nothing,
            mbarrier=barrier,
            tma=tma,
            warpgroup_mma=_mma,
            warpgroup_mma_wait=lambda pendings, deps: deps if len(deps) > 1 else deps[0],
        ),
        f"{gluon}.language.nvidia.hopper.tma": tma,
        f"{gluon}.nvidia.hopper": _module(f"{gluon}.nvidia.hopper", TensorDescriptor=TensorDescriptor),
    }


@contextmanager
def launchers_on_cpu() -> Iterator[Any]:
    """Yield the module `gluon_plans`, whose kernels take CPU tensors of any dtype."""
    importlib.import_module(f"{PACKAGE}.flash_triton")
    package = importlib.import_module(PACKAGE)
    folder = f"{PACKAGE}.gluon_kernels"
    ours = [folder, *(f"{folder}.{name}" for name in KERNELS), *(f"{PACKAGE}.{name}" for name in LAUNCHERS)]
    before = {name: sys.modules.pop(name) for name in ours if name in sys.modules}
    stand_ins = _stand_ins()
    experimental = importlib.import_module("triton.experimental")
    gluon = stand_ins["triton.experimental.gluon"]
    with patch.dict(sys.modules, stand_ins), patch.object(experimental, "gluon", gluon, create=True):
        plans = importlib.import_module(f"{PACKAGE}.gluon_plans")
        for name in [name for name in vars(plans) if name == "split_kernel" or "_hopper_" in name]:
            setattr(plans, name, _Kernel(getattr(plans, name)))
    try:
        yield plans
    finally:
        for name in ours:
            sys.modules.pop(name, None)
        for name in ("gluon_kernels", *LAUNCHERS):
            package.__dict__.pop(name, None)
        sys.modules.update(before)
