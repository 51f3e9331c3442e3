"""results.py: what the GPU machine hands over, and what of it reaches main."""

import gzip
import json
import shutil

import pytest

from tests.perf.test_stored import benchmark, results
from tests.repositories import git
from tests.workflows.scripts import RUN_URL, assert_refused, commit, run

MACHINE = "perf/results/throw-away/machine.json"
TIME = "20261101T020304Z"
VALID = json.dumps(results()).encode()


class Main:
    """A bare repository, a developer's clone and a runner's."""

    def __init__(self, folder):
        git(folder, "init", "-q", "--bare", "-b", "main", "origin.git")
        self.folder, self.origin = folder, folder / "origin.git"
        self.developer, self.runner = self._clone("developer"), self._clone("runner")
        self.base = self.push("Some code")
        git(self.runner, "pull", "-q", "origin", "main")

    def _clone(self, name):
        git(self.folder, "clone", "-q", str(self.origin), name)
        return self.folder / name

    def push(self, message):
        head = commit(self.developer, message)
        git(self.developer, "push", "-q", "origin", "HEAD:main")
        return head

    def head(self):
        return git(self.origin, "rev-parse", "main")

    def files(self):
        """List the results on main."""
        return git(self.origin, "ls-tree", "-r", "--name-only", "main", "perf").splitlines()

    def store(self, files, base=None):
        """Run `store` in a new clone on these files and this base, which may be None."""
        folder = self.folder / "artifact"
        for name, content in files.items():
            write(folder / name, content)
        if base is not None:
            write(folder / "base", base.encode())
        return self.store_folder(folder)

    def store_folder(self, folder):
        return run("results", "store", folder, cwd=self._clone("store"), RUN_URL=RUN_URL)

    def collect(self):
        """Run `collect` on the runner; return what it did, its folder and its outputs."""
        folder, output = self.folder / "artifact", self.folder / "output"
        done = run("results", "collect", folder, cwd=self.runner, GITHUB_OUTPUT=str(output))
        return done, folder, output.read_text()


def write(path, content):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)


@pytest.fixture
def main(tmp_path):
    return Main(tmp_path)


@pytest.fixture(scope="module")
def main_of_all(tmp_path_factory):
    return Main(tmp_path_factory.mktemp("main"))


@pytest.fixture
def untouched(main_of_all):
    """One for all whose files are refused: the artifact and the clone are the test's own, and main stays as it was."""
    yield main_of_all
    for name in ("artifact", "store"):
        shutil.rmtree(main_of_all.folder / name, ignore_errors=True)
    assert main_of_all.head() == main_of_all.base


def test_results_go_from_the_machine_to_main_on_top_of_what_was_pushed_meanwhile(main):
    names = [
        "perf/results/benchmarks.json",
        f"perf/results/m/{main.base[:8]}-linked-py3.11.json",
        "perf/results/m/machine.json",
        f"perf/records/m/{main.base}.jsonl.gz",
        *(f"perf/records/m/{kind}/{TIME}.json" for kind in ("gate", "environment", "self-test", "mutations")),
    ]
    contents = [json.dumps({"a.B.track_time": benchmark(), "version": 2}).encode(), VALID, b"{}", gzip.compress(b"{}")]
    for name, content in zip(names, [*contents, *[b"{}"] * 4], strict=True):
        write(main.runner / name, content)
    write(main.runner / "perf" / "__main__.py", b"not a result")
    done, folder, outputs = main.collect()
    assert (done.returncode, outputs) == (0, "changed=true\n")
    newer = main.push("Somebody was faster")
    done = main.store_folder(folder)
    assert done.returncode == 0, done.stderr
    assert git(main.origin, "rev-parse", "main~") == newer
    assert main.files() == sorted(names)
    message = git(main.origin, "log", "-1", "--format=%an%n%B", "main")
    assert message.startswith("github-actions[bot]\n")
    assert main.base[:8] in message and "1 gate" in message and "1 self-test" in message and RUN_URL in message


def test_without_results_there_is_nothing_to_store(main):
    done, folder, outputs = main.collect()
    assert (done.returncode, outputs) == (0, "changed=false\n")
    assert not folder.exists()


@pytest.mark.parametrize(
    ("name", "content"),
    [(f"perf/records/m/{'a' * 40}.jsonl.gz", gzip.compress(b"{}")), (f"perf/results/m/{'a' * 8}-linked.json", VALID)],
    ids=["records", "results"],  # a compressed content has the time of its making, and would name the test by it
)
def test_results_of_a_commit_that_main_has_lost_go_nowhere(main, name, content):
    write(main.runner / name, content)
    assert_refused(main.store({name: content}, main.base), "a" * 8, main.folder)
    done, *_ = main.collect()
    assert done.returncode == 1 and name in done.stdout


