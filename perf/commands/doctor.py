"""`python -m perf doctor`: checks of this machine, and the asv classes that it can run."""

import functools
import os
import platform
import shutil
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click

from perf.commands.machine import known_machines
from perf.git import git, output
from perf.harness import preflight
from perf.harness.device import installed, missing_device
from perf.harness.status import one_line
from perf.harness.working_tree import RECORDS, ROOT
from perf.machines import machine_file
from perf.selection import asv_classes
from perf.tables import prose, text_table

ASV = "0.6.6"

_INSTALL = "pip install -e '.[dev]'"


@dataclass(frozen=True)
class Check:
    """One line of the first table."""

    found: str
    remark: str = "ok"
    blocks: str = ""
    """Reason why no class can run here; "" if the check prevents none."""


def checked(check: Callable[[], Check]) -> Check:
    """Return the result of a check; never raise."""
    try:
        return check()
    except ModuleNotFoundError as error:
        return Check(f"not checked: {error.name} is not installed", "")
    except Exception as error:  # the other checks must still run
        return Check("the check itself failed", f"{type(error).__name__}: {one_line(error)}")


def _python() -> Check:
    return Check(f"{platform.python_version()} ({sys.executable})")


def _torch() -> Check:
    try:
        import torch
    except ImportError as error:
        return Check("not installed", f"{one_line(error)}: {_INSTALL}", "torch is not installed")
    return Check(str(torch.__version__))


def _triton() -> Check:
    version = installed("triton")
    if not version:
        return Check("not installed", "the Triton kernels are n/a; everything else runs")
    return Check(version)


def _interpreter() -> Check:
    import torch

    triton, numpy = installed("triton"), installed("numpy")
    if torch.cuda.is_available():
        return Check("not needed: the kernels are compiled for the GPU")
    if not triton:
        return Check("not installed", "tests of the Triton kernels cannot run")
    versions = f"triton {triton} with numpy {numpy}"
    if triton.startswith("3.6.") and _numbers(numpy) >= (2, 4):
        return Check(versions, "tests of the kernels fail: use triton 3.7, or pip install 'numpy<2.4'")
    return Check(versions)


def _cuda() -> Check:
    import torch

    if torch.version.cuda is None:
        return Check("none: this torch is built without it", "GPU classes do not run")
    return Check(str(torch.version.cuda))


def _gpu() -> Check:
    import torch

    if not torch.cuda.is_available():
        return Check("none that torch can use", "GPU classes do not run; the smoke classes do")
    all_gpus = [torch.cuda.get_device_properties(index) for index in range(torch.cuda.device_count())]
    text = f"{all_gpus[0].name}, compute capability {all_gpus[0].major}.{all_gpus[0].minor}"
    return Check(text + (f", the first of {len(all_gpus)}" if len(all_gpus) > 1 else ""))


def _driver() -> Check:
    from perf.harness.device import Nvml

    uuid = _gpu_uuid()
    if not uuid:
        return Check("not checked: there is no GPU")
    nvml = Nvml.open(uuid)
    if nvml is None:
        return Check("NVML is unavailable", "clocks, power and throttling will not be in the records")
    limits = nvml.constants()
    return Check(f"{limits['driver']}, {limits['power_limit_w']} W, up to {limits['max_sm_mhz']} MHz")


def _trouble() -> Check:
    uuid = _gpu_uuid()
    if not uuid:
        return Check("not checked: there is no GPU")
    reasons = preflight.busy_or_broken_gpus()
    return Check("; ".join(reasons) or "none", "nothing is measured until it is resolved" if reasons else "ok")


def _tool(name: str, remark: str) -> Check:
    path = shutil.which(name)
    return Check(path or "not on the PATH", "ok" if path else remark)


def _disk(folder: Path) -> Check:
    existing = preflight.existing(folder)
    free = shutil.disk_usage(existing).free
    remark = "ok"
    if not os.access(existing, os.W_OK):
        remark = "cannot be written to"
    elif free < preflight.MIN_FREE_BYTES:
        remark = "less than 1 GiB: nothing is measured"
    return Check(f"{free / 2**30:.1f} GiB free", remark)


