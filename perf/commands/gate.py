"""`python -m perf gate`: is HEAD slower than BASE, and may that be believed?

measuring -> evidence -> statistics, judge -> verdicts -> terminal, comment, report: what measures, what judges and what
shows share plain data and nothing else.
"""

import contextlib
import dataclasses
import datetime
import functools
import os
import re
import shlex
import signal
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click

from perf.files import refuse_unwritable, write_measured
from perf.gate import checkouts
from perf.gate import report as reports
from perf.gate.compare import compare
from perf.gate.evidence import Arm, Evidence
from perf.gate.rows import every_row, rows
from perf.harness import device
from perf.harness.case import case_key
from perf.harness.lock import Busy, measuring
from perf.harness.preflight import full_disks, objection
from perf.options import Finite
from perf.selection import SETS

NAMES = {"smoke": "smoke", "pr": "pr", "full": "gpu"}
"""--set -> name in `perf.selection.SETS`."""


class _NotJudged(click.ClickException):
    exit_code = 2


class _Gate(click.Command):
    """Whatever ends this command before a verdict has its own exit status: 1 would say that something is slower."""

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except click.UsageError:  # has it already
            raise
        except SystemExit as error:
            if isinstance(error.code, str):  # a measuring process that does not start
                raise _NotJudged(error.code) from None
            raise
        except click.ClickException as error:
            raise _NotJudged(error.message) from None


@click.command("gate", cls=_Gate)
@click.argument("base", required=False)
@click.argument("head", required=False)
@click.option("--set", "chosen", type=click.Choice(list(NAMES)), help="Rows; default: pr on a GPU machine, else smoke.")
@click.option("-b", "--bench", "pattern", metavar="REGEX", help="Rows by name instead, as asv run -b selects them.")
@click.option(
    "--env",
    "environments",
    nargs=2,
    type=click.Path(exists=True, path_type=Path),
    metavar="A B",
    help="One commit in two virtual environments: BASE, or the working tree, in A as base and in B as head.",
)
@click.option("--budget", default=10.0, show_default=True, type=Finite(min=0.1), help="Minutes to measure.")
@click.option(
    "--gpus",
    type=click.IntRange(1),
    metavar="N",
    help="Use the first N GPUs, and of the cases on several ranks those on N. Default: all of both.",
)
@click.option(
    "--tests/--no-tests", default=True, show_default=True, help="Run HEAD's tests first; red means no timing."
)
@click.option(
    "--json", "json_file", type=click.Path(dir_okay=False, path_type=Path), help="Also write the report as JSON."
)
@click.option("--markdown", type=click.Path(dir_okay=False, path_type=Path), help="Also write it as a comment.")
@click.option("--keep", is_flag=True, help="Also keep the report, without samples, under perf/records.")
@click.option("--self-test", is_flag=True, help="Prove the gate itself: BASE (or HEAD) against itself.")
@click.option(
    "--plant",
    multiple=True,
    type=Finite(min=0, max=100, min_open=True),
    metavar="PERCENT",
    help="Plant only a slow-down of so much in the self-test; may be given several times.",
)
@click.option("--simulate", is_flag=True, help="Prove its rules on noise recorded on an H200: 5 minutes, no GPU.")
def command(
    base: str | None,
    head: str | None,
    chosen: str | None,
    pattern: str | None,
    environments: tuple[Path, Path] | None,
    budget: float,
    gpus: int | None,
    tests: bool,
    json_file: Path | None,
    markdown: Path | None,
    keep: bool,
    self_test: bool,
    plant: tuple[float, ...],
    simulate: bool,
) -> None:
    """Is HEAD slower than BASE? Both commits in one process, in turn, sample by sample.

    \b
    python -m perf gate main                   # the working tree against main
    python -m perf gate v1.2 my-branch --set full --budget 60
    python -m perf gate HEAD~1 HEAD -b 'FlashAttention.*triton'
    python -m perf gate --env ~/torch-2.11 ~/torch-2.13 --keep

    HEAD's tests run first, GPU tests included. Then every row is checked, weighed and timed in three processes, what
    is still open in up to eight, and what may be slower or faster in twelve, until the budget ends. A row is SLOWER
    only if these show a change beyond what its class calls negligible, with false discoveries held at 0.5 % over the
    whole report; AMBIGUOUS rows say how small a slow-down they would have shown. Rows without project code, the
    controls, say whether the machine held still.

    --self-test measures one commit against itself, as it is and with slow-downs of 0.5 to 5 % and a MiB planted in one
    arm, each within the budget: how often the gate is wrong here, and how often it finds what is there, in a row that
    is the only one that changed. What it found is kept under perf/records. --simulate puts the same rules to thousands
    of reports drawn from recorded noise, beside asv's rule and a plain t-test.

    --env compares two versions of torch, Triton or Python instead of two commits: a process for each, in turn. Kept
    with --keep, it tells a change of the environment from one of the code in a series that goes over both.

    What is worse on purpose is accepted with a reason: python -m perf accept --help.

    Exit status: 0 nothing is worse, 1 something is slower, larger or broken, 2 nothing could be judged.
    """
    if simulate:
        _simulate()
        return
    if not base and not self_test and not environments:
        raise click.UsageError("BASE was not given: the commit to compare with")
    if environments and (head or self_test):
        raise click.UsageError(f"--env and {'HEAD' if head else '--self-test'} were both given; allowed: one of them")
    if plant and not self_test:
        raise click.UsageError("--plant was given; allowed: with --self-test")
    if gpus:
        visible = os.environ.get("CUDA_VISIBLE_DEVICES") or ",".join(map(str, range(gpus)))
        os.environ["CUDA_VISIBLE_DEVICES"] = ",".join(visible.split(",")[:gpus])  # of every measuring process
    click.echo("Reading the commits, this machine and its rows: some seconds", err=True)
    kind: reports.Kind = "self-test" if self_test else "environment" if environments else "gate"
    kept = [reports.place(kind, datetime.datetime.now(datetime.UTC))] if keep or self_test else []
    for path in filter(None, (json_file, markdown, *kept)):
        refuse_unwritable(path)
    if reason := objection(full_disks(Path(tempfile.gettempdir()))):
        raise click.ClickException(reason)
    try:
        with _ending_on_sigterm(), measuring(f"python -m perf {shlex.join(sys.argv[1:])}"):
            if self_test:
                from perf.gate.self_test import planting, prove

                choose = functools.partial(_selected, chosen, pattern, gpus)
                parts = planting([percent / 100 for percent in plant])
                prove(checkouts.resolve(base or "HEAD"), choose, parts, budget_s=60 * budget)
                return
            arms = _arms(base, head, environments)
            evidence = _selected(chosen, pattern, gpus)
            report = compare(arms, evidence, budget_s=60 * budget, tests=tests, command=_command())
    except Busy as busy:
        raise click.ClickException(str(busy)) from None
    from perf.gate.comment import comment
    from perf.gate.terminal import text

    click.echo(text(report))
    files = {}
    if json_file:
        files[json_file] = reports.to_json(report, evidence)
    if markdown:
        files[markdown] = comment(report)
    if keep:
        files[reports.place(kind, datetime.datetime.now(datetime.UTC))] = reports.to_json(report)
    write_measured(files)
    if keep:
        click.echo(f"Kept in {list(files)[-1]}")
    sys.exit(report.exit_status)


