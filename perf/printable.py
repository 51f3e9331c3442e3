"""Untrusted text (commit subjects, errors, names in files) made safe for a terminal.

Escape sequences would move the cursor, hide lines or write to the clipboard.
"""


def printable(text: str) -> str:
    """Replace every unprintable character by a space: control characters, line ends, changes of direction."""
    return "".join(char if char.isprintable() else " " for char in text)


def printable_lines(text: str) -> str:
    """Apply `printable` to each line and keep the line ends."""
    return "\n".join(map(printable, text.splitlines()))


def collapsed(text: str) -> str:
    """Apply `printable` and join the words by single spaces."""
    return " ".join(printable(text).split())


def shortened(text: str, max_length: int = 200) -> str:
    """Apply `collapsed` and cut the line at `max_length`: a commit's subject may have 10,000 characters."""
    line = collapsed(text)
    return line if len(line) <= max_length else f"{line[: max_length - 1]}…"
