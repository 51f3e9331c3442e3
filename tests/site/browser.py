"""A browser that can reach this machine only, and the questions that we ask a published site."""

import functools
import json
import shutil
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

PATIENCE_S = 200  # no longer than pytest has
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
DRIVER = shutil.which("chromedriver")

needs_browser = pytest.mark.skipif(
    CHROMIUM is None or DRIVER is None, reason="needs Chromium and chromedriver on the PATH"
)

# Only this page's graph: asv has no handle on the plot, but flot leaves it with the element.
_POINTS = """
const plot = window.jQuery && jQuery('#main-graph').data('plot');
return plot ? plot.getData().map((s) => s.data.filter((p) => p[1] !== null).length) : [];
"""
_INK = """
const canvas = document.querySelector('#main-graph canvas.flot-base');
const pixels = canvas.getContext('2d').getImageData(0, 0, canvas.width, canvas.height).data;
return pixels.some((value) => value !== 0);
"""


class _Quiet(SimpleHTTPRequestHandler):
    def log_message(self, *args: Any) -> None:
        """Say nothing: requests are read from the browser's log."""


@contextmanager
def served(directory: Path) -> Iterator[str]:
    """The address of a web server for a folder, on a free port of this machine."""
    handler = functools.partial(_Quiet, directory=str(directory))
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))  # shutdown waits for the next poll
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}/"
        finally:
            server.shutdown()
            thread.join()


@contextmanager
def chromium(profile: Path) -> Iterator[Any]:
    """A driver whose every host name but this machine's fails to resolve, with its logs switched on."""
    from selenium import webdriver
    from selenium.webdriver.chrome.service import Service

    options = webdriver.ChromeOptions()
    options.binary_location = str(CHROMIUM)
    for argument in (
        "--headless=new",
        "--no-sandbox",
        "--disable-gpu",
        "--disable-dev-shm-usage",
        "--disable-quic",
        "--no-first-run",
        "--disable-background-networking",
        "--disable-component-update",
        "--disable-sync",
        "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1",
        f"--user-data-dir={profile}",
        "--window-size=1280,900",
    ):
        options.add_argument(argument)
    options.set_capability("goog:loggingPrefs", {"performance": "ALL", "browser": "ALL"})
    driver = webdriver.Chrome(options=options, service=Service(DRIVER))
    try:
        driver.set_script_timeout(PATIENCE_S)
        emulate(driver, 1280)
        yield driver
    finally:
        driver.quit()


def emulate(driver: Any, width: int, scheme: str = "light") -> None:
    """Set width and colour scheme; below 500 pixels the device is a phone."""
    metrics = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": width < 500}
    driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)
    media = {"features": [{"name": "prefers-color-scheme", "value": scheme}]}
    driver.execute_cdp_cmd("Emulation.setEmulatedMedia", media)


def wait(driver: Any, condition: Any, message: str) -> Any:
    from selenium.webdriver.support.ui import WebDriverWait

    return WebDriverWait(driver, PATIENCE_S, poll_frequency=0.05).until(condition, message)


def plotted_points(driver: Any, at_least: int) -> list[int]:
    """Points per curve of asv's graph, once one has this many; a drawn canvas goes without saying."""

    def enough(_: Any) -> list[int] | None:
        found = driver.execute_script(_POINTS)
        return found if max(found, default=0) >= at_least else None

    found = wait(driver, enough, f"no curve of {at_least} points at {driver.current_url}")
    assert driver.execute_script(_INK), "the graph's canvas is empty"
    return found


def open_history(driver: Any, site: str, benchmark: str, at_least: int) -> list[int]:
    """From asv's grid to a benchmark's graph, by its link in the grid; points per curve."""
    driver.get(f"{site}history.html")
    cell = wait(
        driver,
        lambda _: driver.find_elements("css selector", f'#summarygrid-display a[href*="{benchmark}"]'),
        f"asv's benchmark grid does not show {benchmark}",
    )[0]
    driver.get(cell.get_attribute("href"))
    return plotted_points(driver, at_least)


def open_page(driver: Any, name: str) -> None:
    """From asv's page to one of ours, by the link in the navigation bar."""
    link = f"nav a[href='{name}.html']"
    wait(driver, lambda _: driver.find_elements("css selector", link), f"no link to {name}.html")
    driver.find_element("css selector", link).click()
    wait(driver, lambda _: driver.find_elements("css selector", "main table"), f"{name}.html has no table")


def assert_stayed_home(driver: Any, site: str) -> None:
    """Nothing was asked of any other host, nothing failed to load, and the console has no error."""
    host = urlsplit(site).netloc
    for entry in driver.get_log("performance"):
        message = json.loads(entry["message"])["message"]
        if message["method"] == "Network.requestWillBeSent":
            url = urlsplit(message["params"]["request"]["url"])
            if not url.scheme.startswith(("data", "blob", "about", "chrome")):  # chrome-untrusted: its new tab's parts
                assert url.netloc == host, f"the page asked {url.netloc} for {url.path}"
        elif message["method"] == "Network.responseReceived":
            response = message["params"]["response"]
            assert response["status"] < 400, f"{response['status']}: {response['url']}"
    errors = [entry for entry in driver.get_log("browser") if entry["level"] == "SEVERE"]
    assert not errors, errors
