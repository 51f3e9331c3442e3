"""A fresh process does not hear Ctrl-C, and ends with the block that is interrupted."""

import os
import signal
import threading
from concurrent.futures import Future
from concurrent.futures.process import BrokenProcessPool

import pytest

from perf.studies import fresh_process
from perf.studies.fresh_process import FreshProcess


@pytest.mark.parametrize("method", ["forkserver", "spawn"])
def test_an_interruption_ends_the_process_within_its_call(method):
    begun: Future[None]
    before = signal.getsignal(signal.SIGINT)
    with pytest.raises(KeyboardInterrupt), FreshProcess("json", method) as process:
        heard = process.ask(signal.pthread_sigmask, signal.SIG_BLOCK, [])
        watched = os.pidfd_open(process.ask(os.getpid))
        begun = process._pool.submit(signal.pause)  # never ends
        raise KeyboardInterrupt
    assert signal.SIGINT in heard
    with pytest.raises(ProcessLookupError):
        signal.pidfd_send_signal(watched, 0)
    os.close(watched)
    assert begun.done()
    assert signal.SIGINT not in signal.pthread_sigmask(signal.SIG_BLOCK, []), "this process hears it again"
    assert signal.getsignal(signal.SIGINT) is before


def interrupted_by_itself():
    raise KeyboardInterrupt


def test_an_interruption_that_the_called_code_raises_costs_its_process_alone():
    with FreshProcess(__name__) as process:
        with pytest.raises(BrokenProcessPool):
            process.ask(interrupted_by_itself)
        assert process.ask(os.getpid) != os.getpid()


@pytest.mark.parametrize("ending", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_while_a_process_starts_is_heard_when_it_can_be_ended(ending, monkeypatch):
    """Else the process outlives its parent's semaphores, and prints a traceback."""
    start, pools = fresh_process._pool, []

    def signalled(*arguments):
        signal.raise_signal(ending)
        pools.append(start(*arguments))
        return pools[0]

    def hear(*_):
        raise InterruptedError

    monkeypatch.setattr(fresh_process, "_pool", signalled)
    before = signal.signal(ending, hear)
    try:
        with pytest.raises(InterruptedError), FreshProcess("json") as process:
            process.ask(os.getpid)
        assert pools and signal.getsignal(ending) is hear
    finally:
        signal.signal(ending, before)


def test_a_process_that_another_thread_starts_meanwhile_is_killed_and_starts_no_more(monkeypatch):
    """An interruption may come before the first call has started the process."""
    starting, goes_on = threading.Event(), threading.Event()
    start = fresh_process._pool

    def slowly(*arguments):
        starting.set()
        goes_on.wait()
        return start(*arguments)

    monkeypatch.setattr(fresh_process, "_pool", slowly)
    process, errors = FreshProcess("json"), []

    def ask():
        try:
            process.ask(signal.pause)  # never ends
        except BrokenProcessPool as error:
            errors.append(error)

    asking = threading.Thread(target=ask)
    asking.start()
    starting.wait()
    ending = threading.Thread(target=process.end, kwargs={"at_once": True})
    ending.start()
    goes_on.set()
    ending.join()
    asking.join()
    assert len(errors) == 1
    with pytest.raises(BrokenProcessPool):
        process.ask(os.getpid)
