"""`python -m perf accept`: accept the regressions of a gate's report with a reason."""

from pathlib import Path

import click

from perf import units
from perf.gate import acceptance
from perf.gate.checkouts import resolve
from perf.gate.report import Unreadable, read_report
from perf.gate.wording import name


@click.command("accept")
@click.argument("report", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.option("--reason", required=True, help="Why the regression is worth it; shown in reports and on the site.")
def command(report: Path, reason: str) -> None:
    """Accept the regressions of a gate's report for its commit, with a reason.

    \b
    python -m perf gate main my-branch --json report.json
    python -m perf accept report.json --reason "The sum is now exact: 3 % of the backward is worth it"

    Adds an entry to perf/accepted.json; commit it with the change. A gate whose HEAD contains the entry shows the
    reason at these rows, and does not exit with 1 because of them unless they become still worse, or fail in another
    way. No threshold moves, and no wrong result is accepted. To take it back, remove the entry.
    """
    if not reason.strip():
        raise click.UsageError("--reason was empty; allowed: a sentence")
    try:
        new = acceptance.of_report(read_report(report), reason.strip())
    except Unreadable as error:
        raise click.ClickException(f"{report} {error}") from None
    resolve(new.commit)
    acceptance.add(new)
    for row in new.rows:
        limit = "" if row.at_most is None else f" by up to {100 * row.at_most:.2f} %"
        click.echo(f"{row.word}{limit}: {name(row.key, row.quantity)}")
    click.echo(f"{units.counted(len(new.rows), 'row')} of {new.commit[:8]} accepted in {acceptance.FILE}: commit it.")
