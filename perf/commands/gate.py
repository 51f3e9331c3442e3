"""`python -m perf gate`: is HEAD slower than BASE, and may that be believed?

measuring -> evidence -> statistics, judge -> verdicts -> terminal, comment, report: measuring, judging and formatting
share plain data and nothing else.
"""

import tempfile
from pathlib import Path

import click

from perf import units
from perf.commands import judging
from perf.gate import checkouts
from perf.gate import report as reports
from perf.gate.comment import comment
from perf.gate.compare import compare
from perf.gate.evidence import Arm, Evidence
from perf.gate.terminal import text
from perf.gate.unreached import change_between, in_reach
from perf.harness.lock import measuring
from perf.harness.preflight import full_disks, objection
from perf.options import Finite, command_line


@click.command("gate", cls=judging.Judging, interrupted="nothing was judged, and no measurement is kept")
@click.argument("base", required=False)
@click.argument("head", required=False)
@judging.chosen_set("pr on a GPU machine, else smoke")
@judging.bench
@click.option(
    "--env",
    "environments",
    nargs=2,
    type=click.Path(exists=True, path_type=Path),
    metavar="A B",
    help="Compare two virtual environments on one commit (BASE, or the working tree): A is base, B is head.",
)
@click.option("--budget", default=10.0, show_default=True, type=Finite(min=0.1), help="Minutes to measure.")
@judging.gpus
@click.option(
    "--tests/--no-tests", default=True, show_default=True, help="Run HEAD's tests first; time nothing if they fail."
)
@click.option("--every-row", is_flag=True, help="Measure the rows that the change cannot reach, too.")
@click.option("--dry-run", is_flag=True, help="Print which rows the change can reach, and measure nothing.")
@judging.json_file
@judging.markdown
@click.option("--keep", is_flag=True, help="Also keep the report, without samples, under perf/records.")
def command(
    base: str | None,
    head: str | None,
    chosen: str | None,
    pattern: str | None,
    environments: tuple[Path, Path] | None,
    budget: float,
    gpus: int | None,
    tests: bool,
    every_row: bool,
    dry_run: bool,
    json_file: Path | None,
    markdown: Path | None,
    keep: bool,
) -> None:
    """Tell whether HEAD is slower than BASE, alternating both in one process, sample by sample.

    \b
    python -m perf gate main                   # the working tree against main
    python -m perf gate v1.2 my-branch --set gpu --budget 60
    python -m perf gate HEAD~1 HEAD -b 'FlashAttention.*triton'
    python -m perf gate main --dry-run         # which rows can the change reach?
    python -m perf gate --env ~/torch-2.11 ~/torch-2.13 --keep

    Rows that run no code that differs between the two are left out, but for a sample of 5 %, by the map that asv run
    keeps of what each row runs.

    HEAD's tests run first, GPU tests included. Then every row is checked, its memory measured and its time sampled in
    three processes; undecided rows get up to eight, and rows that may be slower or faster twelve, within the budget. A
    row is SLOWER only if its change exceeds what its class calls negligible, at a false discovery rate of 0.5 % over
    the whole report. AMBIGUOUS rows state their minimum detectable slow-down. Controls, rows without project code, show
    whether the machine held still.

    --env compares two versions of torch, Triton or Python instead of two commits, with alternating processes. With
    --keep, the site can tell a change of the environment from a change of the code in a series that spans both.

    Intended regressions are accepted with a reason: python -m perf accept --help. Without a GPU: python -m perf
    machine-code --help. How often the gate itself is wrong: python -m perf self-test --help.

    Exit status: 0 no regression, 1 something is slower, larger or broken, 2 nothing could be judged
    or the budget ended before a suspect was confirmed, 130 interrupted.
    """
    if not base and not environments:
        raise click.UsageError("BASE was not given: the commit to compare with")
    if environments and head:
        raise click.UsageError("--env and HEAD were both given; allowed: one of them")
    if dry_run:
        if json_file or markdown or keep or every_row:
            raise click.UsageError(
                "--dry-run was given with --json, --markdown, --keep or --every-row; allowed: it only prints"
            )
        _print_reach(checkouts.resolve_arms(base, head, environments), judging.selected(chosen, pattern, gpus))
        return
    click.echo("Reading the commits, this machine and its rows: a few seconds", err=True)
    if reason := objection(full_disks(Path(tempfile.gettempdir()))):
        raise click.ClickException(reason)
    with measuring(command_line()):
        kind: reports.Kind = "environment" if environments else "gate"
        kept = [reports.place(kind)] if keep else []
        judging.refuse_unwritable_files(json_file, markdown, *kept)
        evidence = judging.selected(chosen, pattern, gpus)
        arms = checkouts.resolve_arms(base, head, environments)
        with checkouts.exported(*arms) as places:
            report = compare(
                arms,
                places,
                evidence,
                budget_s=60 * budget,
                tests=tests,
                every_row=every_row,
                command=judging.command_without_files(),
            )
    files = {}
    if json_file:
        files[json_file] = reports.to_json(report, evidence)
    if markdown:
        files[markdown] = comment(report)
    if keep:
        files[reports.place(kind)] = reports.to_json(report)
    judging.end(text(report), files, report.exit_status, kept=list(files)[-1] if keep else None)


def _print_reach(arms: tuple[Arm, Arm], evidence: list[Evidence]) -> None:
    with checkouts.exported(*arms) as places:
        change = change_between(*arms, places)
    if not change:
        raise click.UsageError("--dry-run was given with one commit; allowed: with two that differ")
    measured, out_of_reach = in_reach(evidence, change)
    why = f": {out_of_reach.why_none}" if out_of_reach.why_none else ""
    click.echo(f"{len(measured)} of {units.counted(len(evidence), 'row')} would be measured{why}", err=True)
    for row in measured:
        kind = "control" if row.is_control else "sampled" if row.case.key in out_of_reach.sampled else "reached"
        click.echo(f"{kind:12} {row.case.key}")
    for key in out_of_reach.skipped:
        click.echo(f"{'out of reach':12} {key}")
