"""`perf measured` prints the results and failures of a real `asv run`, a line a case."""

import gzip
import json
import os
import re
import shutil
import subprocess
import sys

import pytest

from perf.commands.measured import _newest_session
from perf.harness import records
from tests.throwaway import MACHINE, ROOT, Repository

pytestmark = pytest.mark.slow
CASES = r"SmokeAttention.*\(128, 64, 'float32', '\w+', '(pytorch|reference|sdpa)'\)|SmokeControls"
BROKEN = """
def scaled_dot_product_attention(q, k, v, is_causal=False):
    raise RuntimeError("planted \\x1b[31m fault")
"""


@pytest.fixture(scope="module")
def measured(tmp_path_factory):
    """The repository after an `asv run` of each of two commits: one that lacks an implementation, one that is broken.

    Yields it with the commits, the older first.
    """
    repository = Repository(tmp_path_factory.mktemp("measured") / "repository")
    commits = []
    for text in ("", BROKEN):
        repository.write_package(axis="[]")
        if text:
            (repository.folder / "cs336_systems" / "attention" / "reference.py").write_text(text)
        commits.append(repository.commit("broken" if text else "right"))
        run = repository.asv("run", "HEAD^!", "--quick", "--machine", MACHINE, "-b", CASES)
        assert run.returncode == (2 if text else 0), run.stdout + run.stderr
    return repository, *commits


def command(folder, environment, *arguments, columns=80):
    whole = [sys.executable, "-m", "perf", "measured", *arguments]
    env = environment | {"COLUMNS": str(columns)}
    done = subprocess.run(whole, cwd=folder, env=env, capture_output=True, text=True, check=False)
    assert "Traceback" not in done.stdout + done.stderr
    assert all(len(line) <= columns for line in done.stdout.splitlines()), done.stdout
    return done


def of(repository, *arguments, **options):
    return command(repository.folder, repository.environment, *arguments, **options)


def nothing(done):
    """The one line that says why there is nothing to show."""
    assert done.returncode == 2
    assert done.stdout == ""
    (line,) = done.stderr.splitlines()
    return line


def rows(done):
    """The figures of each row of the table by its parameters; a long name continues in the next line."""
    whole = re.sub(r"^(\([^)\n]*,)( {2,}.*)\n([^(\n]*\)) *$", r"\1 \3\2", done.stdout, flags=re.M)
    found = re.findall(r"^(\(.*\)) +(\S+ [mµn]?s) +(\S+ %) +(\S+ \w+|-) +(\d+)$", whole, re.M)
    return {name: figures for name, *figures in found}


@pytest.mark.parametrize("columns", [80, 120])
def test_each_case_has_a_line_with_its_time_memory_and_samples(measured, columns):
    repository, right, _ = measured
    done = of(repository, right[:8], columns=columns)
    assert done.returncode == 0, done.stdout + done.stderr
    wanted = {
        f"({', '.join(map(str, one.params.values()))})": str(len(one.samples_s))
        for one in repository.case_results(right)
        if one.status == "ok"
    }
    assert {name: figures[-1] for name, figures in rows(done).items()} == wanted
    assert len(wanted) == 7
    assert done.stdout.startswith(f"{right[:8]} on ")
    assert "quick run" in done.stdout
    assert "2 cases, unavailable: " in done.stdout, "the implementation that this commit lacks"
    assert re.fullmatch(r"7 measured, 0 failed, 2 unavailable, \S+ m?s", done.stdout.splitlines()[-1])


def test_the_commit_measured_last_is_shown_and_its_failures_share_a_reason(measured):
    repository, right, broken = measured
    done = of(repository)
    assert done.returncode == 1
    named = of(repository, "HEAD").stdout.splitlines()
    (others,) = [line for line in done.stdout.splitlines() if line not in named]
    assert right[:8] in others, "the other commit of that day"
    assert done.stdout.startswith(f"{broken[:8]} on ")
    printed = done.stdout.splitlines()
    at = printed.index("Failed:")
    assert printed[at + 1] == "  2 cases, error: RuntimeError: planted [31m fault"
    assert "SmokeAttention(128, 64, float32, forward, reference)" in printed[at + 2]
    assert "\x1b" not in done.stdout
    assert re.match("5 measured, 2 failed, 2 unavailable, ", printed[-1])