@contextlib.contextmanager
def _ending_on_sigterm() -> Iterator[None]:
    """As on Ctrl-C: what was started is stopped, and what was written for the time being removed."""

    def end(*_: Any) -> None:
        sys.exit(128 + signal.SIGTERM)

    before = signal.signal(signal.SIGTERM, end)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _simulate() -> None:
    from tabulate import tabulate

    from perf.gate.proof import tables

    click.echo("Thousands of reports drawn from recorded noise: about five minutes", err=True)
    for title, found in tables():
        click.echo(f"\n{title}\n{tabulate(found, headers='keys', disable_numparse=True)}")


def _arms(base: str | None, head: str | None, environments: tuple[Path, Path] | None) -> tuple[Arm, Arm]:
    if environments:
        arm = checkouts.resolve(base) if base else checkouts.working_tree()
        first, second = (dataclasses.replace(arm, python=_python(path)) for path in environments)
        return first, second
    return checkouts.resolve(base or ""), checkouts.resolve(head) if head else checkouts.working_tree()


def _python(path: Path) -> str:
    """The executable in a virtual environment, or the one that was given itself."""
    executable = path / "bin" / "python" if path.is_dir() else path
    if not os.access(executable, os.X_OK):
        raise click.UsageError(f"--env {path} was given; allowed: a virtual environment, or its Python")
    return str(executable.absolute())  # not resolved: a link's place tells Python its environment


def _selected(chosen: str | None, pattern: str | None, gpus: int | None) -> list[Evidence]:
    if chosen and pattern:
        raise click.UsageError("--set and -b were both given; allowed: one of them")
    name = chosen or ("pr" if device.machine()["gpu"] else "smoke")
    try:
        found = rows(pattern or SETS[NAMES[name]], gpus)
    except re.error as error:
        raise click.UsageError(f"-b {pattern!r} was given; allowed: a regular expression ({error})") from None
    if not found:
        if any(re.search(pattern or "", case_key(one.case.benchmark, one.case.params.values())) for one in every_row()):
            raise click.ClickException(
                f"{pattern!r} matches controls alone, which say how far others may be believed; allowed: with a row of "
                "project code"
            )
        raise click.ClickException(f"no case matches {pattern!r}; python -m perf case --list prints the names of all")
    return found


def _command() -> str:
    """What repeats this, but for the files of one machine."""
    arguments = [one for one in sys.argv[1:] if one != "--keep"]
    for option in ("--json", "--markdown"):
        if option in arguments:
            at = arguments.index(option)
            del arguments[at : at + 2]
    return f"python -m perf {shlex.join(arguments)}"