def _git() -> Check:
    if shutil.which("git") is None:
        return Check("not on the PATH", "asv measures commits, so it needs git", "git is not installed")
    try:
        head = _printed("rev-parse", "--short", "HEAD")
    except click.ClickException as error:
        return Check("no commits", "asv measures commits", error.message)
    version = _printed("--version").removeprefix("git version ")
    remarks = []
    if _printed("rev-parse", "--is-shallow-repository") == "true":
        count = _printed("rev-list", "--count", "HEAD")
        commits = "1 commit" if count == "1" else f"{count} commits"
        version, remarks = f"{version}, a shallow clone of {commits}", ["for more history: git fetch --unshallow"]
    if git(ROOT, "rev-parse", "--verify", "--quiet", "main").returncode != 0:
        version = f"{version}, no branch main"
        remarks.append("asv publish requires main: git checkout -B main")
    if remarks:
        return Check(version, "; ".join(remarks))
    return Check(f"{version}, full history, HEAD {head}")


def _asv() -> Check:
    try:
        import asv  # noqa: F401
    except ImportError as error:
        return Check("not installed", f"{one_line(error)}: {_INSTALL}", "asv is not installed")
    version = installed("asv")
    return Check(version, "ok" if version == ASV else f"the suite is written for asv {ASV}: {_INSTALL}")


def _machine_file() -> Check:
    from perf.harness.device import machine

    path, here = machine_file(), machine()["machine"]
    try:
        known = known_machines() if path.exists() else set()
    except ValueError as error:
        return Check(str(path), str(error))
    if here not in known:
        others = f"knows {', '.join(sorted(known))}" if known else "does not exist"
        return Check(f"{path} {others}", f"this machine is {here}: python -m perf machine")
    if len(known) > 1:
        return Check(f"{here}, among {len(known)} in {path}", f"use asv run --machine {here}")
    return Check(f"{here} in {path}")


def _browser() -> Check:
    chromium = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    driver = shutil.which("chromedriver")
    programs = f"{chromium or 'no chromium'}, {driver or 'no chromedriver'}"
    return Check(programs, "ok" if chromium and driver else "browser tests of the site are skipped")


CHECKS: dict[str, Callable[[], Check]] = {
    "Python": _python,
    "torch": _torch,
    "Triton": _triton,
    "Triton interpreter": _interpreter,
    "CUDA runtime": _cuda,
    "GPU": _gpu,
    "driver": _driver,
    "trouble on the GPU": _trouble,
    "nsys": functools.partial(_tool, "nsys", remark="perf case --profile nsys needs it; --profile torch does not"),
    "ncu": functools.partial(_tool, "ncu", remark="perf case --profile ncu needs it; --profile torch does not"),
    "disk, .asv/": functools.partial(_disk, ROOT / ".asv"),
    "disk, perf/records/": functools.partial(_disk, RECORDS),
    "git": _git,
    "asv": _asv,
    "asv's machine file": _machine_file,
    "browser": _browser,
}


@functools.cache
def _gpu_uuid() -> str:
    """Return the UUID of the measured GPU in NVML's form; "" without a GPU."""
    import torch

    return f"GPU-{torch.cuda.get_device_properties(0).uuid}" if torch.cuda.is_available() else ""


def _check_class(cls: Any) -> tuple[str, str]:
    """Return the number of a class's cases, and why this machine cannot run them; "" if it can."""
    from perf.harness.suite import cases_of

    try:
        return str(len(cases_of(cls()))), missing_device(cls.device)
    except Exception as error:
        return "?", f"{type(error).__name__}: {one_line(error)}"


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in version.split(".")[:2] if part.isdigit())


def _printed(*arguments: str) -> str:
    return output(ROOT, *arguments).strip()


@click.command("doctor")
def command() -> None:
    """Check this machine and list the asv classes that it can run, with the reasons for the others.

    Each check has one line: ok, or the remedy. Takes about 5 seconds, most of them to import torch; changes nothing.
    The exit status is 0 if at least one asv class can run here.
    """
    checks = {name: checked(check) for name, check in CHECKS.items()}
    click.echo(text_table({"check": name, "found": one.found, "remark": one.remark} for name, one in checks.items()))
    blocked = "; ".join(check.blocks for check in checks.values() if check.blocks)
    classes: dict[str, list[dict[str, str]]] = {}
    for name, cls, broken in asv_classes():
        cases, reason = _check_class(cls) if cls else ("?", broken)
        classes.setdefault(blocked or reason, []).append({"asv class": name, "cases": cases})
    for reason, rows in sorted(classes.items()):  # those that run here, which have no reason, first
        click.echo(f"\n{prose(f'Do not run here: {reason}') if reason else 'Run here'}\n{text_table(rows)}")
    if "" not in classes:
        raise click.ClickException("no class of the suite can run here; the tables above say why")
