"""Which ranks copy into one another's memory, and why others do not. A rank that fails is in test_fsdp_features.py."""

import weakref

import pytest

from cs336_systems.distributed import private_memory
from cs336_systems.distributed.peers import RankFacts, obstacle

FACTS = RankFacts("", "here", "a", frozenset("ab"), 2)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({}, ""),
        ({"why_not": "no GPU"}, "no GPU"),
        ({"host": "there"}, "hosts"),
        ({"gpu": "a"}, "share a GPU"),
        ({"visible": frozenset("b")}, "does not see"),
        ({"num_rendezvous": 0}, "have shared memory"),
    ],
)
def test_ranks_that_cannot_copy_are_told_why(change, reason):
    found = obstacle([FACTS, FACTS._replace(**{"gpu": "b"} | change)])
    assert reason in found and bool(reason) == bool(found)


class Group:
    """A process group's name."""

    group_name = "0"


def test_a_group_with_the_name_of_an_earlier_one_shares_no_memory(monkeypatch):
    earlier, later = Group(), Group()
    monkeypatch.setattr(private_memory, "_rendezvous", [(earlier.group_name, weakref.ref(earlier))])
    found = [private_memory.missing_for_peer_memory(group) for group in (earlier, later)]
    assert ["earlier" in reason for reason in found] == [False, True]
