"""A fresh process for a study: it gets torch and the compiler from a server that has imported them once."""

import os
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context


def fresh_process(module: str) -> ProcessPoolExecutor:
    """One process, started by its first task; `module` holds what it is given to do."""
    os.environ["PYTORCH_NVML_BASED_CUDA_CHECK"] = "1"  # else a process that imports the compiler cannot be forked
    context = get_context("forkserver")
    context.set_forkserver_preload([module, "torch._inductor.compile_fx"])  # seconds, once
    return ProcessPoolExecutor(1, mp_context=context)
