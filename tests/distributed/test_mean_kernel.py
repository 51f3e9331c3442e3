"""The kernel that averages what ranks sent, under Triton's interpreter or on a GPU."""

import pytest
import torch

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
mean_kernel = pytest.importorskip("cs336_systems.distributed.mean_kernel")


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("shape", [(1, 5), (2, 1), (2, 0), (2, 1024), (3, 7, 147), (8, 2049), (33, 16)])
def test_the_mean_is_of_all_parts(shape, dtype):
    parts = torch.randn(shape, generator=torch.Generator().manual_seed(0)).to(DEVICE, dtype)
    mean = mean_kernel.mean_triton(parts[0], parts[1:])
    assert mean.dtype == torch.float32
    torch.testing.assert_close(mean.double(), parts.double().mean(0), rtol=0, atol=1e-6)
