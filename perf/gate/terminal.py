"""Format a report for the terminal."""

from perf import units
from perf.gate.verdicts import Report
from perf.gate.wording import COLUMNS, cells, commit, conditions, different_results, headline, in_order, name, to_do
from perf.printable import printable
from perf.tables import text_table


def text(report: Report) -> str:
    """Return the headline, a table of every row that is not SAME, the number of SAME rows, and the conditions."""
    verdicts = in_order(report.judgement.verdicts)
    shown = [verdict for verdict in verdicts if verdict.word != "SAME"]
    same = len(verdicts) - len(shown)
    lines = [headline(report), f"To do: {to_do(report)}", ""]
    lines.append(f"base {commit(report.base['commit'])}  {report.base['subject']}")
    lines.append(f"head {commit(report.head['commit'])}  {report.head['subject']}")
    if shown:
        rows: list[dict[str, str] | str] = []
        for verdict in shown:
            rows.append({"verdict": verdict.word} | dict(zip(COLUMNS, cells(verdict), strict=True)))
            rows.append(printable(f"  {_unquoted(name(verdict.key, verdict.quantity))}"))
            remarks = verdict.reason, f"accepted: {verdict.accepted}" if verdict.accepted else ""
            rows += [printable(f"    {remark}") for remark in remarks if remark]
        lines += ["", *text_table(rows, keys=6, align=("left", *["right"] * len(COLUMNS))).splitlines()]
    if same:
        lines += ["", f"{units.counted(same, 'row')} of a negligible change: SAME."]
    if report.differences:
        lines += ["", f"Warning: {different_results(report)}."]
        lines += [f"  {_unquoted(key)}: {clause}" for key, clause in report.differences]
    lines += ["", *(f"{condition}: {value}" for condition, value in conditions(report))]
    return "\n".join(map(printable, lines))


def _unquoted(key: str) -> str:
    return key.replace("'", "")
