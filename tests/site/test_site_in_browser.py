"""A site published by asv from made-up measurements, in a browser that reaches no other host."""

import itertools
import re
from typing import Any

import pytest

from perf.site.pages import PAGES
from tests.site import browser
from tests.site.publishing import SUBJECTS

OURS = [
    page.file.removesuffix(".html") for page in PAGES if page.file.endswith(".html") and page.file != "history.html"
]
HISTORY = "attention.FlashAttention.track_time"

pytestmark = [pytest.mark.browser, browser.needs_browser]


def _is_below(driver: Any, upper: str, lower: str) -> bool:
    ends = "return arguments[0].getBoundingClientRect().bottom <= arguments[1].getBoundingClientRect().top"
    return driver.execute_script(ends, *(driver.find_element("css selector", one) for one in (upper, lower)))


def test_from_the_grid_to_a_history_to_our_page_and_back_to_a_graph(site: str, driver: Any) -> None:
    browser.open_history(driver, site, HISTORY, at_least=len(SUBJECTS))
    assert _is_below(driver, "#main-graph .legend table", "#main-graph canvas"), "a legend covers curves"
    browser.open_page(driver, "attention")
    times = driver.find_elements("css selector", "table.cases tbody td a[href*='track_time']")
    assert times
    assert all(cell.text.split()[0].replace(".", "").isdigit() for cell in times)

    times[0].click()
    assert browser.plotted_points(driver, at_least=len(SUBJECTS)) == [len(SUBJECTS)], "one curve: ours"
    chosen = driver.find_elements("css selector", "#graphdisplay-navigation a.active")
    assert {"triton", "bfloat16", "nvidia-h200"} <= {button.text for button in chosen}
    browser.assert_stayed_home(driver, site)


def test_asvs_own_lists_work_from_the_vendored_libraries(site: str, driver: Any) -> None:
    driver.get(f"{site}history.html#/summarylist")
    browser.wait(driver, lambda _: driver.find_elements("css selector", "#summarylist-body th.asc"), "not sorted")
    written = "return [[2687000, 'bytes'], [512, 'bytes'], [0.5, 'seconds']].map((one) => $.asv.pretty_unit(...one))"
    assert driver.execute_script(written) == ["2.687MB", "512B", "500.000ms"]
    driver.get(f"{site}history.html#/regressions")
    browser.wait(driver, lambda _: driver.find_element("id", "regressions-body").text, "no regressions page")
    notes = driver.find_elements("css selector", "#regressions-display a[href='changes.html']")
    assert any(note.is_displayed() for note in notes), "asv's list is not ours"
    for width in (1300, 1600):
        browser.emulate(driver, width)
        assert _is_below(driver, "#nav", "#regressions-display"), f"the bar covers the list at {width} pixels"
    browser.assert_stayed_home(driver, site)


def test_peers_filters_and_sorting(site: str, driver: Any) -> None:
    driver.get(f"{site}attention.html")

    def visible(selector: str) -> list[Any]:
        return [element for element in driver.find_elements("css selector", selector) if element.is_displayed()]

    gpu, heads = "#nvidia-h200-attention-flashattention", "#nvidia-h200-attention-multiheadattention"
    assert [element.get_attribute("data-peer") for element in visible(f"{gpu} .maps")] == ["fastest"]
    driver.find_element("css selector", f"{gpu} input[value='reference']").click()
    assert [element.get_attribute("data-peer") for element in visible(f"{gpu} .maps")] == ["reference"]
    assert [element.get_attribute("data-peer") for element in visible(f"{heads} .maps")] == ["fastest"], "as it was"

    driver.find_element("css selector", f"{gpu} .filters select option[value='bfloat16']").click()
    rows = visible(f"{gpu} table.cases tbody tr")
    assert rows
    assert {row.find_elements("css selector", "td")[1].text for row in rows} == {"bfloat16"}
    assert re.fullmatch(rf"{len(rows)} of \d+ rows", driver.find_element("css selector", f"{gpu} [role=status]").text)

    head = next(heading for heading in visible(f"{gpu} table.cases thead th") if heading.text.startswith("time"))
    head.find_element("css selector", "button").click()
    assert head.get_attribute("aria-sort") == "ascending"
    shown = [
        float(row.find_element("css selector", "td:nth-of-type(4)").get_attribute("data-value"))
        for row in visible(f"{gpu} table.cases tbody tr")
    ]
    assert shown == sorted(shown)
    browser.assert_stayed_home(driver, site)


