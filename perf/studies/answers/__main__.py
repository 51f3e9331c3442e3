"""`python -m perf.studies.answers`: keeps the tables of a folder's README as its rows have them."""

import os
from pathlib import Path

import click

from perf.studies.answers.page import FOLDER, documents, readmes, rewritten
from perf.studies.on_file import NotOnFile


@click.command()
@click.argument("folder", default=FOLDER, type=click.Path(exists=True, file_okay=False, path_type=Path))
def main(folder: Path) -> None:
    """Make the marked tables of FOLDER/README.md anew from the rows beside it; by default of README.md too."""
    found = documents(folder)
    for path in readmes(folder):
        before = path.read_text(encoding="utf-8")
        try:
            after = rewritten(before, found)
        except (ValueError, NotOnFile) as error:
            raise click.ClickException(str(error)) from None
        path.write_text(after, encoding="utf-8")
        click.echo(f"{os.path.relpath(path, folder)}: {'unchanged' if after == before else 'rewritten'}")


if __name__ == "__main__":
    main()
