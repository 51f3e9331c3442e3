"""From the Markdown document to HTML, LaTeX tables and PDF, by pandoc and typst."""

import re
import tempfile
from pathlib import Path
from types import ModuleType
from typing import Any

import click

from perf.site.pages import FOLDER as SITE
from perf.writeup.markdown import tables_alone

FOLDER = Path(__file__).parent

# What a row says is escaped where it enters the document. Here nothing but GitHub's plain forms is read: no raw HTML,
# no formulas, no bare addresses that become links.
READ = "gfm-raw_html-tex_math_dollars-tex_math_gfm-emoji-autolink_bare_uris-yaml_metadata_block-footnotes-alerts"
HOW_TO_INSTALL = "pip install -e '.[report]'"
NO_ICON = '<link rel="icon" href="data:,">'
"""Without it a browser requests /favicon.ico, which the page does not carry."""

TABLES_HEAD = (
    "% For \\input, with XeLaTeX or LuaLaTeX: \\usepackage{booktabs,longtable,array,calc} \\newcounter{none}\n"
)


def libraries() -> tuple[ModuleType, ModuleType]:
    """pypandoc and typst. Raises `click.ClickException` with one line where one of them is missing."""
    try:
        import pypandoc
        import typst

        pypandoc.get_pandoc_version()
    except (ImportError, OSError) as error:
        missing = getattr(error, "name", None) or "pandoc"
        raise click.ClickException(f"the report needs {missing}, which is not installed: {HOW_TO_INSTALL}") from None
    return pypandoc, typst


def html(text: str, folder: Path) -> str:
    """One page that needs no other file; `folder` is where the document's figures lie."""
    styles = [f"--css={path}" for path in (SITE / "templates/site.css", FOLDER / "document.css")]
    shaped = ["--standalone", "--embed-resources", "--toc", "--toc-depth=1", "--metadata=lang:en"]
    options = [*shaped, f"--resource-path={folder}", f"--variable=header-includes:{NO_ICON}", *styles]
    page = _pandoc(text, "html5", options)
    for tag, of in (("table", ""), ("p", "<img ")):  # they scroll on a narrow screen, by keyboard too
        page = page.replace(f"<{tag}>{of}", f'<{tag} tabindex="0">{of}')
    return page.replace("</nav>", "</nav>\n<main>", 1).replace("</body>", "</main>\n</body>")


def latex_tables(text: str) -> str:
    """The tables, under the headings that they have in the document."""
    return TABLES_HEAD + _pandoc(tables_alone(text), "latex", [])


def pdf(text: str, folder: Path) -> bytes:
    """Pages that anybody can print; `folder` is where the document's figures lie."""
    return pages(text, folder, format="pdf")


def pages(text: str, folder: Path, **options: Any) -> Any:
    """The pages by typst's own options: a PDF, or with format="png" a list of pictures."""
    _, typst = libraries()
    made = _pandoc(text, "typst", ["--standalone", f"--template={FOLDER / 'document.typ'}"])
    with tempfile.NamedTemporaryFile("w", suffix=".typ", dir=folder, encoding="utf-8") as file:
        file.write(made)
        file.flush()
        # Fonts that come with typst alone: the same pages on every machine.
        try:
            return typst.compile(file.name, root=str(folder), ignore_system_fonts=True, **options)
        except RuntimeError as error:
            raise click.ClickException(f"typst made no PDF: {' '.join(str(error).split())}") from None


def _pandoc(text: str, to: str, options: list[str]) -> str:
    pypandoc, _ = libraries()
    text = re.sub(r"(?<=\d) (?=%)", "\u00a0", text)  # no line ends between a number and its per cent
    # The first heading is the title. Nothing is wrapped, and no column has a width by the number of its characters.
    shaped = ["--shift-heading-level-by=-1", "--wrap=none", "--columns=100000"]
    try:
        return pypandoc.convert_text(text, to, READ, extra_args=[*shaped, *options], sandbox=False)
    except RuntimeError as error:
        said = str(error).strip().splitlines()
        raise click.ClickException(f"pandoc made no {to}: {said[-1] if said else 'it says nothing'}") from None
