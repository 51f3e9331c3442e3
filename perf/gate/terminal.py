"""The report in a terminal."""

from perf.gate.verdicts import Report
from perf.gate.wording import (
    change,
    commit,
    conditions,
    different_results,
    headline,
    in_order,
    name,
    negligible,
    to_do,
    values,
    visible,
)
from perf.printable import printable


def text(report: Report) -> str:
    """A sentence, a table of everything that is not the SAME, a line for what is, and the conditions."""
    from tabulate import tabulate

    verdicts = in_order(report.judgement.verdicts)
    shown = [one for one in verdicts if one.word != "SAME"]
    same = [one for one in verdicts if one.word == "SAME"]
    parts = [headline(report), f"To do: {to_do(report)}", ""]
    parts.append(f"base {commit(report.base)}  {report.base['subject']}")
    parts.append(f"head {commit(report.head)}  {report.head['subject']}")
    if shown:
        rows = [[one.word, *values(one), change(one), negligible(one), visible(one)] for one in shown]
        headers = ["verdict", "base", "head", "change (95 %)", "negligible", "visible from"]
        lines = tabulate(rows, headers, disable_numparse=True, colalign=("left", *["right"] * 5)).splitlines()
        parts += ["", *lines[:2]]
        for one, line in zip(shown, lines[2:], strict=True):
            parts += [line, f"  {_unquoted(name(one.key, one.quantity))}"]
            if one.reason:
                parts.append(f"    {one.reason}")
            if one.accepted:
                parts.append(f"    accepted: {one.accepted}")
    if same:
        parts += ["", f"{len(same)} rows are the SAME: their changes lie within what is negligible."]
    if report.differences:
        parts += ["", f"Warning: {different_results(report)}."]
        parts += [f"  {_unquoted(key)}: {how}" for key, how in report.differences]
    parts += ["", *(f"{name}: {value}" for name, value in conditions(report))]
    return "\n".join(map(printable, parts))


def _unquoted(key: str) -> str:
    return key.replace("'", "")
