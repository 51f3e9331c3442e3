"""The publisher, through `asv publish` where that is quick, and by itself where it fails."""

import gzip
import json
import os
import re
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from perf.site.pages import PAGES
from tests.repositories import git
from tests.site import synthetic
from tests.site.pages import text_of
from tests.site.publishing import ROOT, SUBJECTS, asv_publish, configure, make_project
from tests.site.synthetic import H200


def test_asv_publish_writes_our_pages_for_the_newest_commit_with_records(published: tuple[Path, list[str]]) -> None:
    html, hashes = published
    pages = {path.stem: path.read_text(encoding="utf-8") for path in html.glob("*.html")}
    texts = {name: text_of(page) for name, page in pages.items()}
    assert pages.keys() >= {Path(page.file.partition("#")[0]).stem for page in PAGES}
    assert hashes[-2][:8] in texts["attention"] and SUBJECTS[-2] in texts["attention"]
    assert hashes[-3][:8] not in texts["attention"]
    saved = pages["attention"].partition('id="nvidia-h200-attention-pytorchattentionsaved"')[2]
    assert re.search(r'class="card" href="[^"]*PyTorchAttentionSaved.track_peak_memory', saved), "a history of memory"
    assert "xl 512 bf16 80.0 ms" in texts["step"], "of the commit before: the newest has small alone"
    flash = r'href="history\.html#attention\.FlashAttention\.track_time\?machine=nvidia-h200&amp;[^"]*"'
    assert re.search(f"{flash}>attention.FlashAttention</a>", pages["roofline"])
    assert "attention.FlashAttention 33 " in texts["roofline"], "ours of 108, but for three that failed"
    assert "bucketed" in texts["distributed"] and "105 ms" in texts["distributed"]
    assert "0 of 60 rows" in texts["trust"]
    assert f"105 of 108 6 {hashes[-1][:8]} 2026-01-06" in texts["index"]
    assert texts["index"].index("nvidia-h200") < texts["index"].index("cpu-laptop"), "the most graphs come first"
    assert f"{SUBJECTS[3]} 2026-01-04" in texts["changes"] and f"{hashes[3][:8]} : 5 slower" in texts["changes"]
    assert all("nvidia-b200" in texts[name] for name in ("attention", "step", "roofline", "distributed", "trust"))
    assert 'href="trust.html"' in pages["history"]
    scaled = {name for name, page in pages.items() if 'class="chart' in page}
    assert scaled == {"index", "roofline", "distributed", "trust"}
    assert all("logarithmic" in texts[name] for name in scaled), "each of these axes is"


