"""Format a report for the terminal."""

from perf import units
from perf.gate.verdicts import Report
from perf.gate.wording import COLUMNS, cells, commit, conditions, different_results, headline, in_order, name, to_do
from perf.printable import printable


def text(report: Report) -> str:
    """Return the headline, a table of every row that is not SAME, the number of SAME rows, and the conditions."""
    from tabulate import tabulate

    verdicts = in_order(report.judgement.verdicts)
    shown = [verdict for verdict in verdicts if verdict.word != "SAME"]
    same = len(verdicts) - len(shown)
    lines = [headline(report), f"To do: {to_do(report)}", ""]
    lines.append(f"base {commit(report.base)}  {report.base['subject']}")
    lines.append(f"head {commit(report.head)}  {report.head['subject']}")
    if shown:
        rows = [[verdict.word, *cells(verdict)] for verdict in shown]
        alignment = ("left", *["right"] * len(COLUMNS))
        table = tabulate(rows, ["verdict", *COLUMNS], disable_numparse=True, colalign=alignment).splitlines()
        lines += ["", *table[:2]]
        for verdict, line in zip(shown, table[2:], strict=True):
            lines += [line, f"  {_unquoted(name(verdict.key, verdict.quantity))}"]
            if verdict.reason:
                lines.append(f"    {verdict.reason}")
            if verdict.accepted:
                lines.append(f"    accepted: {verdict.accepted}")
    if same:
        lines += ["", f"{units.counted(same, 'row')} of a negligible change: SAME."]
    if report.differences:
        lines += ["", f"Warning: {different_results(report)}."]
        lines += [f"  {_unquoted(key)}: {clause}" for key, clause in report.differences]
    lines += ["", *(f"{condition}: {value}" for condition, value in conditions(report))]
    return "\n".join(map(printable, lines))


def _unquoted(key: str) -> str:
    return key.replace("'", "")
