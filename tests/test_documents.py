"""What the documents link to exists."""

import re
from pathlib import Path
from urllib.parse import unquote

import pytest

from tests.throwaway import ROOT

FOLDERS = "*.md", "docs/*.md", "cs336_systems/**/*.md", "perf/records/*.md", "perf/studies/results/*/*.md"
DOCUMENTS = [path for pattern in FOLDERS for path in sorted(ROOT.glob(pattern))]


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_linked_files_exist(document: Path) -> None:
    text = re.sub(r"```.*?```", "", document.read_text(encoding="utf-8"), flags=re.S)
    targets = [unquote(target).partition("#")[0] for target in re.findall(r"\]\(([^)\s]+)\)", text)]
    files = {target for target in targets if target and "://" not in target}
    assert {file for file in files if not (document.parent / file).exists()} == set()


def test_documents_are_found() -> None:
    assert len(DOCUMENTS) >= 10
