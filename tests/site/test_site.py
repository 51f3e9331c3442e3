"""The publisher, through `asv publish` where that is quick, and by itself where it fails."""

import gzip
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import asv
import pytest

from tests.once import Once
from tests.repositories import git
from tests.site.pages import text_of
from tests.site.publishing import ROOT, SUBJECTS, asv_publish, make_project, publish_project
from tests.site.synthetic import H200


def test_asv_publish_writes_our_pages_for_the_newest_commit_with_records(once: Once) -> None:
    html, hashes = once("site", publish_project)
    page = (html / "attention.html").read_text(encoding="utf-8")
    assert hashes[-2][:8] in page
    assert SUBJECTS[-2] in page
    assert "2026-01-05" in page
    assert hashes[-3][:8] not in page
    assert "<strong>nvidia-b200</strong> has no records yet." in page
    assert page.index('id="nvidia-h200-attention') < page.index('id="cpu-laptop-smoke'), "the real thing first"
    saved = page.partition('id="nvidia-h200-attention-pytorchattentionsaved"')[2]
    assert re.search(r'class="card" href="[^"]*PyTorchAttentionSaved.track_peak_memory', saved), "a history of memory"
    known = json.loads((html / "index.json").read_text())
    ours = [["attention", "Attention"], ["step", "Training step"], ["roofline", "Roofline"]]
    ours += [["distributed", "Distributed"], ["trust", "Trust"]]
    assert [page[:2] for page in known["pages"][-5:]] == ours
    step = text_of((html / "step.html").read_text(encoding="utf-8"))
    assert "xl 512 bf16 80.0 ms" in step, "of the commit before: the newest has small alone"
    assert step.index("small 512") < step.index("xl 512")
    assert "nvidia-b200" in step
    roofline = (html / "roofline.html").read_text(encoding="utf-8")
    assert roofline.index('id="cpu-laptop"') < roofline.index('id="nvidia-h200"')
    assert "nvidia-b200" in text_of(roofline)
    assert "attention.FlashAttention 33 " in text_of(roofline), "ours of 108, but for three that failed"
    assert text_of(roofline).count("Every commit of attention.FlashAttention") == 1
    distributed = text_of((html / "distributed.html").read_text(encoding="utf-8"))
    assert "bucketed has the shortest step, 105 ms" in distributed
    assert "nvidia-b200" in distributed
    trust = text_of((html / "trust.html").read_text(encoding="utf-8"))
    assert "Identical code was called slower in 0 of 60 rows" in trust
    assert "<img src=x>.json SKIPPED is no JSON, or cut off" in trust
    assert "nvidia-b200 has no self-test on file" in trust
    assert "1.0 % SAME" in trust, "the floors are those of our classes"
    overview = text_of((html / "index.html").read_text(encoding="utf-8"))
    assert f"105 of 108 6 {hashes[-1][:8]} 2026-01-06 history" in overview
    assert overview.index("nvidia-h200") < overview.index("cpu-laptop"), "who measures most comes first"
    changes = text_of((html / "changes.html").read_text(encoding="utf-8"))
    assert f"5 slower {hashes[3][:8]} {SUBJECTS[3]} 2026-01-04" in changes
    assert "'triton_compiled') 325" in changes, "half as long again, and less what every commit gained"
    assert "histories without a change showed one in" in trust
    assert 'href="trust.html"' in (html / "history.html").read_text(encoding="utf-8")


