"""Shared parts of the commands that compare two commits: their exit status, their rows, their files."""

import os
import re
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn

import click

from perf.files import refuse_unwritable, write_measured
from perf.gate.evidence import Evidence
from perf.gate.rows import every_row, rows
from perf.harness import device
from perf.options import NotJudged, Regex, command_line, unprintable
from perf.selection import SETS


class Judging(click.Command):
    """Command whose errors exit with 2, since 1 means a regression. `interrupted` says what Ctrl-C leaves."""

    def __init__(self, *args: Any, interrupted: str, **attributes: Any):
        super().__init__(*args, **attributes)
        self._interrupted = interrupted

    def invoke(self, ctx: click.Context) -> Any:
        """Invoke as click does; then exit with 2 instead of 1."""
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
            raise KeyboardInterrupt(self._interrupted) from None
        except (click.exceptions.Exit, click.Abort):
            raise
        except Exception as error:
            if isinstance(error, OSError) and (ends := unprintable(error)):
                raise ends from None
            traceback.print_exc()
            ctx.exit(NotJudged.exit_code)


def chosen_set(default: str) -> Callable[[Any], Any]:
    """Add `--set`, whose default the help words so."""
    words = f"Rows, as `perf select` names them; default: {default}."
    return click.option("--set", "chosen", type=click.Choice(list(SETS)), help=words)


bench = click.option(
    "-b", "--bench", "pattern", type=Regex(), help="Select rows by name instead; asv's method may be missing."
)


def _hide_other_gpus(_context: click.Context, _option: click.Parameter, gpus: int | None) -> int | None:
    """Let this process and those that it starts see the first `gpus` alone, before it locks or counts any."""
    if gpus:
        visible = os.environ.get("CUDA_VISIBLE_DEVICES") or ",".join(map(str, range(gpus)))
        os.environ["CUDA_VISIBLE_DEVICES"] = ",".join(visible.split(",")[:gpus])
    return gpus


gpus = click.option(
    "--gpus",
    type=click.IntRange(1),
    callback=_hide_other_gpus,
    metavar="N",
    help="Use the first N GPUs, and of the multi-GPU cases those on N. Default: all of both.",
)
json_file = click.option(
    "--json", "json_file", type=click.Path(dir_okay=False, path_type=Path), help="Also write the report as JSON."
)
markdown = click.option(
    "--markdown", type=click.Path(dir_okay=False, path_type=Path), help="Also write the report as a comment."
)


def selected(chosen: str | None, pattern: str | None, gpus: int | None = None) -> list[Evidence]:
    """Return empty evidence of the rows that these options select, for processes that see so many GPUs."""
    if chosen and pattern:
        raise click.UsageError("--set and -b were both given; allowed: one of them")
    name = chosen or ("pr" if device.machine()["gpu"] else "smoke")
    found = rows(pattern or SETS[name], gpus)
    if not found:
        if any(row.is_control and re.search(pattern or "", row.case.key) for row in every_row()):
            raise click.ClickException(
                f"{pattern!r} matches controls alone, which only tell whether other rows may be believed; allowed: a "
                "pattern that also matches a row of project code"
            )
        raise click.ClickException(f"no case matches {pattern!r}; python -m perf case --list prints the names of all")
    return found


def command_without_files() -> str:
    """Return the command line without the options that name files of this machine."""
    return command_line(flags=["--keep"], valued=["--json", "--markdown"])


def refuse_unwritable_files(json_file: Path | None, markdown: Path | None, *others: Path) -> None:
    """Raise in one line if a report could not be written once it is there."""
    if json_file and markdown and json_file.resolve() == markdown.resolve():
        raise click.UsageError(f"--json and --markdown are both {markdown}; allowed: two files")
    for path in filter(None, (json_file, markdown, *others)):
        refuse_unwritable(path)


def end(report: str, files: dict[Path, str], exit_status: int, kept: Path | None = None) -> NoReturn:
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
