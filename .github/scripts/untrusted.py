"""What the GPU machine hands over, taken as a stranger's: a report by its schema, Markdown without what it could do."""

import json
import re
import sys
from pathlib import Path
from typing import Any

from github import RefusedError
from schema import problem

CUT = "\u200b"
TAGS = "details|summary|sub|sup|br|b|i|code|pre|table|thead|tbody|tr|th|td"


def read_report(text: str | bytes, name: str) -> dict[str, Any]:
    """The report of a gate in the file of this name. Raises RefusedError unless it keeps to `report.schema.json`."""
    try:
        document = json.loads(text)
    except (ValueError, RecursionError):
        raise RefusedError(f"{name} is not JSON") from None
    schema = json.loads(Path(__file__).with_name("report.schema.json").read_text())
    if wrong := problem(document, schema):
        raise RefusedError(f"{name} does not keep to its schema: {wrong}")
    return document


def harmless(comment: str, repository: str) -> str:
    """The comment without what could call people, load pictures, lead elsewhere or pass for another comment.

    Markdown's own tables, emphasis and code stay; so do character references, links into this repository, and tags
    that only lay out. A mark that GitHub would act on keeps its look and is cut off by a space of no width, which also
    helps where the mark is written as a reference: GitHub looks for mentions in the text that comes out.
    """
    comment = "".join(char for char in comment if char.isprintable() or char == "\n")
    comment = re.sub(r"&(?!(?:lt|gt|amp|quot|#[0-9]{1,6});)", "&amp;", comment)
    comment = re.sub(r"&#([0-9]{1,6});", _printable, comment)
    comment = re.sub(rf"(?i)<(?!/?(?:{TAGS})(?: open)?\s*/?>)", "&lt;", comment)
    comment = re.sub(r"!(?=\[)", "&#33;", comment)
    kept = _own_link(repository)
    apart = [part if kept.fullmatch(part) else _unlinked(part) for part in re.split(f"({kept.pattern})", comment)]
    comment = "".join(apart)
    comment = re.sub(r"(@|&#0*64;)", rf"\1{CUT}", comment)
    return re.sub(r"(?i)(\bGH-|\bGH&#0*45;|&#0*35;|(?<!&)#)(?=[0-9&])", rf"\1{CUT}", comment)


def _own_link(repository: str) -> re.Pattern[str]:
    """[label](address), where the address cannot climb out of the repository by a dot segment, or is on the page."""
    path = r"(?:[A-Za-z0-9_/#-]|\.(?!\.)|%(?!2[eE]))*"
    return re.compile(rf"\[[^\[\]\\`<>\n]*\]\((?:https://github\.com/{re.escape(repository)}/{path}|#[A-Za-z0-9_-]*)\)")


def _unlinked(text: str) -> str:
    """Without what makes a link in any place of Markdown: "](", "][", "]:", or an address by itself."""
    text = re.sub(r"\](?=[(\[:])", f"]{CUT}", text)
    return re.sub(r"(?i)(https?|ftp|mailto|xmpp|www)(?=[:.])", rf"\1{CUT}", text)


def _printable(reference: re.Match[str]) -> str:
    number = int(reference[1])
    return reference[0] if number <= sys.maxunicode and chr(number).isprintable() else ""
