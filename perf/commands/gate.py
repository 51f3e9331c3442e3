"""`python -m perf gate`: is HEAD slower than BASE, and may that be believed?

measuring -> evidence -> statistics, judge -> verdicts -> terminal, comment, report: measuring, judging and formatting
share plain data and nothing else.
"""

import datetime
import os
import re
import sys
import tempfile
import traceback
from pathlib import Path
from typing import Any, NoReturn

import click
from click.core import ParameterSource

from perf.files import refuse_unwritable, write_measured
from perf.gate import checkouts
from perf.gate import report as reports
from perf.gate.compare import compare
from perf.gate.evidence import Arm, Evidence
from perf.gate.machine_code.targets import DEFAULT, TARGETS
from perf.gate.rows import every_row as all_rows
from perf.gate.rows import rows
from perf.gate.unreached import change_between, in_reach
from perf.harness import device
from perf.harness.lock import measuring
from perf.harness.preflight import full_disks, objection
from perf.harness.progress import TerminalBar
from perf.options import Finite, NotJudged, command_line, unprintable
from perf.selection import SETS, pattern_of
from perf.tables import text_table


class _Gate(click.Command):
    """Command whose errors exit with 2, since 1 means a regression."""

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except click.UsageError:  # already exits with 2
            raise
        except SystemExit as error:
            if isinstance(error.code, str):  # a measuring process failed to start
                raise NotJudged(error.code) from None
            raise
        except click.ClickException as error:
            raise NotJudged(error.message) from None
        except KeyboardInterrupt:
            kept = "the parts that ended are kept" if ctx.params.get("self_test") else "no measurement is kept"
            raise KeyboardInterrupt(f"nothing was judged, and {kept}") from None
        except (click.exceptions.Exit, click.Abort):
            raise
        except Exception as error:
            if isinstance(error, OSError) and (ends := unprintable(error)):
                raise ends from None
            traceback.print_exc()
            ctx.exit(NotJudged.exit_code)


