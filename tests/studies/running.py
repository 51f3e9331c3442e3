"""Run a study as its users do."""

import json
from pathlib import Path
from typing import Any

from click.testing import CliRunner, Result

from perf.__main__ import main


def invoke(name: str, *arguments: str) -> Result:
    """Run the study of that name, whatever comes of it."""
    return CliRunner().invoke(main, ["study", name, *arguments])


def run_study(folder: Path, name: str, *arguments: str, document: str = "") -> tuple[list[dict[str, Any]], str]:
    """Run a study that succeeds; return the rows of its document, by default of its own name, and what it prints."""
    done = invoke(name, *arguments, "--out", str(folder))
    assert done.exit_code == 0, done.output
    return json.loads((folder / f"{document or name}.json").read_text())["rows"], done.output
