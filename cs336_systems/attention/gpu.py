"""GPU properties that decide which kernels and tiles run. On the CPU Triton's interpreter runs programs one by one."""

import functools
import importlib

import torch
import triton

from cs336_systems.attention.private import warn_once

MIN_SHARED_BYTES = 200 * 2**10
"""Minimum shared memory of a block for the tiles that were tuned; MIN_SHARED_BYTES_MEDIUM for MEDIUM_TILES."""

MIN_SHARED_BYTES_MEDIUM = 160 * 2**10


@functools.cache
def multiprocessors(device: torch.device) -> int:
    """Return the multiprocessors of a GPU; 0 on the CPU, where Triton's interpreter runs programs one by one."""
    return int(torch.cuda.get_device_properties(device).multi_processor_count) if device.type == "cuda" else 0


@functools.cache
def shared_bytes(device: torch.device) -> int:
    """Return the maximum shared memory of a block; Triton's interpreter has no limit."""
    if device.type != "cuda":
        return MIN_SHARED_BYTES
    properties = torch.cuda.get_device_properties(device)
    return int(getattr(properties, "shared_memory_per_block_optin", MIN_SHARED_BYTES_MEDIUM))


@functools.cache
def l2_bytes(device: torch.device) -> int:
    """Return the size of a GPU's L2 cache; 0 on the CPU."""
    return int(torch.cuda.get_device_properties(device).L2_cache_size) if device.type == "cuda" else 0


@functools.cache
def launches_early(device: torch.device) -> bool:
    """Whether a kernel can be launched before the last one ends, and wait for it: programmatic dependent launch."""
    if device.type != "cuda" or triton.knobs.runtime.interpret or torch.version.hip:
        return False
    return torch.cuda.get_device_capability(device) >= (9, 0)


@functools.cache
def runs_gluon(device: torch.device) -> bool:
    """Whether this is a GPU of compute capability 9.0 and triton has Gluon for it; never under the interpreter."""
    if (
        device.type != "cuda"
        or triton.knobs.runtime.interpret
        or torch.version.hip
        or torch.cuda.get_device_capability(device) != (9, 0)
    ):
        return False
    try:
        importlib.import_module("cs336_systems.attention.gluon_kernels")
    except Exception as reason:
        warn_once(f"Gluon ({reason})", "attention takes the plain Triton kernels, at some 1.3 to 3 times the time")
        return False
    return True
