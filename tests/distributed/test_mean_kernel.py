"""The kernel that averages what ranks sent, under Triton's interpreter or on a GPU."""

import pytest
import torch

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
mean_kernel = pytest.importorskip("cs336_systems.distributed.mean_kernel")


@pytest.mark.parametrize("dtype", mean_kernel.DTYPES)
@pytest.mark.parametrize("shape", [(1, 5), (2, 1), (2, 0), (2, 1024), (3, 7, 147), (8, 2049), (33, 16)])
def test_the_mean_is_of_all_parts(shape, dtype):
    parts = torch.randn(shape, generator=torch.Generator().manual_seed(0)).to(DEVICE, dtype)
    mean = mean_kernel.mean_triton(parts[0], parts[1:], torch.float32)
    assert mean.dtype == torch.float32
    torch.testing.assert_close(mean.double(), parts.double().mean(0), rtol=0, atol=1e-6)
    narrow = mean_kernel.mean_triton(parts[0], parts[1:], dtype)
    torch.testing.assert_close(narrow, parts.double().mean(0).to(dtype))


def test_a_sum_beyond_float16_has_a_mean_within_it():
    parts = torch.full((3, 5), 60_000.0, dtype=torch.float16, device=DEVICE)
    torch.testing.assert_close(mean_kernel.mean_triton(parts[0], parts[1:], torch.float16), parts[0])
