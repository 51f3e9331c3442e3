"""The site of this repository's own committed results: a history, and numbers on our page."""

import json
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.site import browser
from tests.site.publishing import ROOT, asv_publish

COMMITS = 2
HISTORY = "attention.FlashAttention.track_time"
VISIBLE_TIMES = """
const times = document.querySelectorAll("table.cases tbody td a[href*='FlashAttention.track_time']");
return [...times].filter((one) => one.checkVisibility()).map((one) => one.innerText);
"""
pytestmark = [pytest.mark.browser, browser.needs_browser]


def _skip_without_history() -> None:
    done = subprocess.run(
        ["git", "rev-parse", "--is-shallow-repository"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    if done.stdout.strip() != "false":
        pytest.skip("needs the full git history: this is a shallow clone, or no clone at all")
    measured = {
        machine.name: len(list(machine.glob("[0-9a-f]*-*.json")))
        for machine in (ROOT / "perf" / "results").glob("*h200*")
    }
    if max(measured.values(), default=0) < COMMITS:
        pytest.skip(f"perf/results has no H200 with {COMMITS} commits yet: {measured or 'none'}")


def _newest_of_head(folder: Path) -> Path:
    """This repository's configuration, of the commit that is checked out: a clone of a pull request has no main.

    Of the history that is looked at, the newest commits, and whatever else is on file of H200s;
    tests/site/test_loading.py reads every result and record.
    """
    from asv import util

    configuration = util.load_json(str(ROOT / "asv.conf.json"), js_comments=True)
    committed, results = ROOT / configuration["results_dir"], folder / "perf" / "results"
    shutil.copytree(committed, results, ignore=shutil.ignore_patterns("*h100*"))
    for machine in filter(Path.is_dir, results.iterdir()):
        documents = {path: json.loads(path.read_text()) for path in machine.glob("[0-9a-f]*-*.json")}
        of_history = [path for path, document in documents.items() if HISTORY in document["results"]]
        for path in sorted(of_history, key=lambda path: documents[path]["date"])[: -COMMITS - 1]:
            del documents[path]
            path.unlink()
        records = results.parent / "records" / machine.name
        records.mkdir(parents=True)
        for commit in {document["commit_hash"] for document in documents.values()}:
            of_commit = committed.parent / "records" / machine.name / f"{commit}.jsonl.gz"
            (records / of_commit.name).symlink_to(of_commit)
    changed = {"branches": ["HEAD"], "repo": str(ROOT), "results_dir": str(results)}
    (folder / "asv.conf.json").write_text(json.dumps(configuration | changed))
    return folder


def test_the_committed_results_make_a_history_and_our_page(tmp_path: Path, driver: Any) -> None:
    _skip_without_history()
    asv_publish(_newest_of_head(tmp_path), tmp_path / "html")
    with browser.served(tmp_path / "html") as site:
        driver.get(f"{site}index.html")
        browser.open_page(driver, "attention")
        times = driver.execute_script(VISIBLE_TIMES)
        assert times, "our page has no time"
        assert all(time.split()[-1] in ("µs", "ms", "s") for time in times)
        driver.execute_script("document.querySelectorAll('details.past').forEach((one) => { one.open = true; });")
        of_the_set = (
            "[href*='attention.FlashAttention.track_time'][href*='p-seq_len=8192'][href*='p-d=64'][href*=bfloat16]"
        )
        pictures = driver.find_elements("css selector", f".history a.card{of_the_set}")
        assert pictures, "our page has no history"
        pictures[-1].click()
        browser.plotted_points(driver, at_least=COMMITS)
        browser.open_page(driver, "step")
        bars = driver.find_elements("css selector", "table.cases .parts")
        assert bars, "no step of a model"
        assert all(abs(sum(part.rect["width"] for part in _parts(bar)) - bar.rect["width"]) < 4 for bar in bars[:8])
        driver.find_element("css selector", "table.cases a[href*='transformer.Transformer.track_time']").click()
        browser.plotted_points(driver, at_least=1)
        browser.open_page(driver, "roofline")
        of_a_gpu = driver.find_element("css selector", ".chart:has(a[href*='attention.FlashAttention.track_time'])")
        marks = of_a_gpu.find_elements("css selector", "a[href*='track_time'] .dot")
        assert len(marks) > 100, "our roofline has no marks"
        roofs = of_a_gpu.find_elements("css selector", ".roof")
        assert all(roof.rect["width"] > 50 for roof in roofs) and len(roofs) == 3, "memory's, bfloat16's, float32's"
        assert min(mark.rect["y"] for mark in marks[:50]) >= min(roof.rect["y"] for roof in roofs), "above the roof"
        histories = driver.find_elements(
            "css selector", "table.cases a.spark[href*='attention.FlashAttention.track_time']"
        )
        assert histories, "no class has a history of its share of the ceiling"
        histories[0].send_keys("\n")
        browser.plotted_points(driver, at_least=COMMITS)
        browser.open_page(driver, "roofline")
        driver.find_element("link text", "Distributed").click()
        browser.wait(driver, lambda _: driver.title.startswith("Distributed"), "no page about several ranks")
        assert "nvidia-h200" in driver.find_element("css selector", "main").text
        browser.assert_stayed_home(driver, site)


def _parts(bar: Any) -> list[Any]:
    return bar.find_elements("css selector", "span")
