"""What the compiler makes of every choice of tiles for a GPU that need not be here.

TRITON_INTERPRET=0 python -m tests.attention.tiles 89 [dropout]
"""

import json
import sys
from collections.abc import Iterator
from typing import Any

from cs336_systems.attention import tiles as tables
from cs336_systems.attention import triton_plans
from cs336_systems.attention.tiles import SHORT_GRID_TILES, Tiles, fitting

SHARED_KIB = {80: 163, 86: 99, 89: 99, 90: 227, 100: 227, 120: 99}
"""Compute capability -> shared memory of a block at most (CUDA C++ Programming Guide, technical specifications)."""

TABLES = {
    "forward": tables.FORWARD_TILES,
    "dkdv": tables.DKDV_TILES,
    "dq": tables.DQ_TILES,
}
KERNELS = {
    "forward": triton_plans.flash_fwd_kernel,
    "dkdv": triton_plans.flash_bwd_dkdv_kernel,
    "dq": triton_plans.flash_bwd_dq_kernel,
    "at once": triton_plans.flash_bwd_at_once_kernel,
}
PRODUCTS = {"bf16": ("ieee",), "fp32": ("bf16x6", "tf32")}  # bf16x3 holds less than bf16x6


def shared_bytes(capability: int, dropout: bool) -> Iterator[tuple[str, int]]:
    """Each launch in words, and the shared memory of a block in it."""
    most = SHARED_KIB[capability] * 2**10
    for kernel, d, dtype, tiles in dict.fromkeys(_chosen(most)):
        for products in PRODUCTS[dtype]:
            compiled = _compiled(KERNELS[kernel], d, dtype, products, tiles, dropout, capability)
            yield f"{kernel} {dtype} d={d} {products} {tiles}", compiled.metadata.shared


def _chosen(most: int) -> Iterator[tuple[str, int, str, Tiles]]:
    for kernel, table in TABLES.items():
        for d, choices in table.items():
            for dtype, tiles in zip(PRODUCTS, choices, strict=True):
                for choice in (tiles, SHORT_GRID_TILES.get(tiles, tiles)):
                    yield kernel, d, dtype, fitting(choice, most)
    yield "forward", 128, "fp32", fitting(tables.SHORT_TILES, most)
    for d, tiles in tables.FEW_ROWS_TILES.items():
        yield "forward", d, "fp32", tiles
    for d, tiles in tables.FEW_KEYS_TILES.items():
        yield "dkdv", d, "fp32", tiles
        yield "dq", d, "fp32", tables.FEW_ROWS_TILES[d]
    if most >= tables.AT_ONCE_MIN_SHARED_BYTES:
        for d in tables.FORWARD_TILES:
            if d <= tables.MAX_PIPELINED_HEAD_DIM:
                yield "at once", d, "bf16", tables.AT_ONCE_TILES


def _compiled(kernel: Any, d: int, dtype: str, products: str, tiles: Tiles, dropout: bool, capability: int) -> Any:
    """Causal, so that both loops are there."""
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    names = kernel.arg_names
    constants = {
        "D": d,
        "D_PADDED": d,
        "STRIDE_UNIT": 1,
        "HEADS_PER_KV_HEAD": 1,
        "Q_TILE_SIZE": tiles.q,
        "K_TILE_SIZE": tiles.k,
        "IS_CAUSAL": True,
        "EVEN_QUERIES": True,
        "EVEN_KEYS": True,
        "ONE_LOOP": dtype == "fp32" and d >= 128,
        "INPUT_PRECISION": products,
    }
    types = {"scale": "fp32", "scale_log2": "fp32", "L_ptr": "*fp32", "Delta_ptr": "*fp32"}
    for name, kind in {"Seed_ptr": "*i64", "drop_below": "i32", "keep_probability": "fp32"}.items():
        if dropout:
            types[name] = kind
        else:
            constants[name] = None
    signature = {}
    for name in names:
        pointer_or_size = f"*{dtype}" if name.endswith("_ptr") else "i32"
        signature[name] = "constexpr" if name in constants else types.get(name, pointer_or_size)
    aligned = [name for name, kind in signature.items() if kind.startswith("*") or name.startswith(("stride", "N_"))]
    source = ASTSource(
        fn=kernel,
        signature=signature,
        constexprs={name: value for name, value in constants.items() if name in names},
        attrs={(names.index(name),): [["tt.divisibility", 16]] for name in aligned if signature[name] != "constexpr"},
    )
    options = {"num_warps": tiles.num_warps, "num_stages": tiles.num_stages}
    return triton.compile(source, target=GPUTarget("cuda", capability, 32), options=options)


if __name__ == "__main__":
    print(json.dumps(dict(shared_bytes(int(sys.argv[1]), "dropout" in sys.argv))))
