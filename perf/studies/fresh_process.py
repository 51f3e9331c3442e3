"""Fresh processes for a study, forked from a server that has imported torch and the compiler once."""

import contextlib
import functools
import os
import queue
import signal
import threading
import traceback
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from multiprocessing import get_context, resource_tracker
from typing import Any, Literal, Self

from perf.options import ENDINGS

DIED = {"status": "crashed", "reason": "the measuring process died; its output is above"}


class FreshProcess:
    """A process that serves calls; the first call, one after `end`, and one after a crash each start a fresh process.

    `module` holds the functions to call. The process does not hear Ctrl-C: an exception in the `with` block ends it.
    """

    def __init__(self, module: str, method: Literal["forkserver", "spawn"] = "forkserver"):
        self._module, self._method = module, method
        self._pool: ProcessPoolExecutor | None = None
        self._starting = threading.Lock()
        self._is_over = False

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self.end(at_once=kind is not None)

    def ask(self, function: Callable[..., Any], *arguments: Any) -> Any:
        """Call a function in the process. Raises its exceptions, and `BrokenProcessPool` if it dies or was killed."""
        with self._starting, _unheard_interrupts():  # the first call starts the process
            if self._is_over:
                raise BrokenProcessPool("the process was killed")
            self._pool = self._pool or _pool(self._module, self._method)
            future = self._pool.submit(functools.partial(_call, function), *arguments)
        try:
            return future.result()
        except BrokenProcessPool:
            self.end()
            raise

    def end(self, *, at_once: bool = False) -> None:
        """End the process after its call, or kill it at once and for good, also one that another thread is starting."""
        with self._starting:
            pool, self._pool = self._pool, None
            self._is_over |= at_once
        if pool is None:
            return
        if at_once:
            for process in list((pool._processes or {}).values()):
                if process.is_alive():  # another process may have the number of a dead one
                    process.kill()
        pool.shutdown(cancel_futures=at_once)


def _call(function: Callable[..., Any], *arguments: Any) -> Any:
    """Call the function. What neither is an `Exception` nor exits, as a user's code may raise, kills the process."""
    try:
        return function(*arguments)
    except (Exception, SystemExit):
        raise
    except BaseException:
        traceback.print_exc()
        os._exit(1)


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
            try:
                yield from threads.map(in_any, asked)
            except BaseException:
                for worker in workers:
                    worker.end(at_once=True)
                raise
    finally:
        for worker in workers:
            worker.end()


@contextlib.contextmanager
def _unheard_interrupts() -> Iterator[None]:
    """Block SIGINT for good in processes started inside the block, which would print tracebacks.

    Here it is heard at the end of the block, as `ENDINGS` are, when the processes are known and can be ended.
    """
    resource_tracker.ensure_running()  # where it starts, it unblocks SIGINT
    heard: list[int] = []
    is_main = threading.current_thread() is threading.main_thread()  # no other thread hears them
    endings = (signal.SIGINT, *ENDINGS) if is_main else ()
    handlers = {ending: handler for ending in endings if (handler := signal.getsignal(ending)) is not signal.SIG_IGN}
    for ending in handlers:
        signal.signal(ending, lambda number, _: heard.append(number))
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        for ending, handler in handlers.items():
            signal.signal(ending, handler)
    for number in dict.fromkeys(heard):
        signal.raise_signal(number)


def _pool(module: str, method: Literal["forkserver", "spawn"]) -> ProcessPoolExecutor:
    os.environ["PYTORCH_NVML_BASED_CUDA_CHECK"] = "1"  # otherwise importing the compiler makes the server unforkable
    context = get_context(method)
    context.set_forkserver_preload([module, "torch._inductor.compile_fx"])  # seconds, once
    # Again: the server may be an older one, of somebody else's.
    blocked = signal.SIG_BLOCK, {signal.SIGINT}
    return ProcessPoolExecutor(1, mp_context=context, initializer=signal.pthread_sigmask, initargs=blocked)
