"""What a machine has is told line by line; what is missing is a remark, never a traceback."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from perf.commands import doctor

ROOT = Path(__file__).resolve().parents[2]


def examine(**environment):
    command = [sys.executable, "-m", "perf", "doctor"]
    env = os.environ | {name: str(value) for name, value in environment.items()}
    done = subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True, check=False)
    assert "Traceback" not in done.stdout + done.stderr
    return done


def line(done, name):
    (found,) = [text for text in done.stdout.splitlines() if text.startswith(name + "  ")]
    return found


def broken(folder, package):
    """A folder for PYTHONPATH in which `package` is as good as not installed."""
    message = f"No module named '{package}'"
    (folder / f"{package}.py").write_text(f"raise ModuleNotFoundError({message!r}, name={package!r})\n")
    return folder


def test_every_check_and_every_class_has_one_line():
    done = examine()
    assert done.returncode == 0, done.stdout + done.stderr
    assert line(done, "torch").split()[1] == torch.__version__
    for name in doctor._CHECKS:
        assert f"\n{name} " in done.stdout
    for name in ("smoke.SmokeAttention", "smoke.SmokeControls"):
        assert line(done, name).split()[2] == "yes"
    assert "check itself failed" not in done.stdout
    if not torch.cuda.is_available():
        assert "needs a CUDA GPU" in line(done, "attention.FlashAttention")


def test_without_git_nothing_runs_and_every_class_says_so(tmp_path):
    done = examine(PATH=tmp_path)
    assert done.returncode == 1
    assert "not on the PATH" in line(done, "git")
    assert line(done, "smoke.SmokeAttention").endswith("git is not installed")
    assert done.stderr == "Error: nothing of the suite can run here; the tables above say why\n"


@pytest.mark.parametrize("package", ["asv", "torch"])
def test_a_missing_package_is_a_remark_that_tells_how_to_install_it(package, tmp_path):
    done = examine(PYTHONPATH=broken(tmp_path, package))
    assert done.returncode == 1
    assert line(done, package).rstrip().endswith(f"No module named '{package}': pip install -e '.[dev]'")
    assert f"{package} is not installed" in line(done, "smoke.SmokeAttention")
    assert "check itself failed" not in done.stdout


def test_a_machine_that_asv_does_not_know_is_told_the_command(tmp_path):
    assert "python -m perf machine" in line(examine(HOME=tmp_path), "asv's machine file")
    (tmp_path / ".asv-machine.json").write_text("not json")
    assert "cannot be read" in line(examine(HOME=tmp_path), "asv's machine file")


def test_a_shallow_clone_and_a_folder_without_git_are_told(tmp_path, monkeypatch):
    if not (ROOT / ".git").exists():
        pytest.skip("not a git checkout")
    clone = tmp_path / "clone"
    command = ["git", "clone", "-q", "--depth", "1", "--no-checkout", ROOT.as_uri(), str(clone)]
    subprocess.run(command, check=True, capture_output=True)
    monkeypatch.setattr(doctor, "ROOT", clone)
    found = doctor._git("git")
    assert found.found.endswith("a shallow clone of 1 commit")
    assert found.blocks == ""
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path))
    monkeypatch.setattr(doctor, "ROOT", tmp_path)
    assert doctor._git("git").blocks == f"{tmp_path} is not a git repository with commits"


@pytest.mark.parametrize(
    ("triton", "numpy", "fails"),
    [("3.6.0", "2.4.0", True), ("3.6.0", "2.3.9", False), ("3.7.1", "2.4.6", False), ("3.6.0", "2.10.0", True)],
)
def test_the_interpreter_that_fails_is_named_before_the_tests_do(triton, numpy, fails, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(doctor, "_version", {"triton": triton, "numpy": numpy}.get)
    assert (doctor._interpreter("Triton interpreter").remark != "ok") == fails


def test_a_check_that_fails_costs_its_own_line_only(monkeypatch):
    def fail(name):
        raise OSError("libcudart.so is broken\nsecond line")

    monkeypatch.setattr(doctor, "_CHECKS", {"one": fail, "two": lambda name: doctor.Check(name, "fine")})
    one, two = doctor.machine_checks()
    assert (one.found, one.remark) == ("the check itself failed", "OSError: libcudart.so is broken")
    assert two.remark == "ok"


def test_help_says_how_long_it_takes():
    command = [sys.executable, "-m", "perf", "doctor", "--help"]
    assert "5 seconds" in subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout
