"""Self-tests as they lie on file, `<machine>/self-test/<time>.json`, read without believing a word of them.

Written by `perf.gate.self_test`. What is cut in half, of another version or of another form is named and skipped.
"""

import json
import math
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, get_args

from perf.gate.parts import Part
from perf.gate.verdicts import Quantity, Verdict, Word

VERSION = 1
_MOST_WORDS = 160
"""Characters of an error that a page shows."""


class Unreadable(ValueError):
    """The file is no self-test that we know."""


@dataclass(frozen=True)
class Ended(Part):
    """A part, and what became of it."""

    contaminated: str
    """What the controls did, if they moved; "" if they held."""

    verdicts: tuple[Verdict, ...]
    changes: dict[str, tuple[float, ...]]
    """log(head / base) of each visit, by the row's key; controls included. Of identical code only."""


@dataclass(frozen=True)
class SelfTest:
    """One file."""

    started_at: datetime
    """In UTC."""

    commit: str
    """40 hex digits, or "working tree"."""

    device: dict[str, Any]
    software: dict[str, Any]
    parts: tuple[Ended, ...]


def read(directory: Path, machine: str) -> tuple[list[SelfTest], list[tuple[str, str]]]:
    """The self-tests of a machine, oldest first; and of each file that is none, its name and why. Raises nothing."""
    tests, skipped = [], []
    for path in sorted((directory / machine / "self-test").glob("*.json")):
        try:
            tests.append(parse(path.read_text(encoding="utf-8")))
        except OSError as error:
            skipped.append((path.name, error.strerror or "cannot be read"))
        except Unreadable as error:
            skipped.append((path.name, str(error)[:_MOST_WORDS]))
        except (ValueError, RecursionError) as error:
            skipped.append((path.name, f"is no JSON, or cut off: {error}"[:_MOST_WORDS]))
    return sorted(tests, key=lambda one: one.started_at), skipped


def parse(text: str) -> SelfTest:
    """A file's contents. Raises `Unreadable` or, where it is not even JSON, ValueError or RecursionError."""
    document = json.loads(text)
    version = document.get("version") if isinstance(document, dict) else None
    if version != VERSION:
        raise Unreadable(f"is of version {version!r}; this page reads version {VERSION}")
    try:
        when = datetime.fromisoformat(_text(document["started_at"]))
        return SelfTest(
            (when if when.tzinfo else when.replace(tzinfo=UTC)).astimezone(UTC),
            _text(document["commit"]),
            dict(document["device"]),
            dict(document["software"]),
            tuple(_part(one) for one in document["parts"]),
        )
    except KeyError as error:
        raise Unreadable(f"has no {error}") from None
    except Unreadable:
        raise
    except (ValueError, TypeError, AttributeError, OverflowError) as error:
        raise Unreadable(f"is not of the form of version {VERSION}: {error}") from None


def _part(one: dict[str, Any]) -> Ended:
    planted = one["injection"]
    try:
        part = Part.planting(_text(planted["kind"]), _number(planted["size"])) if planted else Part(None)
    except Unreadable:
        raise
    except ValueError as error:
        raise Unreadable(f"plants what this page does not know: {error}") from None
    visits = {} if planted else one["visits"]
    return Ended(
        part.injection,
        _text(one["contaminated"]),
        tuple(_verdict(verdict) for verdict in one["verdicts"]),
        {key: tuple(_number(change) for _, change in some) for key, some in visits.items()},
    )


def _verdict(one: dict[str, Any]) -> Verdict:
    visible = _number_or_none(one["smallest_visible"])
    if visible is not None and visible <= 0:
        raise Unreadable(f"has a smallest visible slow-down of {visible!r}")
    return Verdict(
        key=_text(one["key"]),
        quantity=_one_of(get_args(Quantity), one["quantity"]),
        word=_one_of(get_args(Word), one["word"]),
        base=_number_or_none(one["base"]),
        head=_number_or_none(one["head"]),
        change=_number_or_none(one["change"]),
        low=_number_or_none(one["low"]),
        high=_number_or_none(one["high"]),
        smallest_visible=visible,
        same_code=bool(one["same_code"]),
        reason=_text(one["reason"]),
    )


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise Unreadable(f"has {value!r} where text belongs")
    return value


def _number(value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise Unreadable(f"has {value!r} where a number belongs")
    return float(value)


def _number_or_none(value: Any) -> float | None:
    return None if value is None else _number(value)


def _one_of(allowed: tuple[Any, ...], value: Any) -> Any:
    if value not in allowed:
        raise Unreadable(f"has {value!r} where one of {', '.join(allowed)} belongs")
    return value
