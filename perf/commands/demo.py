"""`python -m perf demo`: a real asv run over the last commits of this repository, with or without a GPU."""

import json
import os
import statistics
import subprocess
import sys
from pathlib import Path

import click

from perf.git import output
from perf.harness import records
from perf.harness.suite import PROGRESS_VARIABLE
from perf.harness.working_tree import ROOT
from perf.machines import MACHINE_FILE
from perf.printable import collapsed, printable
from perf.selection import SETS
from perf.tables import text_table
from perf.workloads import PACKAGE

FOLDER = ROOT / ".asv" / "demo"


def _last_commits(count: int) -> list[str]:
    """List the last commits that touch cs336_systems, newest first."""
    commits = output(ROOT, "log", "--first-parent", f"-{count}", "--format=%H", "--", PACKAGE).split()
    if not commits:
        raise click.ClickException("no commit of this repository touches cs336_systems: there is nothing to measure")
    return commits


def _announce(commits: list[str], here: dict[str, str]) -> None:
    hardware = f"{here['num_gpu']} x {here['gpu']}" if here["gpu"] else f"{here['cpu']}, no GPU"
    click.echo(f"Measuring {len(commits)} commits on {hardware} (asv machine {here['machine']}), newest first:")
    for commit in commits:
        click.echo("  " + collapsed(output(ROOT, "log", "-1", "--format=%h %cs %s", commit))[:100])
    if output(ROOT, "rev-parse", "--is-shallow-repository").strip() == "true":
        click.echo("This is a shallow clone: only its own commits can be measured.")
    changed = output(ROOT, "status", "--porcelain").splitlines()
    if changed:
        click.echo(
            f"{len(changed)} uncommitted changes: asv measures commits, so changes to cs336_systems are not measured;"
            " changes to perf are."
        )
    click.echo()


def _write_inputs(commits: list[str], here: dict[str, str]) -> None:
    from asv import util

    try:
        configuration = util.load_json(str(ROOT / "asv.conf.json"), js_comments=True)
    except (util.UserError, ValueError) as error:
        raise click.ClickException(collapsed(f"asv.conf.json cannot be read: {error}")) from None
    configuration |= {
        "repo": str(ROOT),
        "branches": ["HEAD"],  # a detached or shallow checkout may have no main
        "benchmark_dir": str(ROOT / "perf" / "benchmarks"),
        "results_dir": "results",
        "env_dir": "env",
        "html_dir": "html",
    }
    try:
        FOLDER.mkdir(parents=True, exist_ok=True)
        (FOLDER / "asv.conf.json").write_text(json.dumps(configuration, indent=4))
        (FOLDER / "machine.json").write_text(json.dumps({here["machine"]: here, "version": 1}))
        (FOLDER / "commits.txt").write_text("\n".join(commits) + "\n")
    except OSError as error:
        raise click.ClickException(f"cannot write to {FOLDER}: {error.strerror}") from None


def _asv(*arguments: str) -> int:
    """Run asv and print its output without the hundreds of n/a of cases that were not selected."""
    command = [sys.executable, "-m", "asv", arguments[0], "--config", str(FOLDER / "asv.conf.json"), *arguments[1:]]
    environment = os.environ | {MACHINE_FILE: str(FOLDER / "machine.json"), "PYTHONUNBUFFERED": "1"}
    environment.setdefault(PROGRESS_VARIABLE, f"/proc/{os.getpid()}/fd/2")
    with subprocess.Popen(
        command,
        cwd=ROOT,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        process_group=0,  # Ctrl-C on the terminal reaches this process alone, which passes it on
    ) as asv:
        assert asv.stdout is not None
        try:
            for line in asv.stdout:
                if not line.rstrip().endswith("n/a"):
                    click.echo(printable(line.rstrip("\n")))
        except BaseException:
            asv.terminate()  # it ends what it has started; SIGINT is ignored in a script's background
            asv.communicate()
            raise
    return asv.returncode


def _table(commits: list[str], machine: str) -> str:
    """Format a row per case and a column per commit, oldest first: median milliseconds, or the status."""
    rows: dict[tuple[str, str], dict[str, str]] = {}
    for commit in commits:
        for result in records.read_commit(FOLDER / "records", machine, commit):
            case = (result.benchmark.partition(".")[2], " ".join(map(str, result.params.values())))
            text = f"{statistics.median(result.samples_s) * 1e3:.4g}" if result.samples_s else result.status
            rows.setdefault(case, {})[commit] = text
    columns = list(reversed(commits))
    body = (
        {"benchmark": benchmark, "case (median, ms)": case} | {commit[:8]: cells.get(commit, "-") for commit in columns}
        for (benchmark, case), cells in rows.items()
    )
    return text_table(body, keys=2, align=("left", "left", *["right"] * len(columns)))


def _short(path: Path) -> str:
    return str(path.relative_to(Path.cwd())) if path.is_relative_to(Path.cwd()) else str(path)


@click.command("demo")
@click.option("--commits", "count", default=3, show_default=True, type=click.IntRange(1, 50), help="Number of commits.")
def command(count: int) -> None:
    """Measure this repository's last commits and publish their site, on a small scale.

    Runs `asv run` over the last commits that touch cs336_systems, then `asv publish`: a quick set of GPU cases, or some
    CPU-sized cases on a machine without a GPU. Takes one to two minutes; writes only to .asv/demo.
    """
    from perf.harness.device import machine

    commits = _last_commits(count)
    here = machine()
    on_gpu = here["num_gpu"] != "0"
    _announce(commits, here)
    _write_inputs(commits, here)

    pattern = SETS["quick" if on_gpu else "demo"]
    try:
        measured = _asv("run", "HASHFILE:commits.txt", "--machine", here["machine"], "-b", pattern, "--quick")
    except KeyboardInterrupt:
        raise KeyboardInterrupt(f"what was measured is in {_short(FOLDER / 'records')}") from None
    if measured not in (0, 2):  # 2: some case failed, and the others are on file
        raise click.ClickException(f"asv run ended with status {measured}; its output above says why")
    if _asv("publish") != 0:
        raise click.ClickException("asv publish failed; its output above says why")

    click.echo(_table(commits, here["machine"]))
    site = FOLDER / "html"
    click.echo(f"\nThe site: {_short(site)}\nServe it: python -m http.server 8000 --directory {_short(site)}")
    if measured == 2:
        raise click.ClickException("some cases failed: see the table")
