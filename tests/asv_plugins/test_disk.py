"""asv publish keeps the last site where it could not make another."""

import shutil
import socket
import tempfile
from pathlib import Path
from types import SimpleNamespace

import pytest
from asv.commands.publish import Publish
from asv.util import UserError

from perf.asv_plugins import disk
from perf.gate import acceptance


@pytest.mark.parametrize(("length", "is_its_own"), [(disk.MAX_TEMPDIR_BYTES, True), (100, False)])
def test_a_long_temporary_folder_leaves_room_for_the_socket_of_asv(
    length: int, is_its_own: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    with tempfile.TemporaryDirectory(dir="/tmp") as short:
        long = Path(short) / ("x" * (length - len(short) - 1))
        long.mkdir()
        monkeypatch.setattr(tempfile, "tempdir", str(long))
        with disk._scratch_tempdir(None):
            folder = tempfile.mkdtemp(prefix="asv-forkserver-")
            assert folder.startswith(str(long)) == is_its_own
            with socket.socket(socket.AF_UNIX) as server:
                server.bind(f"{folder}/socket")
        assert tempfile.tempdir == str(long)


def test_files_that_cannot_be_copied_are_one_line() -> None:
    with pytest.raises(UserError, match=r"^there cannot be written: No space left$"), disk._one_line_errors(None):
        raise shutil.Error([("here", "there", "No space left")])


@pytest.mark.parametrize("fault", ["no results", "a link", "accepted.json"])
def test_what_cannot_be_published_leaves_the_site_as_it_was(
    fault: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk.install()
    monkeypatch.setattr(acceptance, "ROOT", tmp_path)
    site = tmp_path / "site"
    site.mkdir()
    (site / "index.html").write_text("the last one")
    if fault != "no results":
        (tmp_path / "benchmarks.json").write_text("{}")
    if fault == "accepted.json":
        (tmp_path / acceptance.FILE).mkdir(parents=True)
    if fault == "a link":
        (tmp_path / "link").symlink_to(site)
    html = tmp_path / "link" if fault == "a link" else site
    with pytest.raises(UserError, match=r"allowed: a fol|asv run|accepted\.json"):
        Publish.run(SimpleNamespace(html_dir=str(html), results_dir=str(tmp_path)))
    assert (site / "index.html").read_text() == "the last one"
