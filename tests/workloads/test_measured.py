"""What a commit lacks is unavailable; what it has and cannot import is broken."""

import pytest

from perf import workloads
from perf.workloads import importing, measured, measured_module
from perf.workloads.workload import Unavailable


@pytest.fixture(autouse=True)
def another_package(tmp_path, monkeypatch):
    """A package whose modules lack something, under the name of the measured one."""
    package = tmp_path / "another"
    (package / "inner").mkdir(parents=True)
    for name, text in {
        "__init__": "",
        "inner/__init__": "",
        "inner/sound": "answer = 42",
        "inner/misspelt": "from another.inner.soundd import answer",
        "inner/mistaken": "import another.inner.sound as sound; sound.answr",
        "inner/needing": "import no_such_package",
        "inner/optional": "import triton_of_nobody.language",
    }.items():
        (package / f"{name}.py").write_text(text)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(workloads, "OPTIONAL", ("triton_of_nobody",))
    with importing("another"):
        yield


def test_what_is_there_is_found():
    assert measured("inner.sound", "answer") == 42


@pytest.mark.parametrize("module", ["gone", "gone.too", "inner.gone"])
def test_a_module_that_is_not_there_is_unavailable(module):
    with pytest.raises(Unavailable, match="this commit has no module cs336_systems"):
        measured(module, "answer")


def test_a_name_that_is_not_there_is_unavailable():
    with pytest.raises(Unavailable, match=r"this commit has no cs336_systems\.inner\.sound\.question"):
        measured("inner.sound", "question")


def test_a_module_that_needs_what_some_machines_lack_is_unavailable():
    with pytest.raises(Unavailable, match="triton_of_nobody, which is not installed"):
        measured_module("inner.optional")


@pytest.mark.parametrize(
    ("module", "error"),
    [("misspelt", ModuleNotFoundError), ("mistaken", AttributeError), ("needing", ModuleNotFoundError)],
)
def test_a_module_that_is_there_and_fails_is_broken(module, error):
    with pytest.raises(error):
        measured(f"inner.{module}", "answer")
