"""What is slow to make and is only read afterwards: made once for a whole run, whichever of its workers asks first."""

import pickle
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from filelock import FileLock


class Once:
    """`once(name, make)`: what `make(folder)` returned, called by one process of this run and read by all.

    What is returned goes through pickle, and may name files in the folder, which nobody changes later. Whoever asks
    while another makes it waits; if that one fails, the next makes it anew.
    """

    def __init__(self, config: pytest.Config, factory: pytest.TempPathFactory):
        own = factory.getbasetemp()
        self._shared = own.parent if hasattr(config, "workerinput") else own  # each worker of xdist has a folder in it

    def __call__(self, name: str, make: Callable[[Path], Any]) -> Any:
        folder, found = self._shared / f"once-{name}", self._shared / f"once-{name}.pickle"
        with FileLock(self._shared / f"once-{name}.lock"):
            if not found.exists():
                shutil.rmtree(folder, ignore_errors=True)
                folder.mkdir()
                made = pickle.dumps(make(folder))
                unfinished = found.with_suffix(".part")
                unfinished.write_bytes(made)
                unfinished.rename(found)
        return pickle.loads(found.read_bytes())
