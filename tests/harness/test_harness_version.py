"""The harness version fixes a number's meaning: code of perf/harness does not change without its digest."""

import hashlib
from pathlib import Path

from perf import harness

FOLDER = Path(harness.__file__).parent


def code_digest() -> str:
    """Digest every module except the package's own, without blank lines and comments."""
    digest = hashlib.sha256()
    for path in sorted(FOLDER.rglob("*.py")):
        if path == FOLDER / "__init__.py":
            continue
        lines = [line.rstrip() for line in path.read_text().splitlines()]
        code = "\n".join(line for line in lines if line and not line.lstrip().startswith("#"))
        digest.update(f"{path.relative_to(FOLDER).as_posix()}\0{code}\0".encode())
    return digest.hexdigest()[:16]


def test_the_harness_does_not_change_without_its_version():
    assert code_digest() == harness.HARNESS_DIGEST, (
        f'perf/harness changed: set HARNESS_DIGEST = "{code_digest()}" in perf/harness/__init__.py, and bump '
        "HARNESS_VERSION there unless you are sure that no number can have moved"
    )
