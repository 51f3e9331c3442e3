"""The page that compares two commits, in a browser, and the files that it fetches."""

import json
import math
from pathlib import Path
from typing import Any

import pytest

from perf.site.compare import rows
from tests.site import browser


def compared(html: Path) -> dict[str, Any]:
    return {path.stem: json.loads(path.read_text()) for path in (html / "compare" / "nvidia-h200").glob("*.json")}


def test_each_commit_with_records_has_a_file_with_finite_numbers(published: tuple[Path, list[str]]) -> None:
    html, commits = published
    files = compared(html)
    assert len(files) > 1 and files.keys() <= set(commits)
    every = [case for one in files.values() for found in one["classes"].values() for case in found["cases"]]
    times = [seconds for _, seconds, *_ in every if seconds is not None]
    assert times and all(map(math.isfinite, times))


@pytest.mark.browser
@browser.needs_browser
def test_two_commits_are_chosen_by_the_address_and_by_hand(published: Any, site: str, driver: Any) -> None:
    html, commits = published
    first, *_, last = [one for one in commits if one in compared(html)]
    driver.get(f"{site}compare.html?machine=nvidia-h200&base={first}&head={last}")
    rows = "return [...document.querySelectorAll('table tbody tr')].filter((row) => row.offsetParent).length"
    browser.wait(driver, lambda _: driver.execute_script(rows), "no rows")
    every = driver.execute_script(rows)
    assert first[:8] in driver.find_element("id", "base-made").text
    assert last[:8] in driver.find_element("id", "head-made").text

    driver.find_element("id", "filter").send_keys("triton")
    browser.wait(driver, lambda _: 0 < driver.execute_script(rows) < every, "the filter shows all")
    shown = driver.find_elements("css selector", "table tbody tr th")
    assert all("triton" in cell.text for cell in shown if cell.is_displayed())

    others = driver.find_elements("css selector", "#base option")
    next(one for one in others if not one.is_selected()).click()
    browser.wait(driver, lambda _: first[:8] not in driver.find_element("id", "base-made").text, "still it")
    browser.assert_stayed_home(driver, site)


@pytest.mark.browser
@browser.needs_browser
def test_a_commit_does_not_differ_from_itself(published: Any, site: str, driver: Any) -> None:
    cases = {
        commit: [case for of in one["classes"].values() for case in of["cases"]]
        for commit, one in compared(published[0]).items()
    }
    commit = next(one for one, some in cases.items() if any(not is_ours for *_, is_ours in some))
    driver.get(f"{site}compare.html?machine=nvidia-h200&base={commit}&head={commit}")
    counts = browser.wait(driver, lambda _: driver.find_element("id", "counts").text, "no counts")
    assert "0 slower, 0 faster" in counts and "No case without project code differs." in counts


@pytest.mark.parametrize(
    ("cases", "pair"),
    [
        (["abcd", "abcd"], (1, 0)),
        (["abcd", "a", "abc"], (1, 0)),
        (["abcd", "aefg", "abc"], (2, 0)),
        (["x", "abcd", "abce"], (2, 1)),
        (["a", "b", "c"], (1, 0)),
        (["", "", "ab", "ab"], (3, 2)),
    ],
)
def test_the_newest_pair_with_cases_in_common_stands_first(cases: list[str], pair: tuple[int, int]) -> None:
    assert rows.pair({str(place): frozenset(some) for place, some in enumerate(cases)}) == pair


def test_rows_without_project_code_or_time_are_no_reason_to_stand_first() -> None:
    def of(*cases: tuple[str, float | None, bool]) -> dict[str, Any]:
        return {"classes": {"a.Class": {"cases": [[[name], time, 0.1, 8, 0, "", ours] for name, time, ours in cases]}}}

    control, untimed, ours = ("'sdpa'", 1.0, False), ("'slow'", None, True), ("'triton'", 1.0, True)
    files = [of(control, untimed), of(control, ours), of(control), of(control, untimed, ours)]
    cases = {str(place): rows.timed(one) for place, one in enumerate(files)}
    assert cases["1"] == {"a.Class('triton')"}
    assert rows.pair(cases) == (3, 1)


@pytest.mark.browser
@browser.needs_browser
def test_an_unknown_machine_is_named(site: str, driver: Any) -> None:
    driver.get(f"{site}compare.html?machine=nvidia-h300")
    browser.wait(driver, lambda _: driver.find_elements("css selector", "table tbody tr"), "no rows")
    assert "nvidia-h300" in driver.find_element("id", "trouble").text
    driver.get(f"{site}compare.html?machine=nvidia-h200")
    browser.wait(driver, lambda _: driver.find_elements("css selector", "table tbody tr"), "no rows")
    assert not driver.find_element("id", "trouble").text
