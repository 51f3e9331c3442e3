"""Pages as a reader sees them, without asv and without a browser."""

import html
import re


def text_of(page: str) -> str:
    """What a reader sees, in one line."""
    body = re.sub(r"<(style|script)>.*?</\1>|<wbr>", "", page, flags=re.DOTALL)
    return " ".join(html.unescape(re.sub(r"<[^>]+>", " ", body)).split())