def test_the_trust_page_shows_every_row_and_runs_nothing_of_strangers(site: str, driver: Any) -> None:
    driver.get(f"{site}index.html")
    browser.open_page(driver, "trust")
    assert "<script>alert(1)</script>" in driver.find_element("css selector", "table.rows").text
    assert "<img src=x>.json" in driver.find_element("css selector", "table.left-out").text

    marks = driver.find_elements("css selector", ".chart g")
    places = sorted((mark.find_element("css selector", ".dot").rect for mark in marks), key=lambda place: place["x"])
    assert len(marks) == len(driver.find_elements("css selector", "table.rows tbody tr")) == 30
    assert all(left["x"] < right["x"] for left, right in itertools.pairwise(places)), "side by side"
    assert all(left["y"] >= right["y"] for left, right in itertools.pairwise(places)), "sorted, more is higher"

    driver.find_element("css selector", "select option[value='AMBIGUOUS']").click()
    rows = [row for row in driver.find_elements("css selector", "table.rows tbody tr") if row.is_displayed()]
    assert len(rows) == 3
    assert all("AMBIGUOUS" in row.text for row in rows)
    browser.assert_stayed_home(driver, site)


def test_the_overview_leads_from_a_verdict_to_the_history(site: str, driver: Any) -> None:
    driver.get(site)
    verdicts = driver.find_element("css selector", "#nvidia-h200 [aria-labelledby='nvidia-h200-gates'] table")
    assert "1 slower" in verdicts.text
    verdicts.find_element("css selector", "summary").click()
    assert "<script>alert(1)</script>" in verdicts.text
    driver.find_element(
        "css selector", "#nvidia-h200 a[href^='history.html#attention.FlashAttention.track_time?']"
    ).click()
    browser.plotted_points(driver, at_least=2)
    browser.assert_stayed_home(driver, site)


def test_an_address_of_asvs_graphs_from_before_the_overview_was_the_index_still_opens_them(
    site: str, driver: Any
) -> None:
    driver.get(f"{site}index.html#{HISTORY}")
    browser.plotted_points(driver, at_least=len(SUBJECTS))
    driver.get(f"{site}index.html#/summarylist")
    browser.wait(driver, lambda _: driver.find_elements("css selector", "#summarylist-body th.asc"), "not sorted")


def test_from_the_overview_to_the_commit_of_a_regression_in_two_clicks(site: str, driver: Any) -> None:
    driver.get(site)
    driver.find_element("partial link text", "5 slower").click()
    assert "changes.html#nvidia-h200-" in driver.current_url
    section = driver.find_element("css selector", ":target")
    assert SUBJECTS[3] in section.text
    assert "slower" in section.text
    case = section.find_element("partial link text", "attention.Leaderboard(16, 16384, 64, 'bfloat16', 'triton')")
    case.click()
    assert browser.plotted_points(driver, at_least=len(SUBJECTS)) == [len(SUBJECTS)]
    browser.assert_stayed_home(driver, site)


# axe takes a minute for what is alike
TWO_OF_EACH = """
for (const part of document.querySelectorAll("details")) part.open = true;
const kind = (one) => `${one.tagName} ${one.getAttribute("class")}`;
const kinds = (one) => [...new Set([one, ...one.querySelectorAll("*")].map(kind))].sort().join();
for (const parent of document.querySelectorAll("main, main :not(tr)")) {
  const seen = {};
  for (const child of [...parent.children])
    if ((seen[kinds(child)] = (seen[kinds(child)] || 0) + 1) > 2) child.remove();
}
"""


