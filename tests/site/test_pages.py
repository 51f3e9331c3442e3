"""Ids of elements."""

import pytest

from perf.site.pages import ident


@pytest.mark.parametrize(
    "names",
    [
        *[("\u6a5f\u68b0", "\u8a08\u7b97"), ("h200-\u03b1", "h200-\u03b2"), ("a_b", "a-b"), ("\u00e9", "-")],
        *[("gpu.lab", "gpu-lab"), ("Lab", "lab"), ("a b", "a-b"), ("a--b", "a-b")],
    ],
)
def test_two_machines_have_two_ids(names: tuple[str, str]) -> None:
    first, second = map(ident, names)
    assert first != second


def test_an_id_of_a_plain_name_is_its_words() -> None:
    assert ident("nvidia-h200") == "nvidia-h200"
    assert ident("nvidia-h200", "attention.FlashAttention") == "nvidia-h200-attention-flashattention"
    assert ident("nvidia-h200", "0123abcd..89abcdef") == "nvidia-h200-0123abcd-89abcdef"
