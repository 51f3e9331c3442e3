"""The checkout that this suite runs from, for what measures it rather than a commit."""

import os
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def make_importable() -> None:
    """Put the working tree first on the path of child processes, whatever is installed.

    `python -P` keeps the working directory off the path, and leaves `PYTHONPATH` alone.
    """
    others = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    os.environ["PYTHONPATH"] = os.pathsep.join([str(ROOT), *(path for path in others if path and path != str(ROOT))])
