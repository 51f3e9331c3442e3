"""Sites to look at: one published from made-up measurements, and `asv publish` itself."""

import json
import os
import subprocess
import sys
from pathlib import Path

from perf.gate.report import to_json
from tests.gate.reports import report, verdict
from tests.site import steps, synthetic
from tests.site.distributed import made_up as parallel
from tests.site.trust import made_up as self_tests

ROOT = Path(__file__).parents[2]
SUBJECTS = ["First kernels", "Tile sizes per head size", "Skip masked tiles", "Exp2", "Split backward", "Pipelining"]


def asv_publish(directory: Path, html_dir: Path) -> str:
    """`asv publish` with the asv.conf.json of `directory`; returns what it printed. Fails the test if asv fails."""
    command = [sys.executable, "-m", "asv", "publish", "--no-pull", "--html-dir", str(html_dir)]
    done = subprocess.run(
        command,
        cwd=directory,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def publish_project(folder: Path) -> tuple[Path, list[str]]:
    """The site of a whole project, for who only reads it, and its hashes: `once("site", publish_project)`."""
    hashes = make_project(folder / "repo")
    asv_publish(folder / "repo", folder / "html")
    return folder / "html", hashes


def configure(directory: Path) -> None:
    """Write asv's configuration."""
    conf = {"version": 1, "project": "attention-demo", "repo": ".", "branches": ["main"]}
    conf |= {"results_dir": "perf/results", "html_dir": "html", "plugins": [".perf.asv_plugins.site"]}
    (directory / "asv.conf.json").write_text(json.dumps(conf))


def make_project(directory: Path, suites: tuple[synthetic.Suite, ...] = synthetic.ALL) -> list[str]:
    """A repository with results of six commits, records of two and a machine's self-tests; the hashes, oldest first.

    One more machine has results and no records. The self-tests' text is hostile, and one file is cut in half.
    """
    from asv import util

    hashes = synthetic.make_repo(directory, SUBJECTS)
    results = directory / "perf" / "results"
    configure(directory)
    known = {}
    for number, commit in enumerate(hashes):
        synthetic.write_results(results, synthetic.SILENT, commit, number)
    for suite in suites:
        known |= synthetic.benchmarks(suite)
        for number, commit in enumerate(hashes):
            synthetic.write_results(results, suite, commit, number)
        for commit in hashes[-3:-1]:
            synthetic.write_records(directory / "perf" / "records", suite, commit)
    for sizes, commit in ((("small", "xl"), hashes[0]), (("small",), hashes[1])):
        cases = [case for size in sizes for case in steps.phases(size)]
        steps.write_records(directory / "perf" / "records", [*cases, steps.full(cases[0])], commit)
        known |= steps.write_results(results, sizes, commit)
    parts = [*parallel.everything(), parallel.strategy("<img src=x onerror=alert(1)>", "step", 500.0)]
    steps.write_records(directory / "perf" / "records", parts, hashes[-2])
    for number, commit in enumerate(hashes[:2]):
        document = self_tests.document(rows=30, commit=commit, contaminated=("5 % on the host",) if number else ())
        document["parts"][0]["verdicts"][8] |= {"key": f"a.B({self_tests.HOSTILE})", "reason": self_tests.HOSTILE}
        self_tests.write(directory / "perf" / "records", synthetic.H200, f"{number}", document)
    self_tests.write(directory / "perf" / "records", synthetic.H200, "<img src=x>", '{"version": 1, "star')
    gate = directory / "perf" / "records" / synthetic.H200 / "gate" / "20260105T060000Z.json"
    gate.parent.mkdir()
    gate.write_text(to_json(report(verdict("SLOWER", key=f"a.B({self_tests.HOSTILE})"), verdict("SAME"))))
    util.write_json(str(results / "benchmarks.json"), known, 2)
    return hashes
