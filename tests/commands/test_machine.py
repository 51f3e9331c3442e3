"""asv's machine file is the same after any change that leaves the machine's series."""

import json
import os
import platform
import subprocess
import sys
from importlib.metadata import version

import pytest
import torch
from click.testing import CliRunner

from perf.commands import machine
from perf.commands.machine import known_machines
from perf.harness import device
from perf.machines import MACHINE_FILE
from tests.repositories import ROOT


def entry(path):
    (found,) = [value for name, value in json.loads(path.read_text()).items() if name != "version"]
    return found


def test_nothing_that_moves_is_in_the_machine_file(tmp_path, monkeypatch):
    machine.write(str(tmp_path / "before.json"))
    uname = platform.uname()
    moved = uname._replace(node="another-host", release="99.9-other-kernel", version="#2 SMP")
    monkeypatch.setattr(platform, "uname", lambda: moved)
    machine.write(str(tmp_path / "after.json"))
    assert (tmp_path / "before.json").read_text() == (tmp_path / "after.json").read_text()
    text = json.dumps(entry(tmp_path / "after.json"))
    assert uname.node not in text
    assert uname.release not in text
    assert entry(tmp_path / "after.json")["ram"] == ""


def test_the_machine_file_that_a_variable_names_is_written(tmp_path, monkeypatch):
    monkeypatch.setenv(MACHINE_FILE, str(tmp_path / "own.json"))
    assert machine.write() == entry(tmp_path / "own.json")["machine"]


def test_other_machines_in_the_file_are_kept(tmp_path, capsys):
    path = tmp_path / "machine.json"
    path.write_text(json.dumps({"laptop": {"machine": "laptop"}, "version": 1}))
    name = machine.write(str(path))
    known = json.loads(path.read_text())
    assert set(known) == {"laptop", name, "version"}
    assert f"--machine {name}" in capsys.readouterr().out


def test_gpu_model_and_count_make_the_name(monkeypatch):
    import torch

    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda: "NVIDIA H200")
    for count, name in ((1, "nvidia-h200"), (2, "nvidia-h200-x2")):
        monkeypatch.setattr(torch.cuda, "device_count", lambda count=count: count)
        assert device.machine()["machine"] == name


@pytest.mark.parametrize("content", [b"not json", b"[]", b'{"laptop": 1}', b"\xff", b""])
def test_a_file_that_is_no_machine_file_is_set_aside_and_written(tmp_path, content):
    path = tmp_path / "machine.json"
    path.write_bytes(content)
    machine.write(str(path))
    assert entry(path)["machine"] == device.machine()["machine"]
    assert (tmp_path / "machine.json.broken").read_bytes() == content
    assert sorted(path.name for path in tmp_path.iterdir()) == ["machine.json", "machine.json.broken"]


def test_a_second_broken_file_leaves_the_first(tmp_path):
    path = tmp_path / "machine.json"
    for content in ("first", "second"):
        path.write_text(content)
        machine.write(str(path))
    assert (tmp_path / "machine.json.broken").read_text() == "first"
    assert (tmp_path / "machine.json.broken.1").read_text() == "second"


def test_a_link_to_the_file_stays_one_and_a_device_is_refused(tmp_path):
    link, path = tmp_path / "link.json", tmp_path / "machine.json"
    link.symlink_to(path)
    name = machine.write(str(link))
    assert link.is_symlink() and entry(path)["machine"] == name
    os.mkfifo(tmp_path / "pipe")
    done = CliRunner().invoke(machine.command, ["--file", str(tmp_path / "pipe")])
    assert done.exit_code == 1 and "allowed: a regular file" in done.output


def test_a_file_that_cannot_be_written_is_one_clear_line(tmp_path):
    path = tmp_path / "a file"
    path.write_text("")
    done = CliRunner().invoke(machine.command, ["--file", str(path / "machine.json")])
    assert done.exit_code == 1
    (line,) = done.output.splitlines()
    assert line.startswith("Error: ") and str(path) in line


@pytest.mark.skipif("+cpu" not in version("torch"), reason="torch must be imported to ask it")
def test_a_name_that_is_too_long_is_one_clear_line(tmp_path):
    done = CliRunner().invoke(machine.command, ["--file", str(tmp_path / ("long" * 100))])
    assert (done.exit_code, len(done.output.splitlines())) == (1, 1)
    assert done.output.endswith("File name too long\n")


@pytest.mark.parametrize("content", ["5", "[]", "{", "[" * 100_000, None])
def test_a_file_that_names_no_machines_is_one_line(tmp_path, monkeypatch, content):
    monkeypatch.setenv(MACHINE_FILE, str(tmp_path / "own.json"))
    if content:
        (tmp_path / "own.json").write_text(content)
    with pytest.raises(ValueError, match=r"own.json cannot be read \(.*\); python -m perf machine writes it"):
        known_machines()


def test_only_a_torch_that_was_built_for_a_gpu_is_imported_to_name_the_machine():
    script = "import sys; from perf.harness import device; print(device.machine(), device.software()['torch'])"
    command = [sys.executable, "-c", f"{script}; print('torch' in sys.modules)"]
    named, imported = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout.splitlines()
    assert named == f"{device.machine()} {torch.__version__}"
    assert imported == str(bool(torch.version.cuda or torch.version.hip))