@click.command("gate", cls=_Gate)
@click.argument("base", required=False)
@click.argument("head", required=False)
@click.option(
    "--set",
    "chosen",
    type=click.Choice(list(SETS)),
    help="Rows, as `perf select` names them; default: pr on a GPU machine, else smoke.",
)
@click.option(
    "-b", "--bench", "pattern", metavar="REGEX", help="Select rows by name instead; asv's method may be missing."
)
@click.option(
    "--env",
    "environments",
    nargs=2,
    type=click.Path(exists=True, path_type=Path),
    metavar="A B",
    help="Compare two virtual environments on one commit (BASE, or the working tree): A is base, B is head.",
)
@click.option("--budget", default=10.0, show_default=True, type=Finite(min=0.1), help="Minutes to measure.")
@click.option(
    "--gpus",
    type=click.IntRange(1),
    metavar="N",
    help="Use the first N GPUs, and of the multi-GPU cases those on N. Default: all of both.",
)
@click.option(
    "--tests/--no-tests", default=True, show_default=True, help="Run HEAD's tests first; time nothing if they fail."
)
@click.option("--every-row", is_flag=True, help="Measure the rows that the change cannot reach, too.")
@click.option("--dry-run", is_flag=True, help="Print which rows the change can reach, and measure nothing.")
@click.option(
    "--json", "json_file", type=click.Path(dir_okay=False, path_type=Path), help="Also write the report as JSON."
)
@click.option("--markdown", type=click.Path(dir_okay=False, path_type=Path), help="Also write the report as a comment.")
@click.option("--keep", is_flag=True, help="Also keep the report, without samples, under perf/records.")
@click.option("--self-test", is_flag=True, help="Test the gate itself: compare BASE (or HEAD) with itself.")
@click.option(
    "--plant",
    multiple=True,
    type=Finite(min=0, max=100, min_open=True),
    metavar="PERCENT",
    help="Size of the slow-down planted in the self-test, instead of the default set; repeatable.",
)
@click.option("--compile-only", is_flag=True, help="Compare the machine code of the rows' kernels instead; no GPU.")
@click.option(
    "--target",
    "targets",
    multiple=True,
    type=click.Choice(list(TARGETS)),
    help=f"Compute capability for --compile-only; repeatable. Default: {DEFAULT}.",
)
@click.option("--simulate", is_flag=True, help="Test the rules on noise recorded on an H200: 5 minutes, no GPU.")
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
    self_test: bool,
    plant: tuple[float, ...],
    compile_only: bool,
    targets: tuple[str, ...],
    simulate: bool,
) -> None:
    """Tell whether HEAD is slower than BASE, alternating both in one process, sample by sample.

    \b
    python -m perf gate main                   # the working tree against main
    python -m perf gate v1.2 my-branch --set gpu --budget 60
    python -m perf gate HEAD~1 HEAD -b 'FlashAttention.*triton'
    python -m perf gate main --dry-run         # which rows can the change reach?
    python -m perf gate main --compile-only    # which of their kernels become other machine code? No GPU needed
    python -m perf gate --env ~/torch-2.11 ~/torch-2.13 --keep

    Rows that run no code that differs between the two are left out, but for a sample of 5 %, by the map that asv run
    keeps of what each row runs.

    HEAD's tests run first, GPU tests included. Then every row is checked, its memory measured and its time sampled in
    three processes; undecided rows get up to eight, and rows that may be slower or faster twelve, within the budget. A
    row is SLOWER only if its change exceeds what its class calls negligible, at a false discovery rate of 0.5 % over
    the whole report. AMBIGUOUS rows state their minimum detectable slow-down. Controls, rows without project code, show
    whether the machine held still.

    --self-test compares one commit with itself, as it is and with slow-downs of 0.5 to 5 % and 1 MiB planted in one
    arm, each within the budget. It reports the gate's false alarms here, and its detection rate for a row that is the
    only changed one, and keeps both under perf/records. --simulate applies the same rules to thousands of reports drawn
    from recorded noise, beside asv's rule and a plain t-test.

    --compile-only plans the launches of every row at both commits and compiles the kernels that differ, on a CPU. Rows
    of the same machine code, grid and numbers take the same device time; the others are the ones to measure.

    --env compares two versions of torch, Triton or Python instead of two commits, with alternating processes. With
    --keep, the site can tell a change of the environment from a change of the code in a series that spans both.

    Intended regressions are accepted with a reason: python -m perf accept --help.

    Exit status: 0 no regression, 1 something is slower, larger or broken, 2 nothing could be judged
    or the budget ended before a suspect was confirmed, 130 interrupted.
    """
    if simulate:
        context = click.get_current_context()
        sources = {name: context.get_parameter_source(name) for name in context.params if name != "simulate"}
        if ParameterSource.COMMANDLINE in sources.values():
            raise click.UsageError("--simulate was given with BASE or another option; allowed: alone")
        _simulate()
        return
    if not base and not self_test and not environments:
        raise click.UsageError("BASE was not given: the commit to compare with")
    if environments and (head or self_test):
        raise click.UsageError(f"--env and {'HEAD' if head else '--self-test'} were both given; allowed: one of them")
    if self_test and (head or json_file or markdown or dry_run):
        raise click.UsageError(
            "--self-test was given with HEAD, --json, --markdown or --dry-run; allowed: with one commit at most; its "
            "report is kept under perf/records"
        )
    if plant and not self_test:
        raise click.UsageError("--plant was given; allowed: with --self-test")
    if chosen and pattern:
        raise click.UsageError("--set and -b were both given; allowed: one of them")
    if json_file and markdown and json_file.resolve() == markdown.resolve():
        raise click.UsageError(f"--json and --markdown are both {markdown}; allowed: two files")
    if targets and not compile_only:
        raise click.UsageError("--target was given; allowed: with --compile-only")
    if compile_only:
        if environments or self_test or keep or dry_run or every_row or gpus:
            raise click.UsageError(
                "--compile-only was given with --env, --self-test, --keep, --dry-run, --every-row or --gpus; allowed: "
                "with --set or -b, --target, --json and --markdown"
            )
        _compile_only(base, head, chosen, pattern, targets or (DEFAULT,), json_file, markdown)
    if dry_run:
        if json_file or markdown or keep:
            raise click.UsageError("--dry-run was given with --json, --markdown or --keep; allowed: it only prints")
        _print_reach(*checkouts.resolve_arms(base, head, environments), _selected(chosen, pattern, gpus))
        return
    if gpus:
        visible = os.environ.get("CUDA_VISIBLE_DEVICES") or ",".join(map(str, range(gpus)))
        os.environ["CUDA_VISIBLE_DEVICES"] = ",".join(visible.split(",")[:gpus])  # inherited by measuring processes
    click.echo("Reading the commits, this machine and its rows: a few seconds", err=True)
    kind: reports.Kind = "self-test" if self_test else "environment" if environments else "gate"
    kept = [reports.place(kind, datetime.datetime.now(datetime.UTC))] if keep or self_test else []
    if reason := objection(full_disks(Path(tempfile.gettempdir()))):
        raise click.ClickException(reason)
    with measuring(command_line()):
        for path in filter(None, (json_file, markdown, *kept)):
            refuse_unwritable(path)
        if self_test:
            _self_test(base or "HEAD", chosen, pattern, gpus, plant, budget)
            return
        evidence = _selected(chosen, pattern, gpus)
        arms = checkouts.resolve_arms(base, head, environments)
        report = compare(arms, evidence, budget_s=60 * budget, tests=tests, every_row=every_row, command=_command())
    from perf.gate.comment import comment
    from perf.gate.terminal import text

    files = {}
    if json_file:
        files[json_file] = reports.to_json(report, evidence)
    if markdown:
        files[markdown] = comment(report)
    if keep:
        files[reports.place(kind, datetime.datetime.now(datetime.UTC))] = reports.to_json(report)
    _end(text(report), files, report.exit_status, kept=list(files)[-1] if keep else None)


