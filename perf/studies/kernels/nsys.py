"""Profile the same work with nsys; `python -m perf.studies.kernels.nsys` is the process that nsys profiles."""

import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import click

from perf.files import write_aside
from perf.options import Count
from perf.studies.device import synchronize
from perf.studies.kernels.profiling import annotated, phase
from perf.studies.lm import Models, Setting, model_options, training_of

FLAGS = (
    "--trace=cuda,cudnn,cublas,osrt,nvtx",
    "--pytorch=functions-trace,autograd-shapes-nvtx",
    "--cudabacktrace=all",
    "--python-backtrace=cuda",
)
MISSING = "nsys is not on the PATH, so the commands above were not run; the tables answer the same questions."


def profile(settings: list[Setting], warm_up: int, steps: int, out: Path) -> None:
    """Print the commands, leave them in `out`/nsys.sh, and run them if nsys is installed.

    Raises `click.ClickException` if a file cannot be written or a profile failed.
    """
    commands = [command_of(setting, warm_up, steps, out) for setting in settings]
    lines = [shlex.join(command) for command in commands]
    # "step 1" is the first step after the warm-up, which has a range of its own.
    reports = [
        shlex.join(["nsys", "stats", "--report=cuda_gpu_kern_sum", "--filter-nvtx=step 1", f"{report}.nsys-rep"])
        for report in (report_of(setting, out) for setting in settings)
    ]
    click.echo("\nFrom the root of the repository, and then the kernels of the first step after the warm-up:")
    for line in (*lines, *reports):
        click.echo(line)
    write_aside(out / "nsys.sh", "\n".join(["#!/bin/sh", "set -e", *lines, *reports, ""]))
    if shutil.which("nsys") is None:
        click.echo(MISSING)
        return
    from perf.harness import working_tree

    working_tree.make_importable()
    for command in commands:
        done = subprocess.run([sys.executable if part == "python" else part for part in command], check=False)
        if done.returncode:
            raise click.ClickException(f"nsys ended with status {done.returncode}: {shlex.join(command)}")


def command_of(setting: Setting, warm_up: int, steps: int, folder: Path) -> list[str]:
    """Return the nsys command for the process of one setting."""
    own = {"batch": setting.batch, "model": setting.model, "warm-up": warm_up, "steps": steps}
    options = [part for name, value in (setting.axes() | own).items() for part in (f"--{name}", str(value))]
    target = ["python", "-m", "perf.studies.kernels.nsys", *options]
    return ["nsys", "profile", *FLAGS, "--force-overwrite=true", f"--output={report_of(setting, folder)}", *target]


def report_of(setting: Setting, folder: Path) -> Path:
    """Return the path of the report without its suffix, which nsys adds."""
    name = "-".join(map(str, ("kernels", *setting.axes().values(), setting.batch)))
    return folder / re.sub(r"[^A-Za-z0-9._]+", "-", name)


@click.command()
@model_options()
@click.option("--warm-up", default=5, show_default=True, type=Count(0), help='Steps in the range "warm-up".')
@click.option("--steps", default=5, show_default=True, type=Count(), help='Steps in ranges "step 1" and on.')
def main(models: Models, warm_up: int, steps: int) -> None:
    """Run training steps in NVTX ranges, for a profiler that starts this process. Seconds a model.

    \b
    nsys profile --trace=cuda,nvtx python -m perf.studies.kernels.nsys --size small --context 512
    """
    for setting in models.settings():
        try:
            train = training_of(setting).train
        except ValueError as error:
            raise click.ClickException(str(error)) from None
        with annotated(setting):
            with phase("warm-up"):
                for _ in range(warm_up):
                    train.step()
                synchronize()
            for index in range(1, steps + 1):
                with phase(f"step {index}"):
                    train.step()
                    synchronize()


if __name__ == "__main__":
    main()
