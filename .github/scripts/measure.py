"""Run one part of a measurement of main on the GPU machine.

    measure.py history                measure the newest commits that lack results of the set `history`
    measure.py newest                 measure every GPU case of the newest commit
    measure.py gate --budget 10       gate what changed since the last kept gate; keep the report
    measure.py self-test --budget 6   self-test the gate on an eighth of its rows, another eighth every day
    measure.py mutations              plant a seventh of the listed regressions, another seventh every day

Further arguments go to the command that measures. Exits with its status, 0 where nothing is due, and 1 where a command
that selects rows or commits fails.
"""

import subprocess
import sys
import tempfile
from datetime import UTC, date, datetime
from pathlib import Path

SHARDS = 8
DAYS = 7


def main() -> int:
    """Run the named part."""
    parts = {"history": history, "newest": newest, "gate": gate, "self-test": self_test, "mutations": mutations}
    if len(sys.argv) < 2 or sys.argv[1] not in parts:
        sys.exit(f"usage: measure.py {'|'.join(parts)} [OPTION...]")
    return parts[sys.argv[1]](sys.argv[2:])


def history(options: list[str]) -> int:
    """Measure up to 25 commits, which fit into the job's time limit; the next run measures the others."""
    return _asv_run("history", ["--limit", "25"], options)


def newest(options: list[str]) -> int:
    """Measure the newest commit that touches cs336_systems, unless it has all its results."""
    return _asv_run("gpu", ["--last", "1"], options)


def gate(options: list[str]) -> int:
    """Compare the newest code with the newest that was judged before."""
    due = _perf("missed", "--gate").split()
    return _run("perf", "gate", *due, "--set", "pr", "--no-tests", "--keep", *options) if due else 0


def self_test(options: list[str]) -> int:
    """Gate a commit against itself and against planted slow-downs."""
    return _run("perf", "self-test", "-b", _rows("pr", "--shard", shard(datetime.now(UTC).date())), *options)


def mutations(options: list[str]) -> int:
    """Score the gate on a part of the planted regressions; a week covers all."""
    return _run("perf", "mutations", "HEAD", "--shard", shard(datetime.now(UTC).date(), DAYS), *options)


def shard(day: date, count: int = SHARDS) -> str:
    """Return the part for this day, as I/N: N days in a row cover every part."""
    return f"{day.toordinal() % count + 1}/{count}"


def _asv_run(name: str, which: list[str], options: list[str]) -> int:
    rows = _rows(name)
    machine = ["--machine", _perf("machine", "--name").strip()]  # the file may name others: fewer GPUs, other clocks
    commits = _perf("missed", name, *which, *machine)
    if not commits.strip():
        return 0
    with tempfile.TemporaryDirectory() as folder:
        hashes = Path(folder) / "commits.txt"
        hashes.write_text(commits)
        return _run("asv", "run", "-b", rows, f"HASHFILE:{hashes}", *machine, *options)


def _rows(*arguments: str) -> str:
    rows = _perf("select", *arguments).strip()
    return rows or sys.exit(f"perf select {arguments[0]} printed no pattern, and an empty one selects every benchmark")


def _perf(*arguments: str) -> str:
    done = subprocess.run([sys.executable, "-m", "perf", *arguments], stdout=subprocess.PIPE, text=True, check=False)
    return done.stdout if done.returncode == 0 else sys.exit(1)


def _run(module: str, *arguments: str) -> int:
    return subprocess.run([sys.executable, "-m", module, *arguments], check=False).returncode


if __name__ == "__main__":
    sys.exit(main())
