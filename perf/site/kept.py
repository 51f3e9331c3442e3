"""Documents that the gate has kept, read without believing a word of them: of another form they are `Unreadable`."""

import contextlib
import json
import math
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeVar, get_args

from perf.gate.verdicts import Quantity, Verdict, Visits, Word

Document = TypeVar("Document")

_MOST_WORDS = 160
"""Characters of an error that a page shows."""


class Unreadable(ValueError):
    """The document is none that we know."""


def read_folder(
    folder: Path, parse: Callable[[str], Document]
) -> tuple[list[tuple[str, Document]], list[tuple[str, str]]]:
    """Each file's name and document, in order of the names; and of each that is none, name and why. Raises nothing.

    `parse` raises `Unreadable`, or what reading JSON raises.
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
    return found, skipped


@contextlib.contextmanager
def document(content: str, version: int) -> Iterator[dict[str, Any]]:
    """A JSON object of this version; whatever goes wrong while its parts are read becomes `Unreadable`."""
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
    """A row."""
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
    """By row, of each visit its process and its change."""
    return {text(key): [(int(number(process)), number(change)) for process, change in of] for key, of in found.items()}


def text(value: Any) -> str:
    """Of any length."""
    if not isinstance(value, str):
        raise Unreadable(f"has {value!r} where text belongs")
    return value


def number(value: Any) -> float:
    """A finite one."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise Unreadable(f"has {value!r} where a number belongs")
    return float(value)


def number_or_none(value: Any) -> float | None:
    """The same, or null."""
    return None if value is None else number(value)


def one_of(allowed: tuple[Any, ...], value: Any) -> Any:
    """One of the words of a `Literal`."""
    if value not in allowed:
        raise Unreadable(f"has {value!r} where one of {', '.join(allowed)} belongs")
    return value
