"""Progress bars of the studies."""

import threading
from collections.abc import Iterable
from typing import Any


def progress(items: Iterable[Any] | None = None, *, unit: str, total: int | None = None) -> Any:
    """Return tqdm's bar, shown on a terminal alone; by default it fills a redirected log with lines."""
    from tqdm import tqdm

    if not hasattr(tqdm, "_lock"):  # tqdm's own has a semaphore too, which a process that is killed leaves behind
        tqdm.set_lock(threading.RLock())
    return tqdm(items, total=total, unit=unit, leave=False, disable=None)
