"""A throw-away git repository with this project's suite and a `cs336_systems` of its own, for real asv to run in."""

import atexit
import compileall
import functools
import json
import os
import shutil
import subprocess
import sys
import tempfile
import weakref
from pathlib import Path

from perf.harness import records
from tests.repositories import CONFIGURED_BY_NOBODY, git

ROOT = Path(__file__).resolve().parents[1]
MACHINE = "throw-away"
ATTENTION = """
import time

import torch


def scaled_dot_product_attention(q, k, v, is_causal=False):
    time.sleep({stall_s})
    scores = q @ k.transpose(-1, -2) * q.shape[-1] ** -0.5
    rows = torch.arange(q.shape[-2])
    scores = scores.masked_fill(rows[:, None] < rows, float("-inf"))
    return torch.softmax(scores, dim=-1) @ v
"""


def write_attention(folder: Path, **modules: str) -> None:
    """A `cs336_systems` of nothing but these modules of its attention."""
    package = folder / "cs336_systems" / "attention"
    package.mkdir(parents=True, exist_ok=True)
    for init in (package.parent, package):
        (init / "__init__.py").write_text("")
    for name, source in modules.items():
        (package / f"{name}.py").write_text(source)


def write_package(folder: Path, *, axis: str, stall_s: float = 0) -> None:
    """A `cs336_systems` with a table of its own, `axis`, and an attention that stalls for so many seconds."""
    write_attention(folder, reference=ATTENTION.format(stall_s=stall_s))
    (folder / "cs336_systems" / "configs.py").write_text(f"SEQ_LENS = {axis}\n")


@functools.cache
def _compiled_suite() -> Path:
    """This project's `perf`, compiled: where Python keeps no bytecode, each process of a repository would do it."""
    folder = tempfile.mkdtemp(prefix="perf-compiled-")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    own = shutil.ignore_patterns("results", "records", "accepted.json", "__pycache__")
    suite = shutil.copytree(ROOT / "perf", Path(folder) / "perf", ignore=own)
    compileall.compile_dir(suite, quiet=1)
    return suite


class Repository:
    """A git repository with this project's suite and a `cs336_systems` of its own."""

    def __init__(self, folder: Path):
        self.folder = folder
        self.environment = os.environ | CONFIGURED_BY_NOBODY
        self.environment |= {"PERF_MACHINE_FILE": str(folder.parent / "machine.json")}
        scratch = tempfile.mkdtemp(prefix="perf-")
        weakref.finalize(self, shutil.rmtree, scratch, ignore_errors=True)
        self.environment |= {"TMPDIR": scratch}
        entry = {"machine": MACHINE, "os": "", "arch": "", "cpu": "", "num_cpu": "", "ram": ""}
        (folder.parent / "machine.json").write_text(json.dumps({MACHINE: entry, "version": 1}))
        folder.mkdir()
        shutil.copytree(_compiled_suite(), folder / "perf")
        shutil.copy(ROOT / "asv.conf.json", folder)
        (folder / ".gitignore").write_text(".asv\n__pycache__\n/perf/results\n/perf/records\n")
        self.git("init", "-q", "-b", "main")

    def git(self, *arguments: str) -> str:
        return git(self.folder, *arguments)

    def commit(self, message: str) -> str:
        self.git("add", "-A")
        self.git("commit", "-q", "-m", message)
        return self.git("rev-parse", "HEAD")

    def write_package(self, *, axis: str, stall_s: float = 0) -> None:
        write_package(self.folder, axis=axis, stall_s=stall_s)

    def python(self, *arguments: str) -> "subprocess.CompletedProcess[str]":
        command = [sys.executable, *arguments]
        return subprocess.run(
            command, cwd=self.folder, env=self.environment, capture_output=True, text=True, check=False
        )

    def asv(self, *arguments: str) -> "subprocess.CompletedProcess[str]":
        return self.python("-m", "asv", *arguments)

    def result(self, commit: str) -> dict:
        (path,) = (self.folder / "perf" / "results" / MACHINE).glob(f"{commit[:8]}-*.json")
        return json.loads(path.read_text())

    def case_results(self, commit: str) -> list[records.CaseResult]:
        folder = self.folder / "perf" / "records"
        (machine,) = records.machines(folder)
        return records.read_commit(folder, machine, commit)