def test_a_damaged_results_folder_costs_what_is_damaged_and_the_page_says_so(tmp_path: Path) -> None:
    hashes = make_project(tmp_path / "repo")
    results = tmp_path / "repo" / "perf" / "results"
    half, old, gone, lone = (results / H200 / f"{commit[:8]}-linked-py3.12.json" for commit in hashes[:4])
    alone = results / "laptop"
    alone.mkdir()
    (alone / "machine.json").write_text((results / H200 / "machine.json").read_text().replace(H200, "laptop"))
    (alone / lone.name).write_text(lone.read_text().replace(f'"machine": "{H200}"', '"machine": "laptop"'))
    half.write_text(half.read_text()[:500])
    old.write_text(re.sub(r'"version": 2}$', '"version": 1}', old.read_text()))
    elsewhere = gone.with_name(f"{'f' * 8}-linked-py3.12.json")
    elsewhere.write_text(gone.read_text().replace(hashes[2], "f" * 40))
    asv_publish(tmp_path / "repo", tmp_path / "html")
    overview = text_of((tmp_path / "html" / "index.html").read_text(encoding="utf-8"))
    assert f"105 of 108 4 {hashes[-1][:8]}" in overview, "four commits are left"
    assert f"{half.name} Error parsing JSON: Unterminated string" in overview
    assert f"{old.name} is stored in an old file format. Run `asv update` to update it." in overview
    assert f"{elsewhere.name} is of ffffffff, which no published branch has" in overview
    assert str(tmp_path) not in overview
    changes = text_of((tmp_path / "html" / "changes.html").read_text(encoding="utf-8"))
    assert "laptop No case has been measured at two commits yet" in changes


@pytest.mark.parametrize("machine_file", [b"{", b"\xff", b"[]", b"{}"])
def test_what_nobody_measured_and_damaged_records_cost_themselves_alone(tmp_path: Path, machine_file: bytes) -> None:
    """asv takes any JSON: over 1e308 it stands still, and shows code as HTML."""
    hashes = make_project(tmp_path / "repo")
    perf = tmp_path / "repo" / "perf"
    endless, no_text = (perf / "results" / H200 / f"{commit[:8]}-linked-py3.12.json" for commit in hashes[:2])
    document = json.loads(endless.read_text())
    row = next(iter(document["results"].values()))
    row[0][0] = 1e308
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

    nameless = perf / "results" / "cpu-laptop" / "machine.json"
    nameless.write_bytes(machine_file)

    said = asv_publish(tmp_path / "repo", tmp_path / "html")
    assert "cpu-laptop/machine.json" in said
    overview = text_of((tmp_path / "html" / "index.html").read_text(encoding="utf-8"))
    for damaged in (endless, no_text):
        assert damaged.name in said
        assert damaged.name in overview
    for records in (cut, other):
        assert f"{records.name[:8]}: its records cannot be read" in overview
    index = json.loads((tmp_path / "html" / "index.json").read_text())
    assert "<b>" not in index["benchmarks"]
    assert index["benchmarks"][name]["code"] == "&lt;img src=x onerror=alert(1)&gt;"


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

    from perf.asv_plugins.site import AttentionSite, TrustSite

    index = tmp_path / "index.html"
    index.write_text('</head><li id="nav-li-graphdisplay"><script src="https://cdn.example/x.js">')
    with pytest.raises(UserError, match=r"cdn\.example/x\.js.*manifest\.json does not know"):
        AttentionSite.publish(conf, None, {}, [], {})
    index.write_text("<html></html>")
    with pytest.raises(UserError, match=r"index\.html .*</head>"):
        TrustSite.publish(conf, None, {}, [], {})


def test_the_trust_page_exists_where_nothing_was_ever_measured(tmp_path: Path, conf: SimpleNamespace) -> None:
    from perf.asv_plugins.site import TrustSite

    shutil.copy(Path(asv.__file__).parent / "www" / "index.html", tmp_path)
    TrustSite.publish(conf, None, {}, [], {})
    assert "No machine has a self-test on file." in text_of((tmp_path / "trust.html").read_text(encoding="utf-8"))


def test_a_shallow_clone_is_no_empty_history(tmp_path: Path) -> None:
    """Without its commits a site would say that nothing was measured, and that nothing is worse."""
    whole, shallow = tmp_path / "whole", tmp_path / "shallow"
    make_project(whole)
    git(whole, "add", "-A")
    git(whole, "commit", "-q", "-m", "results")
    subprocess.run(["git", "clone", "-q", "--depth", "1", whole.as_uri(), str(shallow)], check=True)
    command = [sys.executable, "-m", "asv", "publish", "--no-pull", "--html-dir", str(tmp_path / "html")]
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, cwd=shallow, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode != 0
    assert "git fetch --unshallow" in done.stdout + done.stderr
    assert "Traceback" not in done.stderr
