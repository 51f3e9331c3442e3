"""Files that somebody may read while they are written."""

from pathlib import Path

import click


def write_aside(path: Path, text: str) -> None:
    """Write beside, then rename: nobody sees half a file. Raises `click.ClickException` with one line if it fails."""
    aside = path.with_name(path.name + ".tmp")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        aside.write_text(text, encoding="utf-8")
        aside.replace(path)
    except OSError as error:
        raise click.ClickException(f"{path} cannot be written: {error.strerror}") from None
