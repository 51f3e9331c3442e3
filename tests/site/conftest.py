"""One published site and one browser for all tests of a worker."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.once import Once
from tests.site import browser
from tests.site.publishing import publish_project


@pytest.fixture(scope="session")
def published(once: Once) -> tuple[Path, list[str]]:
    """Folder of the site and the hashes of its commits."""
    return once("site", publish_project)


@pytest.fixture(scope="session")
def site(published: tuple[Path, list[str]]) -> Iterator[str]:
    """Address of the site."""
    with browser.served(published[0]) as address:
        yield address


@pytest.fixture(scope="session")
def _chromium(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    with browser.chromium(tmp_path_factory.mktemp("profile")) as opened:
        yield opened


@pytest.fixture
def driver(_chromium: Any) -> Any:
    """A browser with empty logs, 1280 pixels wide and light."""
    _chromium.get("about:blank")
    browser.emulate(_chromium, 1280)
    for log in ("performance", "browser"):
        _chromium.get_log(log)
    return _chromium
