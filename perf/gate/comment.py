"""Format a report as a comment on a pull request, in GitHub's Markdown and safe against injection.

Names, subjects and failures come from the commits under test. Every character of theirs that means something to
Markdown or HTML is written as a numeric character reference, which CommonMark treats as text and never as structure;
all of it is set as code, in which GitHub makes no mentions, references or links.
"""

import re
from collections.abc import Sequence

from perf.gate.verdicts import Report, Verdict
from perf.gate.wording import COLUMNS, cells, commit, conditions, different_results, headline, in_order, to_do
from perf.printable import collapsed

MARKER = "<!-- perf gate -->"
"""First line of every comment, by which a later gate recognises and replaces it."""

MAX_CHARACTERS = 60_000
"""Maximum length; GitHub refuses comments of more than 65536 characters."""

MAX_TABLE = MAX_CHARACTERS // 3

ICONS = {0: "\u2705", 1: "\u274c", 2: "\u2754"}
_HEADER = f"| verdict | row | {' | '.join(COLUMNS)} |\n|---|---|{'--:|' * len(COLUMNS)}"
_FOLDED = ("AMBIGUOUS", "FIXED", "FASTER", "SMALLER", "NEW", "GONE", "SAME")


def comment(report: Report) -> str:
    """Show regressions openly and fold the rest; drop whole parts beyond `MAX_CHARACTERS` and say so."""
    verdicts = in_order(report.judgement.verdicts)
    parts = [
        MARKER,
        f"### {ICONS[report.exit_status]} perf: {plain(headline(report))}",
        f"**To do:** {plain(to_do(report))}",
        f"base {code(commit(report.base['commit']))} {code(report.base['subject'])}<br>"
        f"head {code(commit(report.head['commit']))} {code(report.head['subject'])}",
    ]
    if worse := [verdict for verdict in verdicts if verdict.is_bad]:
        parts.append(_table(worse))
    if suspects := report.judgement.suspects:
        parts.append(_table(suspects))
    if report.differences:
        lines = "\n".join(f"- {code(key)}: {code(clause)}" for key, clause in report.differences)
        parts.append(folded(f"Warning: {different_results(report)}", lines))
    if accepted := [verdict for verdict in verdicts if verdict.accepted]:
        parts.append(folded(f"accepted ({len(accepted)})", _table(accepted)))
    for word in _FOLDED:
        if rows := [verdict for verdict in verdicts if verdict.word == word and verdict not in suspects]:
            parts.append(folded(f"{word} ({len(rows)})", _table(rows)))
    facts = "\n".join(f"- {name}: {code(value)}" for name, value in conditions(report))
    parts.append(folded("How this was measured, and how to repeat it", facts))
    return shortened(parts, MAX_CHARACTERS) + "\n"


def _table(rows: Sequence[Verdict]) -> str:
    lines = [_HEADER]
    for number, verdict in enumerate(rows):
        row = code(verdict.key) + (" memory" if verdict.quantity == "peak_memory" else "")
        if verdict.reason:
            row += f"<br>{code(verdict.reason)}"
        if verdict.accepted:
            row += f"<br>accepted: {code(verdict.accepted)}"
        lines.append(f"| {' | '.join([verdict.word, row, *map(plain, cells(verdict))])} |")
        if sum(map(len, lines)) > MAX_TABLE and number + 1 < len(rows):
            return "\n".join([*lines, "", f"{len(rows) - number - 1} more are in the report's file."])
    return "\n".join(lines)


def folded(title: str, text: str) -> str:
    """Fold `text`, in Markdown, under its title."""
    return f"<details><summary>{title}</summary>\n\n{text}\n\n</details>"


def plain(text: str) -> str:
    """Escape `text` so that no character has a meaning to Markdown or HTML, on one line.

    GitHub looks for mentions and issues in what the references stand for, too: a zero-width space ends them.
    """
    cut = re.sub(r"(?i)[@#]|\bGH-", "\\g<0>\u200b", collapsed(text))
    return re.sub(r"[^A-Za-z0-9 ,%()]", lambda match: f"&#{ord(match[0])};", cut)


def code(text: str) -> str:
    """Escape `text` and set it as code, in which GitHub links no names and numbers."""
    return f"<code>{plain(text)}</code>"


def shortened(parts: list[str], max_characters: int) -> str:
    """Join as many whole parts as fit."""
    kept: list[str] = []
    for part in parts:
        if sum(map(len, kept)) + len(part) > max_characters:
            return "\n\n".join([*kept, "The rest is too long for a comment; the report's file has it."])
        kept.append(part)
    return "\n\n".join(kept)
