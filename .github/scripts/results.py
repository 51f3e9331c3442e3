"""Bring results from the GPU machine to main without giving that machine the right to write there.

    results.py collect FOLDER   on the GPU machine: copy the files that a measurement changed, and its commit
    results.py store FOLDER     on a GitHub-hosted machine: check the files, commit them, push them

`store` accepts result files only, by their names and contents. It commits on top of the commit at which the measurement
began and then rebases, so that a file that changed on main meanwhile is a conflict and is never overwritten.
"""

import gzip
import io
import itertools
import json
import os
import re
import subprocess
import sys
import zlib
from collections import Counter
from pathlib import Path

from github import RefusedError

sys.path.append(str(Path(__file__).resolve().parents[2]))
from perf.stored import problem_of_benchmark, problem_of_results

STORE = ("perf/results", "perf/records")
MACHINE = r"[a-z0-9][a-z0-9._-]{0,80}"
JSON_FILE = re.compile(rf"perf/results/(benchmarks|{MACHINE}/(machine|[0-9a-f]{{8}}-[\w.+-]{{1,120}}))\.json", re.ASCII)
RECORDS_FILE = re.compile(rf"perf/records/{MACHINE}/[0-9a-f]{{40}}\.jsonl\.gz", re.ASCII)
KEPT_FILE = re.compile(
    rf"perf/records/{MACHINE}/(gate|environment|self-test|mutations)/[0-9]{{8}}T[0-9]{{6}}Z\.json", re.ASCII
)
MAX_FILES, MAX_UNPACKED = 2000, 128 * 2**20
MAX_BYTES = {JSON_FILE: 2**18, RECORDS_FILE: 2**20, KEPT_FILE: 4 * 2**20}
"""By kind; main's own tests allow no more of the first two."""

ATTEMPTS = 5


def main() -> None:
    """Run the named action."""
    actions = {"collect": collect, "store": store}
    if len(sys.argv) != 3 or sys.argv[1] not in actions:
        sys.exit("usage: results.py collect|store FOLDER")
    try:
        actions[sys.argv[1]](Path(sys.argv[2]))
    except RefusedError as refused:
        sys.exit(f"refused: {refused}")


def collect(folder: Path) -> None:
    """Copy the results that differ from HEAD to `folder`; write to GITHUB_OUTPUT whether there are any.

    A file that is refused is left out, and the exit status 1: its commit counts as measured, so nobody would miss it.
    """
    listed = git("ls-files", "-z", "--modified", "--others", "--exclude-standard", "--", *STORE).split("\0")
    count = left_out = 0
    for name in filter(None, listed):
        try:
            content = content_of(Path(), name)  # first, as it checks the name
            if (commit := commit_of(name)) and not is_ancestor(commit, "HEAD"):
                raise RefusedError(f"{name}: {commit[:8]} is not in this history")
        except RefusedError as refused:
            print(f"left out: {refused}")
            left_out += 1
            continue
        target = folder / name
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(content)
        count += 1
    if count:
        (folder / "base").write_text(git("rev-parse", "HEAD"))
    with Path(os.environ.get("GITHUB_OUTPUT", os.devnull)).open("a") as output:
        output.write(f"changed={'true' if count else 'false'}\n")
    print(f"{count} files of results and records")
    if left_out:
        sys.exit(f"{left_out} files were left out; the reasons are above")


def store(folder: Path) -> None:
    """Commit the files in `folder` and push them to main."""
    base = _base(folder)
    names = sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*") if not path.is_dir())
    names.remove("base")
    if not 0 < len(names) <= MAX_FILES:
        raise RefusedError(f"{len(names)} files were given; allowed: 1 to {MAX_FILES}")
    contents = {name: content_of(folder, name) for name in names}  # all of them, before one is written

    git("fetch", "--quiet", "origin", "main")
    for commit in {base, *filter(None, map(commit_of, names))}:
        if not is_ancestor(commit, "origin/main"):
            raise RefusedError(f"{commit[:8]} is not in main's history: was main pushed by force?")
    git("checkout", "--quiet", "--force", "--detach", base)
    for name, content in contents.items():
        target = Path(name)
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(content)
    git("add", "--", *names)
    if not git("diff", "--cached", "--name-only"):
        print("Nothing that is not on main already.")
        return
    git("commit", "--quiet", "--message", _message(names))
    _push()


