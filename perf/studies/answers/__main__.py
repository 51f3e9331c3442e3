"""`python -m perf.studies.answers`: keeps the tables of a folder's README as its rows have them."""

from pathlib import Path

import click

from perf.studies.answers.page import FOLDER, documents, rewritten


@click.command()
@click.argument("folder", default=FOLDER, type=click.Path(exists=True, file_okay=False, path_type=Path))
def main(folder: Path) -> None:
    """Make the marked tables of FOLDER/README.md anew from the rows beside it."""
    path = folder / "README.md"
    before = path.read_text()
    try:
        after = rewritten(before, documents(folder))
    except ValueError as error:
        raise click.ClickException(str(error)) from None
    path.write_text(after)
    click.echo(f"{path.name}: {'unchanged' if after == before else 'rewritten'}")


if __name__ == "__main__":
    main()
