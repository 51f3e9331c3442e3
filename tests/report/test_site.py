"""The publisher, through `asv publish` where that is quick, and by itself where it fails."""

import json
import re
from pathlib import Path
from types import SimpleNamespace

import pytest

from tests.report.publishing import SUBJECTS, asv_publish, make_project


def test_asv_publish_writes_our_page_for_the_newest_commit_with_records(tmp_path: Path) -> None:
    hashes = make_project(tmp_path / "repo")
    asv_publish(tmp_path / "repo", tmp_path / "html")
    page = (tmp_path / "html" / "attention.html").read_text(encoding="utf-8")
    assert hashes[-2][:8] in page
    assert SUBJECTS[-2] in page
    assert "2026-01-05" in page
    assert hashes[-3][:8] not in page
    assert "<strong>nvidia-b200</strong> has no records yet." in page
    assert page.index('id="nvidia-h200-attention') < page.index('id="cpu-laptop-smoke'), "the real thing first"
    saved = page.partition('id="nvidia-h200-attention-pytorchattentionsaved"')[2]
    assert re.search(r'class="card" href="[^"]*PyTorchAttentionSaved.track_peak_memory', saved), "a history of memory"
    known = json.loads((tmp_path / "html" / "index.json").read_text())
    assert ["attention", "Attention", known["pages"][-1][2]] == known["pages"][-1]


def test_an_index_that_we_do_not_know_is_one_clear_line(tmp_path: Path) -> None:
    from asv.util import UserError

    from perf.asv_plugins.site import AttentionSite

    (tmp_path / "index.html").write_text('<li id="nav-li-graphdisplay"><script src="https://cdn.example/x.js">')
    conf = SimpleNamespace(
        html_dir=str(tmp_path),
        results_dir=str(tmp_path / "results"),
        project="demo",
        show_commit_url="#",
        branches=[],
    )
    with pytest.raises(UserError, match=r"cdn\.example/x\.js.*manifest\.json does not know"):
        AttentionSite.publish(conf, None, {}, [], {})