NAMED_WITHOUT_MACHINE = """
const text = (one) => one.getAttribute("aria-labelledby").split(" ").map((id) => document.getElementById(id).innerText);
return [...document.querySelectorAll(".machine section[aria-labelledby]")]
  .filter((one) => text(one)[0] !== text(one.closest(".machine"))[0]).map((one) => one.outerHTML);
"""


def test_axe_finds_no_violation(site: str, driver: Any) -> None:
    from axe_core_python.selenium import Axe

    for page in (*OURS, "history"):
        driver.get(f"{site}{page}.html")
        assert driver.execute_script(NAMED_WITHOUT_MACHINE) == [], f"{page}: not unique beside a second machine"
        driver.execute_script(TWO_OF_EACH)
        for scheme, width in (("light", 1300), ("dark", 390)):
            browser.emulate(driver, width, scheme)
            findings = Axe().run(driver, options={"resultTypes": ["violations"]})["violations"]
            assert not findings, [(page, scheme, one["id"], one["nodes"][0]["html"]) for one in findings]


def test_a_phone_scrolls_tables_not_the_page_and_no_request_leaves(site: str, driver: Any) -> None:
    browser.emulate(driver, 390)
    widths = {}
    for page in OURS:
        driver.get(f"{site}{page}.html")
        driver.execute_script("document.querySelectorAll('details').forEach((one) => { one.open = true; })")
        widths[page] = driver.execute_script("return document.documentElement.scrollWidth")
        assert driver.execute_script("return document.images.length") == 0, f"{page}: text became markup"
    assert max(widths.values()) <= 390, widths
    browser.assert_stayed_home(driver, site)


def test_a_status_beyond_the_edge_of_a_narrow_window_makes_no_row_tall(site: str, driver: Any) -> None:
    browser.emulate(driver, 700)
    driver.get(f"{site}changes.html")
    cells = driver.find_elements("css selector", ".changes tbody td:last-child:not(.number)")
    assert cells and min(cell.rect["width"] for cell in cells if cell.is_displayed()) >= 14 * 16


BROKEN = r"""
const broken = [], [selector, pattern] = arguments;
for (const title of document.querySelectorAll(selector)) {
  const walker = document.createTreeWalker(title, NodeFilter.SHOW_TEXT);
  while (walker.nextNode()) {
    if (walker.currentNode.parentElement.closest(".small, code")) continue; // .small: reasons below a name
    if (walker.currentNode.parentElement.matches("details:not([open])")) continue;
    for (const { index, 0: word } of walker.currentNode.data.matchAll(new RegExp(pattern, "gu"))) {
      const range = document.createRange();
      range.setStart(walker.currentNode, index);
      range.setEnd(walker.currentNode, index + word.length);
      if (new Set([...range.getClientRects()].map((one) => one.top)).size > 1) broken.push(title.innerText);
    }
  }
}
return broken;
"""


def test_a_phone_breaks_no_name_within_a_number(site: str, driver: Any) -> None:
    browser.emulate(driver, 390)
    for page in ("index", "changes", "compare"):
        driver.get(f"{site}{page}.html")
        browser.wait(driver, lambda _: driver.find_elements("css selector", "tbody th a"), "no names")
        driver.execute_script("document.querySelectorAll('details').forEach((one) => { one.open = true; })")
        assert driver.execute_script(BROKEN, "tbody th[scope='row']", r"[\w.]*\d[\w.]*") == [], page


def test_a_phone_breaks_no_word_in_a_table(site: str, driver: Any) -> None:
    browser.emulate(driver, 390)
    for page in OURS:
        driver.get(f"{site}{page}.html")
        assert driver.execute_script(BROKEN, "tbody td", r"\p{L}{2,24}") == [], page


@pytest.mark.parametrize("width", [700, 390])
def test_no_line_ends_between_a_headline_number_and_its_unit(site: str, driver: Any, width: int) -> None:
    browser.emulate(driver, width)
    for page in ("attention", "distributed"):
        driver.get(f"{site}{page}.html")
        lines = "return [...document.querySelectorAll('.summary strong')].map((one) => one.getClientRects().length)"
        assert set(driver.execute_script(lines)) == {1}, page


