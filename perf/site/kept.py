"""Validate the gate's JSON documents on file. A document of another form raises `Unreadable`."""

import contextlib
import functools
import json
import math
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeVar, get_args

from perf.gate.verdicts import Quantity, Verdict, Visits, Word
from perf.printable import printable

Document = TypeVar("Document")

_MOST_WORDS = 160
"""Maximum length of an error on a page, in characters."""


class Unreadable(ValueError):
    """A document has an unknown version or form."""


def read_folder(
    folder: Path, parse: Callable[[str], Document]
) -> tuple[list[tuple[str, Document]], list[tuple[str, str]]]:
    """Return names and documents in order of names, and name and reason of each unreadable file. Raises nothing.

    An unreadable file is a warning in the terminal, too. `parse` may raise `Unreadable`, or ValueError or
    RecursionError if a file is not JSON.
    """
    found, skipped = [], []
    for path in sorted(folder.glob("*.json")):
        try:
            found.append((path.name, parse(path.read_text(encoding="utf-8"))))
        except OSError as error:
            skipped.append((path.name, error.strerror or "cannot be read"))
        except Unreadable as error:
            skipped.append((path.name, str(error)[:_MOST_WORDS]))
        except (ValueError, RecursionError) as error:
            skipped.append((path.name, f"is no JSON, or cut off: {error}"[:_MOST_WORDS]))
    for name, reason in skipped:
        _warn(folder / name, reason)
    return found, skipped


@functools.cache  # several pages read the same folder
def _warn(path: Path, reason: str) -> None:
    from asv.console import log

    log.warning(printable(f"{path} is left out: {reason}"))


@contextlib.contextmanager
def document(content: str, version: int) -> Iterator[dict[str, Any]]:
    """Parse a JSON object of a version. Errors in the body of the `with` statement become `Unreadable`."""
    found = json.loads(content)
    its = found.get("version") if isinstance(found, dict) else None
    if its != version:
        raise Unreadable(f"is of version {its!r}; this page reads version {version}")
    try:
        yield found
    except KeyError as error:
        raise Unreadable(f"has no {error}") from None
    except Unreadable:
        raise
    except (ValueError, TypeError, AttributeError, OverflowError) as error:
        raise Unreadable(f"is not of the form of version {version}: {error}") from None


def verdict(one: dict[str, Any], accepted: str = "") -> Verdict:
    """Parse a row's verdict."""
    visible = number_or_none(one["smallest_visible"])
    if visible is not None and visible <= 0:
        raise Unreadable(f"has a smallest visible slow-down of {visible!r}")
    return Verdict(
        key=text(one["key"]),
        quantity=one_of(get_args(Quantity), one["quantity"]),
        word=one_of(get_args(Word), one["word"]),
        base=number_or_none(one["base"]),
        head=number_or_none(one["head"]),
        change=number_or_none(one["change"]),
        low=number_or_none(one["low"]),
        high=number_or_none(one["high"]),
        smallest_visible=visible,
        same_code=bool(one["same_code"]),
        reason=text(one["reason"]),
        accepted=accepted,
        negligible=number_or_none(one.get("negligible")),
        was_same=bool(one.get("was_same", False)),
    )


def visits(found: dict[str, Any]) -> Visits:
    """Parse each row's visits: process and change."""
    return {text(key): [(int(number(process)), number(change)) for process, change in of] for key, of in found.items()}


def text(value: Any) -> str:
    """Require a string."""
    if not isinstance(value, str):
        raise Unreadable(f"has {value!r} where text belongs")
    return value


def number(value: Any) -> float:
    """Require a finite number."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise Unreadable(f"has {value!r} where a number belongs")
    return float(value)


def number_or_none(value: Any) -> float | None:
    """Require a finite number or null."""
    return None if value is None else number(value)


def one_of(allowed: tuple[Any, ...], value: Any) -> Any:
    """Require a value of a `Literal`."""
    if value not in allowed:
        raise Unreadable(f"has {value!r} where one of {', '.join(allowed)} belongs")
    return value
