"""Runs a workflow of `.github/workflows` here: its shell steps for real, GitHub's own parts by stand-ins.

Real: bash as GitHub calls it, git, asv, this project's commands, conditions, outputs, artifacts. Stand-ins:
the actions (a clone of a bare repository, copied folders), `gh` (answers from a table and keeps what it was asked), and
what would install, or take minutes, or need a GPU.
"""

import json
import os
import re
import shutil
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from tests.repositories import CONFIGURED_BY_NOBODY, git

ROOT = Path(__file__).resolve().parents[2]
WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))

GH = """
import json, pathlib, shutil, sys
here = pathlib.Path(__file__).parent
arguments = sys.argv[1:]
assert arguments[0] == "api", arguments
sent = sys.stdin.read() if "--input" in arguments else ""
method = arguments[arguments.index("--method") + 1] if "--method" in arguments else "GET"
address = next(argument for argument in arguments if argument.startswith("repos/"))
with (here / "asked.jsonl").open("a") as log:
    log.write(json.dumps({"method": method, "address": address, "sent": json.loads(sent or "null")}) + "\\n")
answer = json.loads((here / "answers.json").read_text()).get(f"{method} {address}")
if answer is None:
    sys.exit("gh: Not Found (HTTP 404)")
if "file" in answer:
    shutil.copyfileobj(open(answer["file"], "rb"), sys.stdout.buffer)
else:
    print(json.dumps(answer["json"]))
"""


def load(name: str) -> dict[str, Any]:
    """A workflow by its file's name; YAML takes the key `on` for true."""
    return yaml.safe_load((ROOT / ".github" / "workflows" / name).read_text())


def triggers(workflow: dict[Any, Any]) -> dict[str, Any]:
    return workflow[True]


@dataclass
class Step:
    """What became of one step."""

    name: str
    outcome: str
    output: str = ""


@dataclass
class Job:
    """What became of one job."""

    result: str
    steps: list[Step] = field(default_factory=list)
    outputs: dict[str, str] = field(default_factory=dict)

    def __getitem__(self, name: str) -> Step:
        return next(step for step in self.steps if step.name == name)


