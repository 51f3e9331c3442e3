"""Entry script of a measuring process, `python -P measuring.py DEVICE CHECKOUT`, or BASE HEAD to hold both.

Requests on stdin and replies on stdout are a JSON document a line. The first reply is a greeting with the device, the
software, the ceilings and a digest of the `cs336_systems` that this process imports; each request then gets one reply.
The script is started by its path, because asv makes `perf` importable only in its own processes.
"""

import contextlib
import ctypes
import faulthandler
import importlib.util
import json
import signal
import sys
from pathlib import Path
from typing import Any


def main() -> None:
    """Send the worker's greeting, then its replies until stdin ends."""
    die_with_parent()
    end_on_signals()
    faulthandler.register(signal.SIGUSR1, all_threads=False, chain=True)  # say where it hangs, then die
    import_perf()

    from perf.harness.json_process import take_pipes

    requests, replies = take_pipes()

    def reply(document: dict) -> None:
        replies.write(json.dumps(document) + "\n")
        replies.flush()

    worker = _worker(sys.argv[1], *map(Path, sys.argv[2:]))
    reply(worker.greeting())
    for line in requests:
        answer = worker.answer(json.loads(line))
        reply(answer | {"leaving": not worker.instruments.usable})
        if not worker.instruments.usable:
            return


def _worker(device: str, *checkouts: Path) -> Any:
    if len(checkouts) == 1:
        from perf.harness.measure import Worker

        return Worker(device, *checkouts)
    from perf.harness.pair import PairWorker

    return PairWorker(device, dict(zip(("base", "head"), checkouts, strict=True)))


def die_with_parent() -> None:
    """Have Linux send SIGKILL when the parent dies, so that no orphan keeps the GPU busy."""
    if sys.platform == "linux":
        pr_set_pdeathsig = 1
        ctypes.CDLL(None).prctl(pr_set_pdeathsig, signal.SIGKILL)


def end_on_signals() -> None:
    """End by `KeyboardInterrupt`, which no visit reports, on Ctrl-C, SIGTERM and SIGHUP; the first of them counts."""
    endings = [
        number
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
        if signal.getsignal(number) is not signal.SIG_IGN
    ]

    def end(*_: object) -> None:
        for number in endings:  # nothing interrupts the removal of temporary folders
            signal.signal(number, signal.SIG_IGN)
        raise KeyboardInterrupt

    for number in endings:
        signal.signal(number, end)


def import_perf() -> None:
    """Import only the `perf` of this script, from its folder, whose parent also contains a `cs336_systems`."""
    folder = Path(__file__).resolve().parents[2]
    spec = importlib.util.spec_from_file_location(
        "perf", folder / "__init__.py", submodule_search_locations=[str(folder)]
    )
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["perf"] = module
    spec.loader.exec_module(module)


if __name__ == "__main__":
    with contextlib.suppress(BrokenPipeError, KeyboardInterrupt):
        main()
