"""The whole document: page one, a chapter for each problem in the handout's order, deviations, claims."""

import contextlib
import itertools
from dataclasses import dataclass, field
from pathlib import Path

from perf.studies.on_file import NotOnFile
from perf.units import counted
from perf.writeup import answered, claims
from perf.writeup.chapters import CODE, Part, extras, parts
from perf.writeup.editions import EDITIONS
from perf.writeup.markdown import Markup, anchor, anchored, code, plain, table
from perf.writeup.problems import Edition, Problem
from perf.writeup.source import Source, Study
from perf.writeup.templating import render

FIGURES = "figures"


@dataclass
class Document:
    """The write-up as Markdown, and what it says of itself."""

    edition: Edition
    text: str = ""
    missing: dict[str, list[str]] = field(default_factory=dict)
    """Problem -> the commands that would measure what it lacks."""

    warnings: list[str] = field(default_factory=list)

    @property
    def commands(self) -> list[str]:
        """Commands for everything that is missing, each once."""
        return list(dict.fromkeys(itertools.chain.from_iterable(self.missing.values())))


def write(source: Source, folder: Path, edition: Edition = EDITIONS["2025"]) -> Document:
    """The document of one machine for an edition's problems; its figures go to `folder`/figures."""
    made = Document(edition, warnings=list(source.skipped))
    figures = folder / FIGURES
    chapters = [_chapter(problem, source, figures, made) for problem in edition.problems]
    conditions = ""
    with contextlib.suppress(NotOnFile):
        conditions = answered.conditions(source)
    known = answered.values(source, answered.copier(source, figures)) | {
        "hardware": sorted({_hardware(study) for study in source.studies}),
        "edition": edition,
        "lacking": len(made.missing),
        "overview": Markup(table(_overview(source, made))),
        "commands": made.commands,
        "conditions": Markup(conditions),
        "chapters": chapters,
        "warnings": made.warnings,
        "claims": claims.Claims(source),
        "else_command": claims.else_command(source.machine),
        "needs": claims.NEEDS,
    }
    made.text = anchored(render("writeup.md", known))
    return made


def _overview(source: Source, made: Document) -> list[dict[str, object]]:
    """A row for each problem: points, tests, and whether all of it was measured."""
    return [
        {
            "problem": Markup(f"[{plain(problem.name)}](#{anchor(problem.name)})"),
            "points": problem.points or "optional",
            "tests": Markup(", ".join(map(code, _files(problem)))),
            "measured": _measured(problem, source, made),
        }
        for problem in made.edition.problems
    ]


def _hardware(study: Study) -> str:
    """Device and software behind its rows."""
    from perf.studies.document import heading

    with contextlib.suppress(NotOnFile):
        return heading(study.document)
    return "a device without a name"


def _files(problem: Problem) -> list[str]:
    return list(dict.fromkeys(name.partition("::")[0] for name in problem.tests))


def _measured(problem: Problem, source: Source, made: Document) -> str:
    if problem.answered != "measured":
        return {"code": "code: nothing to measure", "worked": "closed form: nothing to measure"}[problem.answered]
    commands = made.missing.get(problem.name, [])
    if not commands:
        return "yes"
    nothing = all(len(need.missing(source)) == len(need.asked) for need in problem.needs)
    numbers = ", ".join(str(made.commands.index(one) + 1) for one in commands)
    return f"{'no' if nothing else 'in part'}: command{'s' if len(commands) > 1 else ''} {numbers}"


def _chapter(problem: Problem, source: Source, figures: Path, made: Document) -> dict[str, str]:
    """The name, points, tests and text of a problem's chapter, in which a missing measurement has its command."""
    texts = [render(f"code/{problem.name}.md", {})] if problem.name in CODE else []
    commands = list(problem.missing(source))
    why = "Not measured yet"
    for part in parts(made.edition).get(problem.name, ()):
        try:
            texts.append(_made(part, source, figures, made))
        except NotOnFile as error:
            if commands:
                continue
            # What it asks for is there, but its chapter cannot be made of it.
            commands, why = [need.command(source.machine) for need in problem.needs], "Cannot be shown"
            made.warnings.append(f"{problem.name} cannot be shown: {error}")
    if commands:
        made.missing[problem.name] = commands
        texts.append(f"**{why}:** {', '.join(map(code, commands))}.")
    if problem.name in (beyond := extras(made.edition)):
        title, part = beyond[problem.name]
        with contextlib.suppress(NotOnFile):  # the handout does not ask for it
            texts.append(f"## {title}\n\n{_made(part, source, figures, made)}")
    points = counted(problem.points, "point") if problem.points else "Optional"
    return {
        "name": Markup(problem.name),
        "points": points,
        "tests": Markup(", ".join(code(f"tests/{name}") for name in problem.tests)),
        "body": Markup("\n\n".join(part.strip() for part in texts)),
    }


def _made(part: Part | str, source: Source, figures: Path, made: Document) -> str:
    return answered.chapter(part, made.warnings, source, figures) if isinstance(part, str) else part(source, figures)
