"""A small project with this suite and these workflows, in a bare repository of a stand-in for GitHub."""

import json
import re
import shutil
import sys
from pathlib import Path
from typing import Any

from tests.throwaway import MACHINE, ROOT, write_package
from tests.workflows.running import GitHub, Job, Run

PUSH = {"github.event_name": "push", "inputs.full": None}
NIGHT = {"github.event_name": "schedule", "inputs.full": None}

HOSTILE = [
    "$(touch pwned)",
    "`touch pwned`",
    "'; touch pwned; '",
    '"; touch pwned; "',
    "-x --output=pwned",
    "a && touch pwned | tee pwned > pwned",
    "line\ntouch pwned\n::set-output name=changed::false\n::error::it is over",
    "${{ github.token }}",
    "<img src=x onerror=alert(1)> @everyone [x](https://evil.example)",
]
"""Real text of strangers: branch names, commit messages, inputs."""

# One smoke row for each set that the workflows name: a real run in seconds.
SETS = {
    "history": r"SmokeAttention.*\\(128, 64, 'float32', 'forward', 'reference'\\)",
    "gpu": r"SmokeControls.*launch",
    "pr": r"SmokeAttention.*\\(128, 64, 'float32', 'forward', 'reference'\\)",
    "smoke": r"SmokeAttention.*\\(128, 64, 'float32', 'forward', 'reference'\\)",
}
# A budget of whole minutes is a workflow's own; a twentieth of it will do here.
PYTHON = r"""#!/bin/bash
case "$*" in
"-c import torch; torch.cuda.init()" | "-m perf machine" | "-m perf doctor")
    echo "python $*" >> "{stubs}/called.txt"
    exit 0 ;;
esac
for argument do
    [[ "$before $argument" =~ ^--budget\ [0-9]+$ ]] && printf -v argument "0.%02d" $((5 * argument))
    given+=("$argument") before=$argument
done
exec "{python}" "${{given[@]}}"
"""


class Project:
    """The repository, a checkout of its developer's, and the stand-in."""

    def __init__(self, folder: Path, python: str, *, suite: bool = True):
        self.github = GitHub(folder)
        self.checkout = folder / "developer"
        self.checkout.mkdir(parents=True)
        ignored = shutil.ignore_patterns("results", "records", "__pycache__")
        for name in ("perf", ".github", ".ci") if suite else (".github",):
            shutil.copytree(ROOT / name, self.checkout / name, ignore=ignored)
        for name in ("asv.conf.json", "pyproject.toml", ".gitignore"):
            shutil.copy(ROOT / name, self.checkout)
        if suite:
            self._choose_sets()
        entry = {"machine": MACHINE, "os": "", "arch": "", "cpu": "", "num_cpu": "", "ram": ""}
        (self.github.home / ".asv-machine.json").write_text(json.dumps({MACHINE: entry, "version": 1}))
        self.git("init", "-q", "-b", "main")
        self.git("remote", "add", "origin", str(self.github.origin))
        for name in ("pip", "pytest", "ruff", "mypy"):
            self.github.records(name)
        self.github.stub("python", PYTHON.format(stubs=self.github.stubs, python=python))

    def git(self, *arguments: str) -> str:
        return self.github.git(*arguments, cwd=self.checkout)

    def before_python(self, line: str) -> None:
        """A line of shell that the command `python` begins with."""
        text = (self.github.stubs / "python").read_text()
        self.github.stub("python", text.replace("\n", f"\n{line}\n", 1))

    def commit(self, message: str, *, code: bool = False) -> str:
        """Commit, another cs336_systems if `code`, and push to main."""
        if code:
            write_package(self.checkout, axis=repr(message))
        else:
            with (self.checkout / "notes.txt").open("a") as notes:
                notes.write(f"{message}\n")
        self.git("add", "-A")
        self.git("commit", "-q", "-m", message)
        self.git("push", "-q", "origin", "HEAD:main")
        return self.git("rev-parse", "HEAD")

    def pull(self) -> None:
        self.git("pull", "-q", "--rebase", "origin", "main")

    def files_on_main(self, folder: str = "perf") -> list[str]:
        listed = self.github.git("ls-tree", "-r", "--name-only", "main", folder, cwd=self.github.origin)
        return [name for name in listed.splitlines() if re.match("perf/(results|records)/", name)]

    def assert_nothing_ran(self) -> None:
        """No text of a stranger's was run, wherever it got to."""
        assert not [path for path in self.github.folder.rglob("pwned") if "refs" not in path.parts]

    def main(self) -> str:
        return self.github.git("rev-parse", "main", cwd=self.github.origin)

    def _choose_sets(self) -> None:
        path = self.checkout / "perf" / "selection.py"
        text = path.read_text()
        for name, pattern in SETS.items():
            text, count = re.subn(rf'    "{name}": (\((?:.|\n)*?\n    \)|r".*"),', f'    "{name}": r"{pattern}",', text)
            assert count == 1, name
        path.write_text(text)


def small_project(folder: Path) -> Project:
    """A project whose asv and gate do in no time what the test says."""
    project = Project(folder, sys.executable)
    project.commit("Some code", code=True)
    project.github.records("asv")
    project.github.records("gate")
    project.before_python('set -- "${@/gpu/history}"')  # what is missed of one set is missed of the other
    project.before_python(f'[[ "$*" != "-m perf gate"* ]] || exec "{project.github.stubs}/gate" "${{@:4}}"')
    return project


def measure(project: Project, context: dict[str, Any] = PUSH) -> Run:
    """A run of perf.yml."""
    run = Run(project.github, "perf.yml", context)
    for job in ("measure", "store", "issue", "site"):
        run.job(job)
    return run


def show(run: Run) -> dict[str, Any]:
    return {name: [(step.name, step.outcome, step.output) for step in job.steps] for name, job in run.jobs.items()}


def results(run: Run) -> dict[str, str]:
    return {name: job.result for name, job in run.jobs.items()}


def store_by_hand(project: Project, files: dict[str, bytes], base: str | bool | None = None) -> Run:
    """A run in which the GPU machine was an attacker's and has handed over these files; its store job has run."""
    folder = project.github.artifacts / "results"
    shutil.rmtree(folder, ignore_errors=True)
    for name, content in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    if base is not False:
        (folder / "base").write_text(str(base or project.main()))
    run = Run(project.github, "perf.yml", dict(PUSH))
    run.jobs["measure"] = Job("success", outputs={"changed": "true"})
    run.job("store")
    return run