def test_what_is_damaged_or_nobody_measured_is_left_out_and_named(tmp_path: Path) -> None:
    """asv takes any JSON: over 1e308 it stands still, and shows code as HTML."""
    hashes = make_project(tmp_path / "repo", (synthetic.GPU, synthetic.CPU))
    perf = tmp_path / "repo" / "perf"
    results = perf / "results" / H200
    half, old, endless, no_text, *_ = (results / f"{commit[:8]}-linked-py3.12.json" for commit in hashes)
    laptop = perf / "results" / "laptop"
    laptop.mkdir()
    (laptop / "machine.json").write_text((results / "machine.json").read_text().replace(H200, "laptop"))
    (laptop / no_text.name).write_text(no_text.read_text().replace(f'"machine": "{H200}"', '"machine": "laptop"'))
    elsewhere = results / f"{'f' * 8}-linked-py3.12.json"
    elsewhere.write_text(endless.read_text().replace(hashes[2], "f" * 40))
    half.write_text(half.read_text()[:500])
    old.write_text(re.sub(r'"version": 2}$', '"version": 1}', old.read_text()))
    document = json.loads(endless.read_text())
    next(iter(document["results"].values()))[0][0] = 1e308
    endless.write_text(json.dumps(document))
    no_text.write_bytes(b"\xff\xfe" + no_text.read_bytes())
    known = json.loads((perf / "results" / "benchmarks.json").read_text())
    name = next(one for one in known if one != "version")
    known[name]["code"] = "<img src=x onerror=alert(1)>"
    known["<b>"] = known[name]
    (perf / "results" / "benchmarks.json").write_text(json.dumps(known))
    cut, other = sorted((perf / "records" / H200).glob("*.jsonl.gz"))[:2]
    packed = bytearray(cut.read_bytes())
    packed[len(packed) // 2] ^= 0xFF
    cut.write_bytes(packed)
    other.write_bytes(gzip.compress(b'{"kind":"session","id":1}\n'))

    said = asv_publish(tmp_path / "repo", tmp_path / "html")
    overview = text_of((tmp_path / "html" / "index.html").read_text(encoding="utf-8"))
    assert f"105 of 108 2 {hashes[-1][:8]}" in overview, "two commits are left"
    for damaged in (half, old, endless, no_text, elsewhere):
        assert damaged.name in overview
    assert endless.name in said and no_text.name in said
    for records in (cut, other):
        assert records.name[:8] in overview.partition(endless.name)[2]
    assert str(tmp_path) not in overview
    assert "laptop" in text_of((tmp_path / "html" / "changes.html").read_text(encoding="utf-8"))
    index = json.loads((tmp_path / "html" / "index.json").read_text())
    assert "<b>" not in index["benchmarks"]
    assert index["benchmarks"][name]["code"] == "&lt;img src=x onerror=alert(1)&gt;"


def test_a_damaged_machine_file_leaves_out_its_machine(tmp_path: Path) -> None:
    from asv.commands import publish

    import perf.asv_plugins.site  # noqa: F401  (installs the checks)

    for number, content in enumerate([b"{", b"\xff", b"[]", b"{}", b'{"machine": "sound"}']):
        (tmp_path / f"{number}").mkdir()
        (tmp_path / f"{number}" / "machine.json").write_bytes(content)
    assert [Path(path).parent.name for path in publish.iter_machine_files(str(tmp_path))] == ["4"]


@pytest.fixture
def conf(tmp_path: Path) -> SimpleNamespace:
    """Of a project without results or records."""
    return SimpleNamespace(
        html_dir=str(tmp_path),
        results_dir=str(tmp_path / "results"),
        project="demo",
        show_commit_url="#",
        branches=[],
    )


def test_an_index_that_we_do_not_know_is_one_clear_line(tmp_path: Path, conf: SimpleNamespace) -> None:
    from asv.util import UserError

    from perf.asv_plugins.site import SitePages

    index = tmp_path / "index.html"
    index.write_text('</head><li id="nav-li-graphdisplay"><script src="https://cdn.example/x.js">')
    with pytest.raises(UserError, match=r"cdn\.example/x\.js.*manifest\.json does not know"):
        SitePages.publish(conf, None, {}, [], {})
    index.write_text("<html></html>")
    with pytest.raises(UserError, match=r"index\.html .*</head>"):
        SitePages.publish(conf, None, {}, [], {})


def test_a_shallow_clone_is_no_empty_history(tmp_path: Path) -> None:
    """Without its commits a site would say that nothing was measured, and that nothing is worse."""
    whole, shallow = tmp_path / "whole", tmp_path / "shallow"
    (measured, _) = synthetic.make_repo(whole, ["First", "Second"])
    configure(whole)
    synthetic.write_results(whole / "perf" / "results", synthetic.ALONE, measured, 0)
    (whole / "perf" / "results" / "benchmarks.json").write_text(
        json.dumps({"version": 2} | synthetic.benchmarks(synthetic.ALONE))
    )
    git(whole, "add", "-A")
    git(whole, "commit", "-q", "-m", "results")
    subprocess.run(["git", "clone", "-q", "--depth", "1", whole.as_uri(), str(shallow)], check=True)
    command = [sys.executable, "-m", "asv", "publish", "--no-pull", "--html-dir", str(tmp_path / "html")]
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, cwd=shallow, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode != 0
    assert "git fetch --unshallow" in done.stdout + done.stderr
    assert "Traceback" not in done.stderr
