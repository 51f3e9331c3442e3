"""The four answers about the course's XXL on TPUs (communication_accounting)."""

import dataclasses

import pytest

from cs336_systems.accounting import mesh
from cs336_systems.accounting.mesh import TPU_V5P, XXL

GIB = 2**30


def test_a_memory_of_the_states():
    assert XXL.parameters == 219_848_638_464
    assert 4 * XXL.parameters / GIB == 819
    assert 4 * XXL.parameters / 1e9 == pytest.approx(879.395, abs=5e-4)
    assert 8 * XXL.parameters / GIB == 1638
    assert XXL.state_bytes == 3_517_578_215_424 == 3276 * GIB
    assert XXL.kept_bytes(1) == 17_547_264
    assert XXL.kept_bytes(1) / 2**20 == pytest.approx(16.73, abs=5e-3)


def test_a_devices_that_hold_them():
    h100 = 80e9
    assert XXL.state_bytes / h100 == pytest.approx(43.97, abs=5e-3)
    assert mesh.min_devices(XXL, 0, h100) == 44
    assert mesh.min_devices(XXL, 0, 80 * GIB) == 41


@pytest.mark.parametrize(
    ("tokens", "devices"), [(0, 38), (1024, 41), (2048, 46), (4096, 61), (8192, 156), (10_828, None)]
)
def test_b_devices_that_fsdp_needs(tokens, devices):
    results = mesh.min_devices(XXL, tokens, TPU_V5P.memory_bytes)
    assert results == devices
    if results:
        assert mesh.device_bytes(XXL, tokens, results) < TPU_V5P.memory_bytes
        assert mesh.device_bytes(XXL, tokens, results - 1) >= TPU_V5P.memory_bytes


def test_b_is_possible_up_to_so_many_tokens():
    assert mesh.min_devices(XXL, 10_827, TPU_V5P.memory_bytes) is not None
    assert XXL.state_bytes / TPU_V5P.memory_bytes == pytest.approx(37.03, abs=5e-3)


def test_a_memory_of_exactly_the_states_is_enough():
    stack = mesh.Stack(1, 1, 1)
    assert mesh.device_bytes(stack, 0, 1) == 32
    assert [mesh.min_devices(stack, 0, memory) for memory in (33, 32, 31, 16, 15)] == [1, 1, 2, 2, 3]


def test_c_the_least_batch_on_the_given_mesh():
    assert TPU_V5P.intensity == pytest.approx(2555.56, abs=5e-3)
    assert mesh.min_d_ff(TPU_V5P) == pytest.approx(10_222, abs=0.5)
    assert mesh.min_d_ff(TPU_V5P) < XXL.d_ff
    tokens = mesh.min_tokens(TPU_V5P)
    assert tokens == pytest.approx(20_444, abs=0.5)
    assert tokens / TPU_V5P.fsdp == pytest.approx(1277.8, abs=0.05)
    assert tokens / TPU_V5P.devices == pytest.approx(319.4, abs=0.05)
    seconds = mesh.layer_seconds(XXL, tokens, TPU_V5P)
    assert seconds["math"] == pytest.approx(seconds["fsdp"])
    assert seconds["math"] > seconds["tensor"]


def test_c_the_least_batch_where_the_communications_take_turns():
    tokens = mesh.min_tokens_in_sequence(XXL, TPU_V5P)
    assert tokens == pytest.approx(25_302, abs=0.5)
    assert tokens / TPU_V5P.devices == pytest.approx(395.3, abs=0.05)
    seconds = mesh.layer_seconds(XXL, tokens, TPU_V5P)
    assert seconds["math"] == pytest.approx(seconds["fsdp"] + seconds["tensor"])


def test_c_no_batch_hides_what_a_narrow_layer_leaves():
    for tensor, is_hidden in ((4, True), (16, True), (32, False), (64, False)):
        torus = dataclasses.replace(TPU_V5P, tensor=tensor)
        assert (mesh.min_d_ff(torus) < XXL.d_ff) == is_hidden
        assert (mesh.min_tokens_in_sequence(XXL, torus) is not None) == is_hidden


def test_c_the_books_answer_assumes_another_mesh():
    tokens = mesh.min_tokens_on_the_best_mesh(XXL, TPU_V5P)
    assert (tokens, tokens / 64) == (pytest.approx(3925, abs=0.5), pytest.approx(61.3, abs=0.05))
    assert (4 * tokens, 4 * tokens / 64) == (pytest.approx(15_699, abs=0.5), pytest.approx(245.3, abs=0.05))
    assert mesh.best_fsdp(XXL, tokens, TPU_V5P) == pytest.approx(3.07, abs=5e-3)
    assert mesh.best_fsdp(XXL, 106_496, TPU_V5P) == TPU_V5P.fsdp
    seconds = mesh.layer_seconds(XXL, tokens, TPU_V5P)
    assert seconds["math"] == pytest.approx(0.465e-3, abs=5e-7)
    assert seconds["fsdp"] == pytest.approx(2.42e-3, abs=5e-6)
