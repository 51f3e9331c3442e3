"""The report as a comment on a pull request: GitHub's Markdown, in which nothing but we can write Markdown or HTML.

Names, subjects and failures come from the commits under test, so every character of theirs that means anything to
Markdown or to HTML is written as a numeric character reference, which CommonMark takes as text, never as structure; and
all of it is set as code, in which GitHub makes no mentions, references or links.
"""

import re
from collections.abc import Iterable, Sequence

from perf.gate.verdicts import Report, Verdict
from perf.gate.wording import (
    change,
    commit,
    conditions,
    different_results,
    headline,
    in_order,
    negligible,
    to_do,
    values,
    visible,
)
from perf.printable import collapsed

MARKER = "<!-- perf gate -->"
"""First line of every comment, by which a later one finds it and takes its place."""

MAX_CHARACTERS = 60_000
"""GitHub refuses comments of more than 65536."""

ICONS = {0: "\u2705", 1: "\u274c", 2: "\u2754"}
_HEADER = "| verdict | row | base | head | change (95 %) | negligible | visible from |\n|---|---|--:|--:|--:|--:|--:|"
_FOLDED = ("AMBIGUOUS", "FIXED", "FASTER", "SMALLER", "NEW", "GONE", "SAME")


def comment(report: Report) -> str:
    """What is worse lies open, the rest folded; at most `MAX_CHARACTERS`, with a word on what was left out."""
    verdicts = in_order(report.judgement.verdicts)
    parts = [
        MARKER,
        f"### {ICONS[report.exit_status]} perf: {_plain(headline(report))}",
        f"**To do:** {_plain(to_do(report))}",
        f"base {_code(commit(report.base))} {_code(report.base['subject'])}<br>"
        f"head {_code(commit(report.head))} {_code(report.head['subject'])}",
    ]
    if worse := [one for one in verdicts if one.is_bad]:
        parts.append(_table(worse))
    if report.differences:
        lines = "\n".join(f"- {_code(key)}: {_code(how)}" for key, how in report.differences)
        parts.append(_folded(f"Warning: {different_results(report)}", lines))
    if accepted := [one for one in verdicts if one.accepted]:
        parts.append(_folded(f"accepted ({len(accepted)})", _table(accepted)))
    for word in _FOLDED:
        if rows := [one for one in verdicts if one.word == word]:
            parts.append(_folded(f"{word} ({len(rows)})", _table(rows)))
    facts = "\n".join(f"- {name}: {_code(value)}" for name, value in conditions(report))
    parts.append(_folded("How this was measured, and how to repeat it", facts))
    return _shortened(parts) + "\n"


def _table(rows: Sequence[Verdict]) -> str:
    return "\n".join([_HEADER, *_lines(rows)])


def _lines(rows: Iterable[Verdict]) -> Iterable[str]:
    for one in rows:
        what = _code(one.key) + (" memory" if one.quantity == "peak_memory" else "")
        if one.reason:
            what += f"<br>{_code(one.reason)}"
        if one.accepted:
            what += f"<br>accepted: {_code(one.accepted)}"
        cells = [one.word, what, *map(_plain, (*values(one), change(one), negligible(one), visible(one)))]
        yield f"| {' | '.join(cells)} |"


def _folded(title: str, text: str) -> str:
    return f"<details><summary>{title}</summary>\n\n{text}\n\n</details>"


def _plain(text: str) -> str:
    """`text` as text: no character of it is read as anything else, and it stays on its line."""
    return re.sub(r"[^A-Za-z0-9 ,%()]", lambda found: f"&#{ord(found[0])};", collapsed(text))


def _code(text: str) -> str:
    """The same, in a fixed width; GitHub links no names and numbers in there."""
    return f"<code>{_plain(text)}</code>"


def _shortened(parts: list[str]) -> str:
    """As many whole parts as fit."""
    kept: list[str] = []
    for part in parts:
        if sum(map(len, kept)) + len(part) > MAX_CHARACTERS:
            return "\n\n".join([*kept, "The rest is too long for a comment; the report's file has it."])
        kept.append(part)
    return "\n\n".join(kept)