class GitHub:
    """A bare repository, the folder of a runner, `gh` and the commands that are not run for real."""

    def __init__(self, folder: Path):
        self.folder = folder
        self.origin = folder / "origin.git"
        self.stubs = folder / "stubs"
        self.artifacts = folder / "artifacts"
        self.home = folder / "home"
        self.temporary = folder / "tmp"
        for path in (self.stubs, self.artifacts, self.home, self.temporary):
            path.mkdir(parents=True)
        self.git("init", "-q", "--bare", "-b", "main", str(self.origin), cwd=folder)
        self.git("config", "uploadpack.allowAnySHA1InWant", "true", cwd=self.origin)
        self.python_stub("gh", GH)
        self.answers: dict[str, dict[str, Any]] = {}

    def stub(self, name: str, text: str) -> None:
        """Put a command before the real one of this name."""
        path = self.stubs / name
        path.write_text(text)
        path.chmod(0o755)

    def python_stub(self, name: str, text: str) -> None:
        """As `stub`; a first line holds neither a long path nor one with a space."""
        (self.stubs / f"{name}.py").write_text(text)
        self.stub(name, f'#!/bin/sh\nexec "{sys.executable}" "$0.py" "$@"\n')

    def records(self, name: str, then: str = "") -> None:
        """A command that notes its arguments, and then does `then`."""
        self.stub(name, f'#!/bin/bash\necho "{name}${{*:+ $*}}" >> "{self.stubs}/called.txt"\n{then}\n')

    def called(self) -> list[str]:
        path = self.stubs / "called.txt"
        return path.read_text().splitlines() if path.exists() else []

    def asked(self, method: str | None = None) -> list[dict[str, Any]]:
        path = self.stubs / "asked.jsonl"
        lines = [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []
        return [line for line in lines if method in (None, line["method"])]

    def answer(self, method: str, address: str, **answer: Any) -> None:
        """What `gh` gets for an address of this repository's: `json`, or the bytes of a `file`."""
        self.answers[f"{method} repos/owner/repository/{address}"] = answer
        (self.stubs / "answers.json").write_text(json.dumps(self.answers))

    def git(self, *arguments: str, cwd: Path) -> str:
        return git(cwd, *arguments)

    def environment(self) -> dict[str, str]:
        path = [self.stubs, Path(sys.executable).parent, "/usr/local/bin", "/usr/bin", "/bin"]
        return {
            "PATH": os.pathsep.join(map(str, path)),
            "HOME": str(self.home),
            "TMPDIR": str(self.temporary),  # where the lock of the machine is: other tests hold the real one
            "LANG": "C.UTF-8",
            "CI": "true",
        } | CONFIGURED_BY_NOBODY


class Run:
    """One run of a workflow. `context` is the table that expressions are looked up in."""

    def __init__(self, github: GitHub, file: str, context: dict[str, Any], runner: str = "hosted"):
        self.github, self.file, self.workflow = github, file, load(file)
        self.context = {
            "github.ref": "refs/heads/main",
            "github.repository": "owner/repository",
            "github.server_url": "https://github.com",
            "github.run_id": "1",
            "github.token": "token",
            "github.sha": github.git("rev-parse", "main", cwd=github.origin),
            "github.event.repository.fork": None,
            **context,
        }
        self.runner = runner
        self.jobs: dict[str, Job] = {}

    def job(self, name: str) -> Job:
        """Run one job, whose needs have run."""
        definition = self.workflow["jobs"][name]
        needs = definition.get("needs", [])
        needs = [needs] if isinstance(needs, str) else needs
        for need in needs:
            self.context[f"needs.{need}.result"] = self.jobs[need].result
            for key, value in self.jobs[need].outputs.items():
                self.context[f"needs.{need}.outputs.{key}"] = value
        ok = all(self.jobs[need].result == "success" for need in needs)
        if not self.holds(definition.get("if", ""), ok):
            self.jobs[name] = Job("skipped")
            return self.jobs[name]
        self.jobs[name] = job = Job("success")
        if "uses" in definition:
            called = Run(self.github, Path(definition["uses"]).name, self.context, self.runner)
            results = [called.job(inner).result for inner in called.workflow["jobs"]]
            job.result = "success" if set(results) == {"success"} else "failure"
            return job
        self._steps(definition, job)
        for key, value in definition.get("outputs", {}).items():
            job.outputs[key] = self.text(value)
        return job

    def _steps(self, definition: dict[str, Any], job: Job) -> None:
        name = "self-hosted" if "fromJSON" in definition["runs-on"] else self.runner
        self.workspace = self.github.folder / name / "work"
        temporary = self.github.folder / name / "temp"
        if name == self.runner:  # a machine of GitHub's is a new one for each job
            shutil.rmtree(self.workspace, ignore_errors=True)
        shutil.rmtree(temporary, ignore_errors=True)
        for path in (self.workspace, temporary):
            path.mkdir(parents=True, exist_ok=True)
        self.context |= {"runner.temp": str(temporary)}
        for step in definition["steps"]:
            title = step.get("name") or step.get("uses", "").partition("@")[0]
            if not self.holds(step.get("if", ""), job.result == "success"):
                job.steps.append(Step(title, "skipped"))
            elif "uses" in step:
                self._action(step, job, title)
            else:
                self._shell(definition, step, job, title, temporary)
            done = job.steps[-1]
            if done.outcome == "failure":
                job.result = "failure"
            if "id" in step:
                self.context[f"steps.{step['id']}.outcome"] = done.outcome

    def _shell(self, definition: dict[str, Any], step: dict[str, Any], job: Job, title: str, temporary: Path) -> None:
        assert "${{" not in step["run"], "an expression in a script is text that the shell reads"
        script, output = temporary / "step.sh", temporary / "output"
        script.write_text(step["run"])
        output.write_text("")
        environment = {name: self.text(value) for name, value in step.get("env", {}).items()}
        standard = {"GITHUB_OUTPUT": str(output), "RUNNER_TEMP": str(temporary)}
        folder = step.get("working-directory") or definition.get("defaults", {}).get("run", {}).get("working-directory")
        done = subprocess.run(
            ["bash", "-e", str(script)],  # as GitHub does where no shell is named
            cwd=self.workspace / (folder or ""),
            env=self.github.environment() | standard | environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
        )
        job.steps.append(Step(title, "success" if done.returncode == 0 else "failure", done.stdout))
        for line in output.read_text().splitlines() if "id" in step else []:
            key, _, value = line.partition("=")
            self.context[f"steps.{step['id']}.outputs.{key}"] = value

    def _action(self, step: dict[str, Any], job: Job, title: str) -> None:
        inputs = {key: self.text(value) for key, value in step.get("with", {}).items()}
        try:
            {
                "actions/checkout": self._checkout,
                "actions/setup-python": lambda inputs: None,
                "actions/upload-artifact": self._upload,
                "actions/download-artifact": self._download,
                "actions/upload-pages-artifact": self._upload_pages,
                "actions/deploy-pages": lambda inputs: None,
            }[step["uses"].partition("@")[0]](inputs)
        except AssertionError as error:
            job.steps.append(Step(title, "failure", str(error)))
        else:
            job.steps.append(Step(title, "success"))

    def _checkout(self, inputs: dict[str, str]) -> None:
        folder = self.workspace / inputs.get("path", "")
        ref = inputs.get("ref") or self.context["github.sha"]
        if not (folder / ".git").exists():
            self.github.git("clone", "-q", "--no-checkout", str(self.github.origin), str(folder), cwd=self.workspace)
        if inputs.get("clean") != "false":
            self.github.git("clean", "-ffdxq", cwd=folder)
        self.github.git("fetch", "-q", "origin", ref, "+refs/heads/*:refs/remotes/origin/*", cwd=folder)
        where = ["-B", ref, f"origin/{ref}"] if ref == "main" else ["--detach", ref]
        self.github.git("checkout", "-q", "--force", *where, cwd=folder)
        if inputs.get("persist-credentials") != "true":
            self.github.git("config", "remote.origin.pushurl", "/no/credentials", cwd=folder)

    def _upload(self, inputs: dict[str, str]) -> None:
        target = self.github.artifacts / inputs["name"]
        shutil.rmtree(target, ignore_errors=True)
        for path in map(Path, inputs["path"].split("\n")):
            if path.is_dir():
                shutil.copytree(path, target, dirs_exist_ok=True)
            elif path.is_file():
                target.mkdir(exist_ok=True)
                shutil.copy(path, target)
        assert target.exists() or inputs["if-no-files-found"] == "ignore", "nothing to upload"

    def _download(self, inputs: dict[str, str]) -> None:
        shutil.copytree(self.github.artifacts / inputs["name"], inputs["path"], dirs_exist_ok=True)

    def _upload_pages(self, inputs: dict[str, str]) -> None:
        site = self.workspace / inputs["path"]
        assert (site / "index.html").is_file(), "no site"
        shutil.copytree(site, self.github.artifacts / "site", dirs_exist_ok=True)

    def text(self, value: Any) -> str:
        """A value of the YAML with its expressions resolved."""
        if isinstance(value, bool):
            return str(value).lower()
        return re.sub(r"\$\{\{(.*?)\}\}", lambda match: str(self.value(match[1])), str(value)).strip()

    def holds(self, condition: str, ok: bool) -> bool:
        """Whether a job or step runs: GitHub puts `success() &&` before what names no state function."""
        condition = re.sub(r"^\$\{\{(.*)\}\}$", r"\1", condition.strip()) or "success()"
        if not re.search(r"\b(always|success|failure|cancelled)\(\)", condition):
            condition = f"success() && ({condition})"
        return bool(self.value(condition, ok))

    def value(self, expression: str, ok: bool = True) -> Any:
        """The small part of GitHub's expressions that the workflows use."""
        python = re.sub(r"!(?!=)", " not ", expression.replace("&&", " and ").replace("||", " or "))
        looked_up = re.sub(r"'[^']*'|[a-z_]+(?:\.[\w-]+)+", lambda match: self._look_up(match[0]), python)
        functions = {"always": lambda: True, "success": lambda: ok, "failure": lambda: not ok}
        functions |= {"cancelled": lambda: False, "fromJSON": json.loads}
        return eval(looked_up.strip(), {"__builtins__": {}}, functions)  # of our own files

    def _look_up(self, word: str) -> str:
        if word.startswith("'"):
            return word
        if word.startswith(("vars.", "secrets.")) or re.fullmatch(r"steps\.\w+\.outputs\.[\w-]+", word):
            return repr(self.context.get(word, ""))
        return repr(self.context[word])
