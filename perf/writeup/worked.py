"""The closed forms of `python -m perf study accounting` as chapters."""

import re

from perf.writeup.markdown import plain, table


def closed_form(name: str, *arguments: str) -> str:
    """A worked problem: what is given, each figure with its formula, and the answer in words."""
    from perf.studies.accounting.study import PROBLEMS

    problem = PROBLEMS[name](*arguments)
    rows = [
        {"figure": line.what, "formula": line.formula, "with numbers": line.substituted, "is": line.result}
        for line in problem.lines
    ]
    empty = {name for name in rows[0] if not any(row[name] for row in rows)}
    rows = [{name: cell for name, cell in row.items() if name not in empty} for row in rows]
    answer = "\n\n".join(map(plain_paragraph, problem.answer.split("\n\n")))
    return f"{plain_paragraph(problem.given)}\n\n{table(rows, words=('formula',))}\n{answer}\n"


def plain_paragraph(text: str) -> str:
    """Every sentence of it, as text; the name of a part, such as (a), that it begins with is bold."""
    return re.sub(r"^(\([a-z]\))(?= )", r"**\1**", " ".join(plain(word) for word in text.split()))
