"""Text of strangers (commit subjects, failures, names in files) for a terminal: escape sequences would move its cursor,
hide lines or write to its clipboard."""


def printable(text: str) -> str:
    """On one line, with a space for every character that is none to look at, line ends and directions among them."""
    return "".join(char if char.isprintable() else " " for char in text)


def printable_lines(text: str) -> str:
    """The same, line by line."""
    return "\n".join(map(printable, text.splitlines()))


def collapsed(text: str) -> str:
    """On one line, with one space between words."""
    return " ".join(printable(text).split())


def shortened(text: str, most: int = 200) -> str:
    """Collapsed, and cut where it is longer: a commit's subject may have 10,000 characters."""
    line = collapsed(text)
    return line if len(line) <= most else f"{line[: most - 1]}…"
