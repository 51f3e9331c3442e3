"""Fresh processes for a study, forked from a server that has imported torch and the compiler once."""

import os
import queue
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from multiprocessing import get_context
from typing import Any

DIED = {"status": "crashed", "reason": "the measuring process died; its output is above"}


class FreshProcess:
    """A process that serves calls; the first call, one after `end`, and one after a crash each start a fresh process.

    `module` holds the functions to call.
    """

    def __init__(self, module: str):
        self._module = module
        self._pool: ProcessPoolExecutor | None = None

    def __enter__(self) -> "FreshProcess":
        return self

    def __exit__(self, *_: object) -> None:
        self.end()

    def ask(self, function: Callable[..., Any], *arguments: Any) -> Any:
        """Call a function in the process. Raises its exceptions, and `BrokenProcessPool` if the process dies."""
        self._pool = self._pool or _pool(self._module)
        try:
            return self._pool.submit(function, *arguments).result()
        except BrokenProcessPool:
            self.end()
            raise

    def end(self) -> None:
        """End the process."""
        if self._pool:
            self._pool.shutdown()
        self._pool = None


def side_by_side(module: str, function: Callable[..., Any], asked: Sequence[Any], processes: int) -> Iterator[Any]:
    """Yield function(one) for each of `asked`, in order, from as many fresh processes at once.

    It is None for one that raises or kills its process; another process goes on with the next.
    """
    workers = [FreshProcess(module) for _ in range(min(processes, len(asked)))]
    idle: queue.SimpleQueue[FreshProcess] = queue.SimpleQueue()
    for worker in workers:
        idle.put(worker)

    def in_any(one: Any) -> Any:
        worker = idle.get()
        try:
            return worker.ask(function, one)
        except Exception:
            worker.end()  # its GPU context may be unusable
            return None
        finally:
            idle.put(worker)

    try:
        with ThreadPoolExecutor(max(1, len(workers))) as threads:
            yield from threads.map(in_any, asked)
    finally:
        for worker in workers:
            worker.end()


def _pool(module: str) -> ProcessPoolExecutor:
    os.environ["PYTORCH_NVML_BASED_CUDA_CHECK"] = "1"  # otherwise importing the compiler makes the server unforkable
    context = get_context("forkserver")
    context.set_forkserver_preload([module, "torch._inductor.compile_fx"])  # seconds, once
    return ProcessPoolExecutor(1, mp_context=context)