def test_a_file_that_was_cut_in_half_is_left_out_and_named(main):
    write(main.runner / MACHINE, b'{"machine": "m"}')
    write(main.runner / f"perf/results/throw-away/{'a' * 8}-linked.json", VALID[:-9])
    done, folder, outputs = main.collect()
    assert (done.returncode, outputs) == (1, "changed=true\n")
    assert f"{'a' * 8}-linked.json" in done.stdout
    assert [path.name for path in folder.rglob("*.json")] == ["machine.json"]


def bomb():
    """Valid but for its size; made by its test alone, since it takes a second."""
    return gzip.compress(b'{"samples": "' + b"x" * 2**27 + b'"}', 1)


NO_FILE, NO_FORM = "is no file of results or records", "is cut in half, or not what its name says"
REFUSED = {
    "code": ("perf/__main__.py", b"print()", NO_FILE),
    "a workflow": (".github/workflows/perf.yml", b"{}", NO_FILE),
    "a way out": ("perf/results/throw-away/..json", b"{}", NO_FILE),
    "a name with shell in it": ("perf/results/$(touch pwned)/machine.json", b"{}", NO_FILE),
    "no JSON": (MACHINE, b"<script>", NO_FORM),
    "deep JSON": (MACHINE, b"[" * 100_000, NO_FORM),
    "too large": (MACHINE, b'"' + b"x" * 2**23 + b'"', "allowed: 262144"),
    "no records": (f"perf/records/throw-away/{'a' * 40}.jsonl.gz", b"{}", NO_FORM),
    "a bomb": (f"perf/records/throw-away/{'a' * 40}.jsonl.gz", bomb, NO_FORM),
    "no results of asv's": (f"perf/results/m/{'a' * 8}-linked.json", b"{}", "commit_hash"),
    "an endless number": (f"perf/results/m/{'a' * 8}-l.json", VALID.replace(b"[1.0", b"[1e999"), "inf"),
    "HTML in a benchmark": (
        "perf/results/benchmarks.json",
        json.dumps({"a.B.track_time": benchmark(pretty_name="<script>")}).encode(),
        "pretty_name",
    ),
    "a gate of another name": ("perf/records/throw-away/gate/last.json", b"{}", NO_FILE),
    "another folder": (f"perf/records/throw-away/site/{TIME}.json", b"{}", NO_FILE),
    "a deeper folder": (f"perf/records/throw-away/gate/x/{TIME}.json", b"{}", NO_FILE),
    "a name with more": (f"perf/records/throw-away/gate/{TIME}.json\n", b"{}", NO_FILE),
    "a gate cut in half": (f"perf/records/throw-away/gate/{TIME}.json", b'{"version":', NO_FORM),
    "a gate that is a list": (f"perf/records/throw-away/gate/{TIME}.json", b"[]", NO_FORM),
    "a large self-test": (f"perf/records/m/self-test/{TIME}.json", b"{}" + b" " * 2**22, "allowed: 4194304"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_a_file_that_is_no_result_is_refused(untouched, case):
    name, content, reason = REFUSED[case]
    content = content() if callable(content) else content
    assert_refused(untouched.store({name: content}, untouched.base), reason, untouched.folder / "store")


def test_a_link_is_refused(untouched):
    (untouched.folder / "artifact" / MACHINE).parent.mkdir(parents=True)
    (untouched.folder / "artifact" / MACHINE).symlink_to("/etc/passwd")
    assert_refused(untouched.store({}, untouched.base), "is not a plain file", untouched.folder / "store")


def test_more_files_than_a_run_writes_are_refused(untouched):
    files = {f"perf/results/m{number}/machine.json": b"{}" for number in range(2001)}
    assert_refused(untouched.store(files, untouched.base), "2001 files", untouched.folder / "store")


@pytest.mark.parametrize("base", [None, "$(touch pwned)", "0" * 40, "--upload-pack=touch pwned"])
def test_results_of_no_commit_of_main_are_refused(untouched, base):
    assert_refused(untouched.store({MACHINE: b"{}"}, base), "", untouched.folder / "store")


def test_other_results_of_the_same_commit_are_never_overwritten(main):
    write(main.developer / MACHINE, b'{"of": "another machine"}')
    theirs = main.push("Results by hand")
    assert_refused(main.store({MACHINE: b"{}"}, main.base), "merge them by hand", main.folder / "store")
    assert main.head() == theirs


def test_the_same_results_once_more_are_no_commit(main):
    write(main.developer / MACHINE, b"{}")
    before = main.push("The same results")
    assert main.store({MACHINE: b"{}"}, main.base).returncode == 0
    assert main.head() == before
