"""Gluon kernels of FlashAttention-2 for compute capability 9.0.

Importing the package imports every kernel, so that one failure rules all of them out (`gpu.runs_gluon`).
"""

from cs336_systems.attention.gluon_kernels.backward_64 import flash_bwd_hopper_64_kernel as flash_bwd_hopper_64_kernel
from cs336_systems.attention.gluon_kernels.backward_128 import (
    flash_bwd_hopper_128_kernel as flash_bwd_hopper_128_kernel,
)
from cs336_systems.attention.gluon_kernels.backward_float32 import (
    flash_bwd_hopper_float32_kernel as flash_bwd_hopper_float32_kernel,
)
from cs336_systems.attention.gluon_kernels.forward import flash_fwd_hopper_kernel as flash_fwd_hopper_kernel
from cs336_systems.attention.gluon_kernels.forward_float32 import (
    flash_fwd_hopper_float32_kernel as flash_fwd_hopper_float32_kernel,
)
from cs336_systems.attention.gluon_kernels.pieces import split_kernel as split_kernel
