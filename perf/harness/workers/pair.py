"""Entry script of a process that measures two checkouts: `python pair.py DEVICE BASE HEAD`; see `single`."""

import contextlib
import sys
from pathlib import Path
from typing import Any


def main() -> None:
    """Greet, then answer requests until stdin ends."""
    from single import serve  # type: ignore[import-not-found]  # the script beside this one

    def make() -> Any:
        from perf.harness.pair import PairWorker

        return PairWorker(sys.argv[1], {"base": Path(sys.argv[2]), "head": Path(sys.argv[3])})

    serve(make)


if __name__ == "__main__":
    with contextlib.suppress(BrokenPipeError, KeyboardInterrupt):
        main()
