"""Every choice of tiles compiles for every GPU from Ampere on, within its shared memory; no GPU is needed."""

import json
import os
import subprocess
import sys

import pytest
import torch

from cs336_systems.attention import gpu, tiles
from cs336_systems.attention.request import Request
from cs336_systems.attention.tiles import DQ_TILES, MEDIUM_TILES, SHORT_GRID_TILES, SMALLER_TILES
from tests.attention.tiles import PRODUCTS, SHARED_KIB, TABLES


@pytest.mark.slow
@pytest.mark.parametrize("dropout", [(), ("dropout",)], ids=["", "dropout"])
@pytest.mark.parametrize("capability", sorted(SHARED_KIB.keys() - {86}))  # compiles as 89
def test_tiles_fit_the_shared_memory_of_a_gpu(capability: int, dropout: tuple[str, ...]) -> None:
    command = [sys.executable, "-m", "tests.attention.tiles", str(capability), *dropout]
    found = subprocess.run(
        command, capture_output=True, text=True, check=True, env=os.environ | {"TRITON_INTERPRET": "0"}
    )
    needed = json.loads(found.stdout)
    compiled = {launch.partition(" Tiles")[0].rpartition(" ")[0] for launch in needed}
    of_tables = {f"{kernel} {dtype} d={d}" for kernel, table in TABLES.items() for d in table for dtype in PRODUCTS}
    at_once = {f"at once bf16 d={d}" for d in tiles.FORWARD_TILES if d <= tiles.MAX_PIPELINED_HEAD_DIM}
    assert compiled == of_tables | (at_once if SHARED_KIB[capability] >= 160 else set())
    assert {launch: size for launch, size in needed.items() if size > SHARED_KIB[capability] * 2**10} == {}


@pytest.mark.parametrize("capability", SHARED_KIB)
def test_a_gpu_with_little_shared_memory_gets_smaller_tiles(capability: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu, "shared_bytes", lambda device: SHARED_KIB[capability] * 2**10)
    q = torch.empty(1, 1, 8, 128)
    chosen = tiles.tiles_for(q, tiles.FORWARD_TILES)
    _, large = tiles.FORWARD_TILES[128]
    expected = {80: MEDIUM_TILES[large], 90: large, 100: large}
    assert chosen == expected.get(capability, SMALLER_TILES[large])


def test_a_short_grid_gets_smaller_tiles(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu, "multiprocessors", lambda device: 132)
    long, _ = DQ_TILES[128]
    for heads, expected in ((1, SHORT_GRID_TILES[long]), (4, SHORT_GRID_TILES[long]), (5, long)):
        q = torch.empty(heads, 8192, 128, dtype=torch.bfloat16, device="meta")
        assert tiles.tiles_for(q, DQ_TILES) == expected


@pytest.mark.parametrize(
    ("keys", "d", "full", "causal"), [(256, 72, True, True), (384, 128, False, True), (256, 64, False, False)]
)
def test_short_float32_gets_tiles_that_waste_fewer_rows(
    keys: int, d: int, full: bool, causal: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gpu, "multiprocessors", lambda device: 132)
    monkeypatch.setattr(gpu, "shared_bytes", lambda device: SHARED_KIB[90] * 2**10)
    q = torch.empty(8, 16, keys, d, device="meta")
    for is_causal, expected in ((False, full), (True, causal)):
        chosen = tiles.forward_tiles(Request(is_causal, 1.0, "bf16x6"), q, q)
        assert (chosen == tiles.SHORT_TILES) == expected


def test_other_tiles_are_for_choices_that_are_made() -> None:
    made = {choice for table in TABLES.values() for both in table.values() for choice in both} | {tiles.SHORT_TILES}
    assert SHORT_GRID_TILES.keys() | MEDIUM_TILES.keys() | SMALLER_TILES.keys() <= made
