"""Format what `perf machine-code` found: for the terminal, for a comment, as JSON."""

import dataclasses
import json
from collections import Counter

from perf.gate.comment import ICONS, code, folded, plain, shortened
from perf.gate.machine_code.compared import BAD, ORDER, KernelChange, Report, changes, to_measure
from perf.gate.wording import commit
from perf.printable import printable
from perf.units import counted

VERSION = 1
MAX_CHARACTERS = 4_000
"""Maximum length of the section, which follows a gate's comment of up to 60,000 in one of up to 65,536."""


def headline(report: Report) -> str:
    """Summarise the report in one line."""
    kernels = [change for found in report.targets.values() for change in found.kernels]
    counts = Counter(change.word for change in kernels)
    words = ", ".join(f"{counts[word]} {word.lower()}" for word in ORDER if counts[word])
    if broken := {key: why for found in report.targets.values() for key, why in found.broken.items()}:
        return f"Calls fail at HEAD, rows: {len(broken)}, such as by {next(iter(broken.values()))}"
    if report.exit_status == 2:
        return "No row's launches could be planned"
    if not any(change.word != "SAME" for change in kernels):
        launched = any(found.reached for found in report.targets.values())
        return "The same machine code" + (", launched in another way" if launched else " in every planned row")
    return f"Machine code differs: {words}"


def conditions(report: Report) -> list[tuple[str, str]]:
    """Return name and value of each condition."""
    lines = []
    for target, found in report.targets.items():
        counts = f"{len(found.same)} the same, {len(found.reached)} reached, {len(found.without)} of peers"
        lines.append(
            (
                f"Rows, compute capability {target}",
                f"{counts}, {len(found.unknown)} unknown, {len(found.broken)} broken",
            )
        )
    lines.append(("Rows to measure", f"{len(to_measure(report.targets.values()))}"))
    lines.append(("Compiled", f"{report.compiled} kernels with triton {report.triton}, in {report.seconds:.0f} s"))
    return [*lines, ("Command", report.command)]


def text(report: Report) -> str:
    """Return the headline, a table of every kernel that was compiled, the rows to measure and the conditions."""
    lines = [headline(report), ""]
    lines += [
        f"{name} {commit(arm.commit)}  {arm.subject}" for name, arm in (("base", report.base), ("head", report.head))
    ]
    for change in _kernels(report):
        where = f"compute capability {change.target}, {counted(change.rows, 'row')}"
        lines += ["", f"{change.word:8} {_name(change)}, {where}"]
        lines += [f"    {line}" for line in (", ".join(change.constants), ", ".join(changes(change))) if line]
    for target, found in report.targets.items():
        for title, rows in (("broken", found.broken), ("reached", found.reached), ("unknown", found.unknown)):
            for why, count in Counter(rows.values()).items():
                lines += ["", f"Rows {title}, compute capability {target}: {count}, {why}"]
                lines += [f"  {key}" for key in rows if rows[key] == why]
    lines += ["", *(f"{name}: {value}" for name, value in conditions(report))]
    return "\n".join(map(printable, lines))


def comment(report: Report) -> str:
    """Return a section for a comment on a pull request."""
    parts = [f"### {ICONS[report.exit_status]} machine code: {plain(headline(report))}"]
    if kernels := _kernels(report):
        rows = [
            f"| {change.word} | {code(_name(change))} | {change.target} | {change.rows} | "
            f"{code(', '.join(change.constants))} | {code(', '.join(changes(change)))} |"
            for change in kernels
        ]
        table = "\n".join(
            ["| verdict | kernel | target | rows | constants | changes |", "|---|---|---|--:|---|---|", *rows]
        )
        bad = any(change.word in BAD for change in kernels)
        parts.append(table if bad else folded(f"kernels ({len(kernels)})", table))
    if keys := sorted(to_measure(report.targets.values())):
        parts.append(folded(f"rows to measure ({len(keys)})", "\n".join(f"- {code(key)}" for key in keys)))
    facts = "\n".join(f"- {name}: {code(value)}" for name, value in conditions(report))
    return shortened([*parts, folded("How this was compiled, and how to repeat it", facts)], MAX_CHARACTERS) + "\n"


def to_json(report: Report, pattern: str) -> str:
    """Return `version`, `exit_status`, `measure` (the rows that a GPU has to time), its `pattern`, and all fields."""
    document = {
        "version": VERSION,
        "exit_status": report.exit_status,
        "measure": sorted(to_measure(report.targets.values())),
        "pattern": pattern,
    }
    return json.dumps(document | dataclasses.asdict(report), separators=(",", ":")) + "\n"


def _kernels(report: Report) -> list[KernelChange]:
    found = [change for comparison in report.targets.values() for change in comparison.kernels]
    return sorted(found, key=lambda change: ORDER.index(change.word))


def _name(change: KernelChange) -> str:
    name = change.head or change.base
    if change.base and change.base != name:
        name = f"{change.base}, now {name}"
    return f"{name} of d = {change.head_dim}" if change.head_dim else name
