"""`python -m perf machine-code`: does a commit change the kernels' machine code?"""

from pathlib import Path

import click

from perf.commands import judging
from perf.gate import checkouts
from perf.gate.machine_code import compared, report, run
from perf.gate.machine_code.targets import DEFAULT, TARGETS
from perf.selection import pattern_of


@click.command("machine-code", cls=judging.Judging, interrupted="nothing was judged")
@click.argument("base")
@click.argument("head", required=False)
@judging.chosen_set("pr")
@judging.bench
@click.option(
    "--target",
    "targets",
    multiple=True,
    default=[DEFAULT],
    show_default=True,
    type=click.Choice(list(TARGETS)),
    help="Compute capability to compile for.",
)
@judging.json_file
@judging.markdown
def command(
    base: str,
    head: str | None,
    chosen: str | None,
    pattern: str | None,
    targets: tuple[str, ...],
    json_file: Path | None,
    markdown: Path | None,
) -> None:
    """Compare the machine code of the rows' kernels at two commits, on a CPU.

    \b
    python -m perf machine-code main                      # the working tree against main
    python -m perf machine-code HEAD~1 HEAD --target 8.0

    Plans the launches of every row at both commits and compiles the kernels that differ. Rows of the same machine code,
    grid and numbers take the same device time; the others are the ones to measure.

    Exit status: 0 nothing is worse, 1 a kernel is worse or broken, or a call fails at HEAD alone, 2 no row's launches
    are known.
    """
    judging.refuse_unwritable_files(json_file, markdown)
    selected = judging.selected(chosen or (None if pattern else "pr"), pattern)
    cases = [row.case for row in selected if not row.is_control and row.case.device == "cuda"]
    if not cases:
        raise click.ClickException("none of these rows runs on a GPU; allowed: rows that do, such as those of --set pr")
    found = run.run(checkouts.resolve_arms(base, head, None), cases, targets, judging.command_without_files())
    files = {}
    if json_file:
        to_measure = compared.to_measure(found.targets.values())
        pattern = pattern_of(case for case in cases if case.key in to_measure)
        files[json_file] = report.to_json(found, pattern)
    if markdown:
        files[markdown] = report.comment(found)
    judging.end(report.text(found), files, found.exit_status)
