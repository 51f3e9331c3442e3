"""Compile-time choices of the Gluon kernels, by columns of their tiles; `hopper` chooses among the tables."""

from typing import NamedTuple

from cs336_systems.attention.constants import WGMMA_ROWS

CONSUMER_REGISTERS = {(1, 1): 240, (1, 2): 208, (1, 3): 136, (2, 1): 240, (3, 1): 160, (4, 1): 112}
"""By consumers of a forward's program and programs at once."""


class HopperForward(NamedTuple):
    """Compile-time choices of the 16-bit forward in Gluon."""

    k_tile: int
    stages: int
    q_stages: int
    consumers: int

    halves: bool = False
    """Whether a causal kernel leaves out half of its first tile of keys, of 128, where that half is always masked."""

    one_tile: bool = False
    """Whether each program takes one tile, with no loop over tiles."""

    balanced: bool = False
    """Whether the programs, and the causal heads that they visit together, are as many as balance their work."""

    ping_pong: bool = False
    """Whether two consumers issue their products in turns (FlashAttention-3, section 3.1)."""

    at_once: int = 1
    """Programs that a multiprocessor runs at the same time; with more than one, each takes one tile."""

    @property
    def rows(self) -> int:
        """Rows of q in a tile of a program."""
        return WGMMA_ROWS * self.consumers

    @property
    def registers(self) -> int:
        """Registers of a consumer's thread. With more than a multiprocessor has, a warp group waits for ever."""
        return CONSUMER_REGISTERS[self.consumers, self.at_once]


class HopperBackward(NamedTuple):
    """Compile-time choices of the 16-bit backward in Gluon."""

    q_tile: int
    stages: int
    ds_stages: int
    registers: int
    dq_registers: int = 0
    """Registers of a thread of dq's warp group, which only the kernel for up to 64 columns has."""
    splits: int = 1
    """Programs that share the visits of a key tile. With more than one, dk and dv are added in memory as dq is."""
    heads_at_once: int = 0
    """Heads whose programs are next to each other; 0: as `backward_heads_at_once` says."""


class HopperFloat32(NamedTuple):
    """Compile-time choices of the Gluon kernels over bfloat16 pieces of float32."""

    pieces: int
    stages: int
    registers: int
    consumers: int = 2
    """Warp groups of a forward's program that compute, 1 or 2, of 64 rows each."""

    splits: int = 1
    """Programs that share the visits of a key tile in a backward. With more than one, dk and dv are added in memory."""


# By columns of a tile: the fastest measured on an H200 (NOTES.md), by `python -m perf study tiles`. With triton 3.6
# and 3.7 nothing spills but some 30 registers in the backward of d = 128, before its loop.
HOPPER_FORWARD = {
    64: HopperForward(128, 2, 2, 2, halves=True, balanced=True),
    128: HopperForward(128, 2, 2, 2, halves=True, balanced=True),
}
HOPPER_FORWARD_MANY = {64: HopperForward(64, 4, 2, 4, balanced=True)}
"""Replacements where each multiprocessor gets HOPPER_MANY of their tiles, so that large ones balance."""
HOPPER_FORWARD_LONG = {64: HopperForward(128, 2, 1, 3, one_tile=True)}
"""Replacements there from HOPPER_LONG_KEYS keys on."""
HOPPER_FORWARD_PING_PONG = {128: HOPPER_FORWARD[128]._replace(ping_pong=True)}
"""Replacements for head vectors that leave a quarter of the columns out."""
_TWO_AT_ONCE = HopperForward(128, 2, 1, 1, one_tile=True, at_once=2)
_ALONE = HopperForward(128, 2, 1, 1, one_tile=True)
HOPPER_FORWARD_FEW = {
    (64, False): {2: _TWO_AT_ONCE, 3: HopperForward(64, 2, 1, 1, one_tile=True, at_once=3)},
    (64, True): {3: _TWO_AT_ONCE},
    (128, False): {1: _ALONE},
    (128, True): {2: _ALONE},
}
"""Replacements by columns of a tile and whether causal, where each multiprocessor gets at most so many tiles of
WGMMA_ROWS rows."""
HOPPER_BACKWARD = {
    64: HopperBackward(64, 3, 2, 200, 88),
    128: HopperBackward(64, 2, 2, 240),
}
HOPPER_FLOAT32 = {
    (16, 2): HopperFloat32(2, 2, 216),
    (16, 3): HopperFloat32(3, 2, 216),
    (32, 2): HopperFloat32(2, 2, 216),
    (32, 3): HopperFloat32(3, 2, 216),
    (64, 2): HopperFloat32(2, 2, 216),
    (64, 3): HopperFloat32(3, 2, 216),
    (128, 2): HopperFloat32(2, 2, 232),
    (128, 3): HopperFloat32(3, 1, 232),
}
"""By columns of a tile and pieces; three pieces of 64 and 128 columns: the fastest measured on an H200 (NOTES.md)."""
PIECES = {"bf16x6": 3, "bf16x3": 2, "tf32": 2}
"""Pieces by the request's products. Two pieces hold more bits than TF32, 16 instead of 10, and take less time."""
