"""Copies between GPUs: what is sent at a time. Whole steps with them are in test_fsdp_features.py, on NCCL."""

import pytest
import torch

from cs336_systems.distributed.peer_copies import ALIGNMENT, rounds_of


@pytest.mark.parametrize("sizes", [[], [0], [1], [512], [513], [0, 5, 0, 7], [100] * 9, [1, 3000, 2], [256, 256, 256]])
@pytest.mark.parametrize("limit", [ALIGNMENT, 2 * ALIGNMENT, 8 * ALIGNMENT])
def test_rounds_hold_every_byte_once_in_places_of_their_own(sizes, limit):
    sent = [torch.arange(size) for size in sizes]
    received = [torch.full_like(each, -1) for each in sent]
    for pieces in rounds_of(sizes, limit):
        assert pieces
        slot = torch.full((limit,), -1)
        for piece in pieces:
            room = slot[piece.place : piece.place + piece.stop - piece.start]
            assert piece.place % ALIGNMENT == 0 and (room == -1).all()
            room.copy_(piece.of(sent))
        for piece in pieces:
            assert (piece.of(received) == -1).all()
            piece.of(received).copy_(slot[piece.place : piece.place + piece.stop - piece.start])
    assert all(torch.equal(*pair) for pair in zip(sent, received, strict=True))


def test_small_tensors_travel_together():
    assert len(list(rounds_of([10] * 8, 8 * ALIGNMENT))) == 1
