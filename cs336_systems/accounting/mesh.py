"""The course's XXL on a torus of TPUs: memory of its training, and the batch that hides its communication.

The model is a stack of L feed-forwards of two matrices d x f, with float32 states and bfloat16 activations. X devices
share the batch and the weights (FSDP) and Y share each matmul (tensor parallelism), over M_X and M_Y axes of the torus
with W bytes/s each. Source: the course (Spring 2025, communication_accounting); "How to Scale Your Model", chapter 5.
"""

import math
from dataclasses import dataclass


@dataclass(frozen=True)
class Stack:
    """Stack of feed-forwards."""

    d_model: int
    d_ff: int
    num_layers: int

    @property
    def parameters(self) -> int:
        """Number of parameters: P = 2dfL."""
        return 2 * self.d_model * self.d_ff * self.num_layers

    @property
    def state_bytes(self) -> int:
        """Size of master weights (4P), accumulated gradients (4P) and Adam's moments (8P): 16P."""
        return 16 * self.parameters

    def kept_bytes(self, tokens: int) -> int:
        """Size of the inputs of the two matrices, 2(d + f)L per token, without the activation in between."""
        return 2 * (self.d_model + self.d_ff) * self.num_layers * tokens


@dataclass(frozen=True)
class Mesh:
    """Mesh of X x Y devices."""

    fsdp: int
    """X, the devices of an FSDP group."""

    tensor: int
    """Y, the devices of a tensor-parallel group."""

    fsdp_axes: int
    """M_X, the axes of the torus for FSDP."""

    tensor_axes: int
    """M_Y, the axes of the torus for tensor parallelism."""

    flops_per_s: float
    """C, the rate of one device."""

    bandwidth: float
    """W, the bandwidth of one axis in both directions."""

    memory_bytes: float

    @property
    def devices(self) -> int:
        """Number of devices: N = XY."""
        return self.fsdp * self.tensor

    @property
    def intensity(self) -> float:
        """FLOPs per byte of one axis: C/W."""
        return self.flops_per_s / self.bandwidth


XXL = Stack(d_model=16384, d_ff=53248, num_layers=126)
TPU_V5P = Mesh(fsdp=16, tensor=4, fsdp_axes=2, tensor_axes=1, flops_per_s=4.6e14, bandwidth=2 * 9e10, memory_bytes=95e9)


def device_bytes(stack: Stack, tokens: int, num_devices: float) -> float:
    """Memory of a device: (16P + A/2)/N + A/2 with A = `kept_bytes`; FSDP divides states and half the activations."""
    half = stack.kept_bytes(tokens) / 2
    return (stack.state_bytes + half) / num_devices + half


def min_devices(stack: Stack, tokens: int, memory_bytes: float) -> int | None:
    """Minimum number of devices whose `device_bytes` fit; None if the undivided half of the activations does not."""
    half = stack.kept_bytes(tokens) / 2
    if half >= memory_bytes:
        return None
    return max(1, math.ceil((stack.state_bytes + half) / (memory_bytes - half)))


def layer_seconds(stack: Stack, tokens: float, mesh: Mesh) -> dict[str, float]:
    """Times of a layer's forward: math 4 Bdf/(XYC), FSDP 4 df/(Y W M_X), tensor parallelism 4 Bd/(X W M_Y)."""
    d, f = stack.d_model, stack.d_ff
    return {
        "math": 4 * tokens * d * f / (mesh.devices * mesh.flops_per_s),
        "fsdp": 4 * d * f / (mesh.tensor * mesh.bandwidth * mesh.fsdp_axes),
        "tensor": 4 * tokens * d / (mesh.fsdp * mesh.bandwidth * mesh.tensor_axes),
    }


def min_d_ff(mesh: Mesh) -> float:
    """Minimum width of a layer that hides its tensor parallelism at any batch: Y (C/W)/M_Y."""
    return mesh.tensor * mesh.intensity / mesh.tensor_axes


def min_tokens(mesh: Mesh) -> float:
    """Minimum tokens that hide FSDP on this mesh if both communications overlap with the math: X (C/W)/M_X."""
    return mesh.fsdp * mesh.intensity / mesh.fsdp_axes


def min_tokens_in_sequence(stack: Stack, mesh: Mesh) -> float | None:
    """Minimum tokens that hide both communications in sequence, math >= fsdp + tensor; None up to `min_d_ff`."""
    per_token = layer_seconds(stack, 1, mesh)
    spare = per_token["math"] - per_token["tensor"]
    return per_token["fsdp"] / spare if spare > 0 else None


def min_tokens_on_the_best_mesh(stack: Stack, mesh: Mesh) -> float:
    """Minimum tokens if X and Y are chosen for the batch, as in the book: N (C/W)^2/(M_X M_Y f); overlapping."""
    return mesh.devices * mesh.intensity**2 / (mesh.fsdp_axes * mesh.tensor_axes * stack.d_ff)


def best_fsdp(stack: Stack, tokens: float, mesh: Mesh) -> float:
    """X at which FSDP and tensor parallelism take equally long: sqrt(B M_X N/(f M_Y))."""
    return math.sqrt(tokens * mesh.fsdp_axes * mesh.devices / (stack.d_ff * mesh.tensor_axes))
