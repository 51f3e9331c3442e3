"""The course's XXL on a torus of TPUs: memory of its training, and the batch that hides its communication.

A stack of L feed-forwards of two matrices d x f, nothing else; states in float32, activations in bfloat16. X devices
share the batch and the weights (FSDP), Y share each product (tensor parallelism), over M_X and M_Y axes of the torus,
each of W bytes/s. Source: the course (Spring 2025, communication_accounting); "How to Scale Your Model", chapter 5.
"""

import math
from dataclasses import dataclass


@dataclass(frozen=True)
class Stack:
    """Feed-forwards one after the other."""

    d_model: int
    d_ff: int
    num_layers: int

    @property
    def parameters(self) -> int:
        """P = 2dfL."""
        return 2 * self.d_model * self.d_ff * self.num_layers

    @property
    def state_bytes(self) -> int:
        """16P: master weights 4P, accumulated gradients 4P, Adam's moments 8P."""
        return 16 * self.parameters

    def kept_bytes(self, tokens: int) -> int:
        """2(d + f)L bytes a token: the inputs of the two matrices; the activation in between is left out."""
        return 2 * (self.d_model + self.d_ff) * self.num_layers * tokens


@dataclass(frozen=True)
class Mesh:
    """X x Y devices."""

    fsdp: int
    """X."""

    tensor: int
    """Y."""

    fsdp_axes: int
    """M_X."""

    tensor_axes: int
    """M_Y."""

    flops_per_s: float
    """C, of a device."""

    bandwidth: float
    """W, of an axis, both directions."""

    memory_bytes: float

    @property
    def devices(self) -> int:
        """N = XY."""
        return self.fsdp * self.tensor

    @property
    def intensity(self) -> float:
        """C/W, FLOPs a byte of one axis."""
        return self.flops_per_s / self.bandwidth


XXL = Stack(d_model=16384, d_ff=53248, num_layers=126)
TPU_V5P = Mesh(fsdp=16, tensor=4, fsdp_axes=2, tensor_axes=1, flops_per_s=4.6e14, bandwidth=2 * 9e10, memory_bytes=95e9)


def device_bytes(stack: Stack, tokens: int, num_devices: float) -> float:
    """(16P + A/2)/N + A/2, where A is `kept_bytes`: FSDP divides the states and half of the activations."""
    half = stack.kept_bytes(tokens) / 2
    return (stack.state_bytes + half) / num_devices + half


def least_devices(stack: Stack, tokens: int, memory_bytes: float) -> int | None:
    """The fewest with `device_bytes` below this; None where the half of the activations that all hold is too much."""
    half = stack.kept_bytes(tokens) / 2
    if half >= memory_bytes:
        return None
    return math.floor((stack.state_bytes + half) / (memory_bytes - half)) + 1


def layer_seconds(stack: Stack, tokens: float, mesh: Mesh) -> dict[str, float]:
    """A layer's forward: math 4 Bdf/(XYC), FSDP's all-gather 4 df/(Y W M_X), tensor parallelism's 4 Bd/(X W M_Y)."""
    d, f = stack.d_model, stack.d_ff
    return {
        "math": 4 * tokens * d * f / (mesh.devices * mesh.flops_per_s),
        "fsdp": 4 * d * f / (mesh.tensor * mesh.bandwidth * mesh.fsdp_axes),
        "tensor": 4 * tokens * d / (mesh.fsdp * mesh.bandwidth * mesh.tensor_axes),
    }


def least_d_ff(mesh: Mesh) -> float:
    """Y (C/W)/M_Y: a wider layer hides its tensor parallelism, whatever the batch."""
    return mesh.tensor * mesh.intensity / mesh.tensor_axes


def least_tokens(mesh: Mesh) -> float:
    """X (C/W)/M_X tokens in all hide FSDP on this mesh, where both communications overlap with the math."""
    return mesh.fsdp * mesh.intensity / mesh.fsdp_axes


def least_tokens_in_turn(stack: Stack, mesh: Mesh) -> float:
    """Tokens in all that hide both communications one after the other: math >= fsdp + tensor."""
    one = layer_seconds(stack, 1, mesh)
    return one["fsdp"] / (one["math"] - one["tensor"])


def least_tokens_on_the_best_mesh(stack: Stack, mesh: Mesh) -> float:
    """N (C/W)^2/(M_X M_Y f): where X and Y may be chosen for the batch, as the book does; overlapping."""
    return mesh.devices * mesh.intensity**2 / (mesh.fsdp_axes * mesh.tensor_axes * stack.d_ff)


def best_fsdp(stack: Stack, tokens: float, mesh: Mesh) -> float:
    """X = sqrt(B M_X N/(f M_Y)), at which FSDP and tensor parallelism take equally long."""
    return math.sqrt(tokens * mesh.fsdp_axes * mesh.devices / (stack.d_ff * mesh.tensor_axes))
