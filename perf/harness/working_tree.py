"""The checkout that this suite runs from, for commands that measure it instead of a commit."""

import os
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
RECORDS = ROOT / "perf" / "records"


def make_importable() -> None:
    """Put the working tree before all installed packages on the path of child processes.

    The children's `python -P` excludes the working directory but not `PYTHONPATH`.
    """
    others = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    os.environ["PYTHONPATH"] = os.pathsep.join([str(ROOT), *(path for path in others if path and path != str(ROOT))])