def commit_of(name: str) -> str:
    """Return the commit that a file of records or results is about, as its name has it; "" if it is about none."""
    found = re.fullmatch(rf"perf/re(?:cords|sults)/{MACHINE}/([0-9a-f]{{40}}(?=\.)|[0-9a-f]{{8}}(?=-)).*", name)
    return found[1] if found else ""


def is_ancestor(commit: str, of: str) -> bool:
    """Whether git knows the commit, and as a part of that history."""
    try:
        git("merge-base", "--is-ancestor", commit, of)
    except RefusedError:
        return False
    return True


def _push() -> None:
    for _ in range(ATTEMPTS):
        try:
            git("rebase", "--quiet", "origin/main")
        except RefusedError:
            git("rebase", "--abort")
            raise RefusedError("main has other results of the same commit meanwhile; merge them by hand") from None
        try:
            git("push", "--quiet", "origin", "HEAD:refs/heads/main")
        except RefusedError as refused:
            last = refused
            git("fetch", "--quiet", "origin", "main")  # somebody was faster
        else:
            print(f"main is at {git('rev-parse', 'HEAD')}")
            return
    raise last


def _message(names: list[str]) -> str:
    files = [name.split("/") for name in names]
    machines = sorted({parts[2] for parts in files if len(parts) > 3})
    commits = sorted({parts[3][:8] for parts in files if len(parts) == 4 and parts[3] != "machine.json"})
    kept = Counter(parts[3] for parts in files if len(parts) == 5)  # gate, self-test, mutations
    counts = {"commit": len(commits)} if commits or not kept else {}
    held = ", ".join(f"{count} {what}{'s' * (count != 1)}" for what, count in {**counts, **kept}.items())
    subject = f"Results of {', '.join(machines) or 'no machine'}: {held}"
    run = os.environ.get("RUN_URL", "")
    return "\n\n".join(filter(None, [subject, " ".join(commits), f"Measured by {run}" if run else ""]))


def _base(folder: Path) -> str:
    path = folder / "base"
    base = path.read_bytes()[:100].decode(errors="replace").strip() if path.is_file() and not path.is_symlink() else ""
    if not re.fullmatch("[0-9a-f]{40}", base):
        raise RefusedError("the results do not say which commit they were measured from")
    return base


def content_of(folder: Path, name: str) -> bytes:
    """Return the bytes of one result file. Raises RefusedError if its name, size or content is not a result's."""
    path, said = folder / name, ascii(name[:150])
    largest = next((size for form, size in MAX_BYTES.items() if form.fullmatch(name)), None)
    if largest is None:
        raise RefusedError(f"{said} is no file of results or records")
    if path.is_symlink() or not path.is_file():
        raise RefusedError(f"{said} is not a plain file")
    if path.stat().st_size > largest:
        raise RefusedError(f"{said} has {path.stat().st_size} bytes; allowed: {largest}")
    content = path.read_bytes()
    try:
        lines = _unpacked(content).splitlines() if name.endswith(".gz") else [content]
        if not all(isinstance(json.loads(line), dict) for line in lines):
            raise ValueError
    except (ValueError, OSError, EOFError, RecursionError, zlib.error):
        raise RefusedError(f"{said} is cut in half, or not what its name says") from None
    if wrong := _problem(path.name, content):
        raise RefusedError(f"{said}: {wrong[:300]!a}")
    return content


def _problem(name: str, content: bytes) -> str:
    """Return what is wrong with a file of asv's, or "" for a valid one and for files that asv does not write."""
    if name == "benchmarks.json":
        entries = {name: one for name, one in json.loads(content).items() if name != "version"}
        return next(filter(None, itertools.starmap(problem_of_benchmark, entries.items())), "")
    is_result = re.fullmatch(r"[0-9a-f]{8}-.*\.json", name)
    return problem_of_results(json.loads(content)) if is_result else ""


def _unpacked(content: bytes) -> bytes:
    with gzip.open(io.BytesIO(content)) as stream:
        text = stream.read(MAX_UNPACKED + 1)
    if len(text) > MAX_UNPACKED:
        raise ValueError
    return text


def git(*arguments: str) -> str:
    """Run git and return its output. Raises RefusedError if it fails."""
    name, email = "github-actions[bot]", "41898282+github-actions[bot]@users.noreply.github.com"
    identity = ["-c", f"user.name={name}", "-c", f"user.email={email}"]
    plain = ["-c", "log.showSignature=false"]
    done = subprocess.run(["git", *identity, *plain, *arguments], capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise RefusedError(f"git {arguments[0]}: {done.stderr.strip()[-300:]!a}")
    return done.stdout.strip("\n")


if __name__ == "__main__":
    main()
