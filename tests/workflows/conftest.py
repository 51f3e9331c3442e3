from collections.abc import Iterator

import pytest

from tests.workflows.scripts import GitHub


@pytest.fixture
def github() -> Iterator[GitHub]:
    server = GitHub()
    yield server
    server.close()
