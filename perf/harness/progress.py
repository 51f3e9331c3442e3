"""Progress of a run, for the person at the terminal and for asv."""

from typing import IO


class Progress:
    """A bar on the terminal that asv was started from (asv swallows what `setup_cache` prints), and a pulse for asv.

    asv's timeout counts silence, so something is printed at least every few seconds of progress.
    """

    def __init__(self, total: int, label: str, path: str | None = None):
        from tqdm import tqdm

        self._stream = _open_or_none(path) if total else None
        if self._stream is not None:
            self._stream.write("\n")  # asv leaves its own line open
        self._bar = tqdm(
            total=total,
            desc=label,
            file=self._stream,
            disable=self._stream is None,
            mininterval=0.2 if self._stream is not None and self._stream.isatty() else 10.0,
            unit="visit",
            dynamic_ncols=True,
            leave=False,
        )

    def step(self, count: int, text: str) -> None:
        """`count` more visits are done; `text` says what the last one gave."""
        if text:
            self._bar.set_postfix_str(text, refresh=False)
            print(text, flush=True)
        self._bar.update(count)

    def close(self) -> None:
        """Take the bar away."""
        self._bar.close()
        if self._stream is not None:
            self._stream.close()

    def __enter__(self) -> "Progress":
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()


class TerminalBar(Progress):
    """The same on a command's own terminal and nowhere else; a table comes at the end, so no line is printed."""

    def __init__(self, total: int, unit: str = "visit"):
        from tqdm import tqdm

        self._stream = None
        self._bar = tqdm(total=total, desc="starting", unit=unit, disable=None, dynamic_ncols=True, leave=False)
        self._bar.refresh()

    def step(self, count: int, text: str) -> None:
        """As `Progress.step`."""
        self._bar.set_description("timing", refresh=False)
        self._bar.set_postfix_str(text, refresh=False)
        self._bar.update(count)


def _open_or_none(path: str | None) -> IO[str] | None:
    try:
        return open(path, "a", encoding="utf-8") if path else None  # noqa: PTH123 - lives with the bar
    except OSError:
        return None