def test_a_pattern_is_that_of_asv(measured):
    repository, right, broken = measured
    done = of(repository, right, "-b", r"SmokeAttention.track_time\(.*'forward', 'sdpa'\)|Controls.track_peak")
    assert list(rows(done)) == ["(128, 64, float32, forward, sdpa)"]
    assert of(repository, broken, "-b", "sdpa").returncode == 0, "what failed was not asked for"


def test_the_newest_session_alone_is_shown(measured, tmp_path):
    repository, right, _ = measured
    folder = tmp_path / "later"
    shutil.copytree(repository.folder, folder)
    (path,) = (folder / "perf" / "records").glob(f"*/{right}.jsonl.gz")
    lines = [json.loads(line) for line in gzip.decompress(path.read_bytes()).splitlines()]
    session = next(line for line in lines if line["kind"] == "session")
    visits = [line for line in lines if line["kind"] == "visit" and line["benchmark"] == "smoke.SmokeControls"]
    later = [session | {"id": "later", "effort": "full"}, *(line | {"session": "later"} for line in visits)]
    with gzip.open(path, "at") as stream:
        stream.writelines(json.dumps(line, separators=(",", ":")) + "\n" for line in later)
    done = command(folder, repository.environment, right)
    assert done.stdout.splitlines()[-1].startswith("3 measured, 0 failed, 0 unavailable")


@pytest.mark.parametrize(
    ("change", "count"),
    [({}, 2), ({"device": {"name": "a", "uuid": "2"}}, 2), ({"device": {"name": "b"}}, 1), ({"suite": "edited"}, 1)],
)
def test_shards_of_a_run_are_shown_together(change, count):
    session = {"kind": "session", "day": "2026-01-01", "harness": "3", "effort": "full", "software": {"torch": "2.11"}}
    device = {"name": "a", "uuid": "1"}
    lines = [
        session | {"id": "first", "device": device} | change,
        {"kind": "visit", "session": "first"},
        session | {"id": "older", "device": device, "day": "2025-12-31"},
        {"kind": "visit", "session": "older"},
        session | {"id": "second", "device": device},
        {"kind": "visit", "session": "second"},
    ]
    assert sum(line["kind"] == "visit" for line in _newest_session(lines)) == count
    assert _newest_session(lines[:1]) == []


def test_bad_input_is_one_clear_line(measured, tmp_path):
    repository, right, _ = measured
    (machine,) = records.machines(repository.folder / "perf" / "records")
    assert "no-such" in nothing(of(repository, "no-such"))
    assert "smoke.SmokeAttention, smoke.SmokeControls" in nothing(of(repository, right, "-b", "Smokey"))
    assert f"did you mean {machine}?" in nothing(of(repository, "--machine", machine[:-1]))
    assert "'(' was given; allowed: a regular expression" in of(repository, "-b", "(").stderr

    folder = tmp_path / "another"
    shutil.copytree(repository.folder, folder)
    (path,) = (folder / "perf" / "records").glob(f"*/{right}.jsonl.gz")
    path.write_bytes(path.read_bytes()[:200])
    assert f"{right}.jsonl.gz" in nothing(command(folder, repository.environment, right))
    assert command(folder, repository.environment).stderr.count(f"{right}.jsonl.gz cannot be read: ") == 1
    path.write_bytes(gzip.compress(b'{"kind":"visit"}\n'))
    assert "session is missing" in nothing(command(folder, repository.environment, right))
    path.unlink()
    assert f"`asv run {right[:8]}^!` measures it" in nothing(command(folder, repository.environment, right))
    (path,) = (folder / "perf" / "records").glob("*/*.jsonl.gz")
    path.write_bytes(path.read_bytes()[:200])
    assert f"{path.name} cannot be read: " in nothing(command(folder, repository.environment))
    shutil.rmtree(folder / "perf" / "records")
    assert "`asv run` writes them" in nothing(command(folder, repository.environment))


def test_committed_records_fit_a_terminal():
    folder = ROOT / "perf" / "records"
    for machine in filter(lambda name: records.commits(folder, name), records.machines(folder)):
        for columns in (80, 120):
            done = command(ROOT, os.environ, "--machine", machine, columns=columns)
            assert done.returncode in (0, 1), done.stderr
