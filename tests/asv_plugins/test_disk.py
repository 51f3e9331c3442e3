"""asv publish keeps the last site where it could not make another."""

from pathlib import Path
from types import SimpleNamespace

import pytest
from asv.commands.publish import Publish
from asv.util import UserError

from perf.asv_plugins import disk


@pytest.mark.parametrize("fault", ["no results", "a link"])
def test_what_cannot_be_published_leaves_the_site_as_it_was(fault: str, tmp_path: Path) -> None:
    disk.install()
    site = tmp_path / "site"
    site.mkdir()
    (site / "index.html").write_text("the last one")
    if fault == "a link":
        (tmp_path / "benchmarks.json").write_text("{}")
        (tmp_path / "link").symlink_to(site)
    html = tmp_path / "link" if fault == "a link" else site
    with pytest.raises(UserError, match=r"allowed: a folder|asv run"):
        Publish.run(SimpleNamespace(html_dir=str(html), results_dir=str(tmp_path)))
    assert (site / "index.html").read_text() == "the last one"
