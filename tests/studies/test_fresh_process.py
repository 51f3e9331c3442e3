"""A fresh process does not hear Ctrl-C, and ends with the block that is interrupted."""

import os
import signal
from concurrent.futures import Future

import pytest

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