UNDER_A_NUMBER = """
return [...document.querySelectorAll(".share")].filter((cell) => {
  const style = getComputedStyle(cell), box = cell.getBoundingClientRect(), text = document.createRange();
  text.selectNodeContents(cell);
  const share = parseFloat(style.getPropertyValue("--share")), less = parseFloat(style.backgroundSize.split("- ")[1]);
  if (!box.width || !share || cell.dataset.value > 10) return false; // a made-up rate of a thousand ceilings
  const bar = parseFloat(style.backgroundPositionX) + ((box.width - less) * share) / 100;
  return !(box.left + bar <= text.getBoundingClientRect().left);
}).map((cell) => cell.outerHTML);
"""


@pytest.mark.parametrize("width", [1300, 390])
def test_no_bar_lies_under_its_number(site: str, driver: Any, width: int) -> None:
    browser.emulate(driver, width)
    for page in ("attention", "roofline"):
        driver.get(f"{site}{page}.html")
        assert driver.find_elements("css selector", ".share")
        assert driver.execute_script(UNDER_A_NUMBER) == []


SHARES = """
const rows = document.querySelectorAll("#nvidia-h200 table.every tbody tr:not([hidden])");
return [...rows].map((row) => Number(row.cells[1].dataset.value));
"""


def test_the_roofline_is_sorted_filtered_and_opened_by_keyboard(site: str, driver: Any) -> None:
    from selenium.webdriver.common.keys import Keys

    driver.get(f"{site}index.html")
    browser.open_page(driver, "roofline")
    shares = driver.execute_script(SHARES)
    driver.find_element("css selector", "#nvidia-h200 table.every thead th:nth-child(2) button").send_keys(Keys.ENTER)
    assert driver.execute_script(SHARES) == sorted(shares) != shares, "ours came first"
    whose = driver.find_elements("css selector", "#nvidia-h200 .filters select")[1]
    whose.send_keys("peer")
    peers = driver.execute_script(SHARES)
    assert 0 < len(peers) < len(shares)
    address = driver.current_url
    driver.get("about:blank")
    driver.get(address)
    assert driver.execute_script(SHARES) == peers, "a view is an address"
    driver.get(address.replace("whose=peer", "whose=nobody").replace("sort=1", "sort=99"))
    assert len(driver.execute_script(SHARES)) == len(shares), "an address of another day shows everything"
    driver.get(address)

    row = driver.find_element("css selector", "#nvidia-h200 table.every tbody tr:not([hidden]) th a")
    mark = driver.find_element("css selector", "#nvidia-h200 .chart svg a").get_dom_attribute("href")
    row.send_keys(Keys.ENTER)
    browser.plotted_points(driver, at_least=len(SUBJECTS))
    driver.get(f"{site}{mark}")
    browser.plotted_points(driver, at_least=len(SUBJECTS))
    browser.assert_stayed_home(driver, site)


def test_the_bucket_sweep_is_drawn_and_its_tables_are_sorted_by_keyboard(site: str, driver: Any) -> None:
    from selenium.webdriver.common.keys import Keys

    driver.get(f"{site}index.html")
    browser.open_page(driver, "distributed")
    marks = driver.find_elements("css selector", "#nvidia-h200 .chart .dot.ours")
    curve = driver.find_element("css selector", "#nvidia-h200 .chart polyline").rect
    assert len(marks) == 5
    assert all(mark.rect["y"] <= curve["y"] + curve["height"] for mark in marks), "no mark lies below the curve's least"

    table = driver.find_element("css selector", "#nvidia-h200-strategies ~ .scroll table")
    exposed = next(
        heading for heading in table.find_elements("css selector", "thead th") if heading.text.startswith("exposed")
    )
    exposed.find_element("css selector", "button").send_keys(Keys.ENTER)
    assert exposed.get_attribute("aria-sort") == "ascending"
    names = [heading.text for heading in table.find_elements("css selector", "tbody th")]
    assert names == ["torch", "bucketed", "overlapped", "flat", "naive", "<img src=x onerror=alert(1)>"]

    browser.assert_stayed_home(driver, site)
