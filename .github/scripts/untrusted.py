"""Treat what the GPU machine wrote as untrusted: validate reports, and defuse Markdown before it is posted."""

import json
import re
import sys

from github import COMMIT, RefusedError, shown

from perf.forms import parsed
from perf.gate.verdicts import Report

CUT = "\u200b"
TAGS = "details|summary|sub|sup|br|b|i|code|pre|table|thead|tbody|tr|th|td"


def read_report(text: str | bytes, name: str) -> Report:
    """Parse the report of a gate. Raises RefusedError, with `name`, unless all of it is of its type."""
    try:
        document = json.loads(text)
    except (ValueError, RecursionError):
        raise RefusedError(f"{name} is not JSON") from None
    try:
        report = parsed(Report, document)
    except ValueError as error:
        raise RefusedError(f"{name} is not the report of a gate: {shown(str(error))}") from None
    for arm in (report.base, report.head):
        if not (isinstance(commit := arm.get("commit"), str) and COMMIT.fullmatch(commit)):
            raise RefusedError(f"{name} is of commit {shown(commit)}; allowed: 40 hexadecimal digits")
    return report


def harmless(comment: str, repository: str) -> str:
    """Defuse Markdown: no mentions, no images, no links out of the repository, no hidden comments.

    Tables, emphasis, code, character references, links into this repository and layout tags stay. A character that
    GitHub would act on keeps its look and is followed by a zero-width space. That also works where the character is
    written as a reference, because GitHub looks for mentions in the rendered text.
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
    """Match [label](address) where the address is on the page, or in the repository and without dot segments."""
    path = r"(?:/(?!\.{1,2}[/#)])|[A-Za-z0-9_#.-]|%(?!2[eE]))*"
    own = rf"https://github\.com/{re.escape(repository)}(?=/){path}"
    return re.compile(rf"\[[^\[\]\\`<>\n]*\]\((?:{own}|#[A-Za-z0-9_-]*)\)")


def _unlinked(text: str) -> str:
    """Cut everything that starts a link in Markdown: "](", "][", "]:", and bare addresses."""
    text = re.sub(r"\](?=[(\[:])", f"]{CUT}", text)
    return re.sub(r"(?i)(https?|ftp|mailto|xmpp|www)(?=[:.])", rf"\1{CUT}", text)


def _printable(reference: re.Match[str]) -> str:
    number = int(reference[1])
    return reference[0] if number <= sys.maxunicode and chr(number).isprintable() else ""
