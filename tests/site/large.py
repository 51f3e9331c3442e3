"""A project with as many commits and series as asked for, to see what publishing it takes.

python -m tests.site.large FOLDER --commits 1000 --series 1000
cd FOLDER && PYTHONPATH=... asv publish --no-pull

Times scatter by 1 %, every tenth series is 10 % slower from the middle on; what asv keeps of one commit is its own
writing, and the other commits' is that with other numbers.
"""

import copy
import json
import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Any

import click
import numpy as np

from tests.repositories import git
from tests.site import synthetic

PLUGINS = [".perf.asv_plugins.site"]


def make(directory: Path, commits: int, series: int, plugins: list[str] = PLUGINS) -> list[str]:
    """The project in a new folder, half of its series times and half bytes; the hashes, oldest first."""
    hashes = make_repo(directory, commits)
    suite = replace(synthetic.GPU, axes=synthetic.GPU_AXES | {"seq_len": [2**k for k in range(7, 7 - -series // 72)]})
    results = directory / "perf" / "results"
    synthetic.write_results(results, suite, hashes[0], 0)
    (first,) = results.glob("*/*-linked-*.json")
    template = json.loads(first.read_text())
    rng = np.random.default_rng(0)
    for number, commit in enumerate(hashes):
        found = copy.deepcopy(template) | {"commit_hash": commit, "date": template["date"] + 3_600_000 * number}
        for row in found["results"].values():
            _vary(row, template["result_columns"], 2 * number >= commits, rng)
        (first.parent / first.name.replace(hashes[0][:8], commit[:8])).write_text(json.dumps(found))
    for commit in hashes[-2:]:
        synthetic.write_records(directory / "perf" / "records", suite, commit)
    known = {"version": 2} | synthetic.benchmarks(suite)
    (results / "benchmarks.json").write_text(json.dumps(known))
    conf = {"version": 1, "project": "large", "repo": ".", "branches": ["main"], "plugins": plugins}
    conf |= {"results_dir": "perf/results", "html_dir": "html"}
    (directory / "asv.conf.json").write_text(json.dumps(conf))
    return hashes


def make_repo(directory: Path, commits: int) -> list[str]:
    """One file that says its number, an hour between commits."""
    directory.mkdir(parents=True)
    git(directory, "init", "--quiet", "--initial-branch=main")
    stream = []
    for number in range(commits):
        who = f"Test <test@example.invalid> {1_767_225_600 + 3600 * number} +0000"
        stream += ["commit refs/heads/main", f"committer {who}", f"data <<end\nCommit {number}\nend\n"]
        stream += ["M 644 inline version.txt", f"data <<end\n{number}\nend\n"]
    subprocess.run(["git", "fast-import", "--quiet"], cwd=directory, input="\n".join(stream), text=True, check=True)
    return git(directory, "rev-list", "--reverse", "main").split()


def _vary(row: list[Any], columns: list[str], second_half: bool, rng: np.random.Generator) -> None:
    """Times alone: bytes have no interval."""
    at = {name: columns.index(name) for name in ("result", "stats_ci_99_a", "stats_ci_99_b")}
    if len(row) <= at["stats_ci_99_a"]:
        return
    slower = np.where(second_half & (np.arange(len(row[0])) % 10 == 0), 1.1, 1.0)
    for cell, factor in enumerate(slower * np.exp(0.01 * rng.standard_normal(len(row[0])))):
        for index in at.values():
            value = row[index][cell]
            row[index][cell] = value * factor if value is not None else None


@click.command()
@click.argument("folder", type=click.Path(exists=False, path_type=Path))
@click.option("--commits", default=1000, show_default=True)
@click.option("--series", default=1000, show_default=True)
@click.option("--asv-alone", is_flag=True, help="Without our pages, to compare.")
def main(folder: Path, commits: int, series: int, asv_alone: bool) -> None:
    """Make FOLDER, and say what publishes it."""
    made = make(folder, commits, series, [] if asv_alone else PLUGINS)
    click.echo(f"{len(made)} commits. Now: cd {folder} && PYTHONPATH={Path.cwd()} asv publish --no-pull")


if __name__ == "__main__":
    main()
