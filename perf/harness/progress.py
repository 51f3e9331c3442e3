"""Progress of a run, for the terminal and for asv."""

from typing import IO, Self


class Progress:
    """A bar on the terminal that asv was started from, and a line for asv after every visit.

    asv captures the output of `setup_cache`, and its timeout counts seconds without output.
    """

    def __init__(self, total: int, label: str, path: str | None = None):
        from tqdm import tqdm

        self._stream = _open_or_none(path) if total else None
        if self._stream is not None:
            self._stream.write("\n")  # asv has not ended its own line
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
        """Advance by `count` visits; `text` describes the last one's outcome."""
        if text:
            self._bar.set_postfix_str(text, refresh=False)
            print(text, flush=True)
        self._bar.update(count)

    def note(self, text: str) -> None:
        """Write a line that stays."""
        self._bar.write(text, file=self._stream)

    def close(self) -> None:
        """Remove the bar."""
        self._bar.close()
        if self._stream is not None:
            self._stream.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()


class TerminalBar(Progress):
    """A bar on a command's own terminal, without lines: the command prints a table at the end."""

    def __init__(self, total: int, unit: str = "visit", doing: str = "timing"):
        from tqdm import tqdm

        self._stream = None
        self._doing = doing
        self._bar = tqdm(total=total, desc="starting", unit=unit, disable=None, dynamic_ncols=True, leave=False)
        self._bar.refresh()

    def step(self, count: int, text: str) -> None:
        """Advance like `Progress.step`, without printing a line."""
        self._bar.set_description(self._doing, refresh=False)
        self._bar.set_postfix_str(text, refresh=False)
        self._bar.update(count)

    def reach(self, count: int) -> None:
        """Advance to `count`."""
        self.step(count - self._bar.n, "")
        self._bar.refresh()


def say(text: str, path: str | None) -> None:
    """Write a line to the terminal that asv was started from, if there is one."""
    if stream := _open_or_none(path):
        with stream:
            stream.write(f"\n{text}\n")


def _open_or_none(path: str | None) -> IO[str] | None:
    try:
        return open(path, "a", encoding="utf-8") if path else None  # noqa: PTH123 - lives with the bar
    except OSError:
        return None