def _end(report: str, files: dict[Path, str], exit_status: int, kept: Path | None = None) -> NoReturn:
    """Write the report's files and print it. Where that fails, exit with its status all the same, if it has one."""
    try:
        write_measured(files)
        report += f"\nKept in {kept}" if kept else ""
    except click.ClickException as error:
        error.show()
        exit_status = exit_status or NotJudged.exit_code
    try:
        click.echo(report)
    except OSError as error:
        if isinstance(ends := unprintable(error), click.ClickException):
            ends.show()
            exit_status = exit_status or ends.exit_code
    sys.exit(exit_status)


def _self_test(
    commit: str,
    chosen: str | None,
    pattern: str | None,
    gpus: int | None,
    plant: tuple[float, ...],
    budget: float,
) -> None:
    from perf.gate.self_test import planting, prove

    cases = planting([percent / 100 for percent in plant])
    prove(checkouts.resolve(commit), lambda: _selected(chosen, pattern, gpus), cases, budget_s=60 * budget)


def _compile_only(
    base: str | None,
    head: str | None,
    chosen: str | None,
    pattern: str | None,
    targets: tuple[str, ...],
    json_file: Path | None,
    markdown: Path | None,
) -> NoReturn:
    from perf.gate.machine_code import compared, report, run

    for path in filter(None, (json_file, markdown)):
        refuse_unwritable(path)
    selected = _selected(chosen or (None if pattern else "pr"), pattern, None)
    cases = [row.case for row in selected if not row.is_control and row.case.device == "cuda"]
    if not cases:
        raise click.ClickException("none of these rows runs on a GPU; allowed: rows that do, such as those of --set pr")
    found = run.run(checkouts.resolve_arms(base, head, None), cases, targets, _command())
    files = {}
    if json_file:
        to_measure = compared.to_measure(found.targets.values())
        pattern = pattern_of(case for case in cases if case.key in to_measure)
        files[json_file] = report.to_json(found, pattern)
    if markdown:
        files[markdown] = report.comment(found)
    _end(report.text(found), files, found.exit_status)


def _print_reach(base: Arm, head: Arm, evidence: list[Evidence]) -> None:
    if not (change := change_between(base, head)):
        raise click.UsageError("--dry-run was given with one commit; allowed: with two that differ")
    measured, out_of_reach = in_reach(evidence, change)
    if out_of_reach.why_none:
        click.echo(f"Every row would be measured: {out_of_reach.why_none}", err=True)
    for row in measured:
        kind = "control" if row.is_control else "sampled" if row.case.key in out_of_reach.sampled else "reached"
        click.echo(f"{kind:12} {row.case.key}")
    for key in out_of_reach.skipped:
        click.echo(f"{'out of reach':12} {key}")


def _simulate() -> None:
    from perf.gate.simulated_rates import tables

    click.echo("Thousands of reports drawn from recorded noise: about five minutes", err=True)
    with TerminalBar(0, "line", "simulating") as bar:
        simulated = tables(step=lambda done, total, text: bar.reach(done, text, total))
    for title, lines in simulated:
        click.echo(f"\n{title}\n{text_table(lines)}")


def _selected(chosen: str | None, pattern: str | None, gpus: int | None) -> list[Evidence]:
    name = chosen or ("pr" if device.machine()["gpu"] else "smoke")
    try:
        selected = rows(pattern or SETS[name], gpus)
    except re.error as error:
        raise click.UsageError(f"-b {pattern!r} was given; allowed: a regular expression ({error})") from None
    if not selected:
        if any(row.is_control and re.search(pattern or "", row.case.key) for row in all_rows()):
            raise click.ClickException(
                f"{pattern!r} matches controls alone, which only tell whether other rows may be believed; allowed: a "
                "pattern that also matches a row of project code"
            )
        raise click.ClickException(f"no case matches {pattern!r}; python -m perf case --list prints the names of all")
    return selected


def _command() -> str:
    """Return the command line without the options that name files of this machine."""
    return command_line(flags=["--keep"], valued=["--json", "--markdown"])
