"""Triton's driver for a GPU of compute capability 9.0 that is not here: it compiles, and launches nothing."""

from triton.backends.compiler import GPUTarget


class NoGPU:
    """Pass it to `triton.runtime.driver.set_active`."""

    def get_current_target(self) -> GPUTarget:
        return GPUTarget("cuda", 90, 32)

    def get_current_device(self) -> int:
        return 0

    def get_current_stream(self, device: int = 0) -> int:
        return 0
