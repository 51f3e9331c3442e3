"""What the documents link to exists, and the commands that they and the helps show are those of `python -m perf`."""

import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import click
import pytest

from perf.__main__ import main
from perf.benchmarks._series import _Timed, _Weighed
from perf.benchmarks.linear_cross_entropy import LinearCrossEntropy
from perf.harness.declaration import problem_of_class
from perf.harness.suite import measure_class
from tests.throwaway import ROOT

FOLDERS = "*.md", "docs/*.md", "cs336_systems/**/*.md", "perf/records/*.md", "perf/studies/results/*/*.md"
DOCUMENTS = [path for pattern in FOLDERS for path in sorted(ROOT.glob(pattern))]
PER_DOCUMENT = pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
FENCED = re.compile(r"```.*?```", re.S)
COMMAND = re.compile(r"""(?:python -m |`)perf ((?=[a-z])(?:"[^"]*"|'[^']*'|[^`#)&;\n"'.]|\.(?! |$))+)""", re.M)


def linked(document: Path) -> set[tuple[str, str]]:
    """Return the file, "" for the document itself, and the anchor of each link that leads into the repository."""
    text = FENCED.sub("", document.read_text(encoding="utf-8"))
    targets = [unquote(target) for target in re.findall(r"\]\(([^)\s]+)\)", text)]
    return {(file, anchor) for file, _, anchor in (target.partition("#") for target in targets) if "://" not in file}


def anchors(document: Path) -> set[str]:
    headings = re.findall(r"^#+ (.+)$", FENCED.sub("", document.read_text(encoding="utf-8")), re.M)
    return {re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in headings}


@PER_DOCUMENT
def test_linked_files_and_headings_exist(document: Path) -> None:
    paths = {(document.parent / file if file else document, anchor) for file, anchor in linked(document)}
    assert {path for path, _ in paths if not path.exists()} == set()
    assert {(path, anchor) for path, anchor in paths if anchor and anchor not in anchors(path)} == set()


def commands(text: str) -> Iterator[str]:
    """Yield what follows `python -m perf` in each command, in one line where a code span is wrapped."""
    unwrapped = re.sub(r"(?<!`)`[^`]+`(?!`)", lambda span: " ".join(span[0].split()), text)
    for words in COMMAND.findall(unwrapped):
        if "{" not in words:  # a template's
            yield re.sub(r"[\[\]]|(?<= )\.\.+", "", words).strip()


def faults(words: str) -> str:
    """Return what the command line would refuse of `words`: a command, an option, a value that is none of a choice."""
    command: click.Command | None = main
    args = shlex.split(words)
    context = click.Context(main)
    while isinstance(command, click.Group):
        if not args or args[0].isupper() or args[0].startswith("-"):
            return ""
        context = click.Context(command, parent=context)
        command = command.get_command(context, args[0])
        if command is None:
            return f"{args[0]} is no command"
        args = args[1:]
    assert command is not None
    context = click.Context(command, parent=context)
    try:
        given, _, _ = command.make_parser(context).parse_args([arg for arg in args if arg not in ("--help", "-h")])
        for param in command.params:
            values = given.get(param.name)
            if isinstance(param.type, click.Choice):
                for value in values if isinstance(values, list) else [values]:
                    if isinstance(value, str) and not value.isupper():
                        param.type.convert(value, param, context)
    except click.UsageError as error:
        return error.format_message()
    return ""


@PER_DOCUMENT
def test_commands_in_documents_exist_with_their_options(document: Path) -> None:
    found = commands(document.read_text(encoding="utf-8"))
    assert {words: fault for words in found if (fault := faults(words))} == {}


def test_commands_in_templates_exist_with_their_options() -> None:
    templates = sorted((ROOT / "perf" / "writeup" / "templates").rglob("*.md"))
    found = [words for path in templates for words in commands(path.read_text(encoding="utf-8"))]
    assert len(found) >= 5
    assert {words: fault for words in found if (fault := faults(words))} == {}


def every_command(group: click.Group) -> Iterator[click.Command]:
    context = click.Context(group)
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        assert command is not None
        yield command
        if isinstance(command, click.Group):
            yield from every_command(command)


def test_examples_of_every_help_exist_with_their_options() -> None:
    found = [words for command in every_command(main) for words in commands(command.help or "")]
    assert len(found) >= 50
    assert {words: fault for words in found if (fault := faults(words))} == {}


def test_a_command_that_is_gone_and_an_option_that_never_was_are_found() -> None:
    assert faults("measure --set pr") == "measure is no command"
    assert "--sets" in faults("gate main --sets pr")
    assert "full" in faults("gate --set full")
    assert faults("gate main --set pr") == faults("study NAME --help") == ""


def test_documents_are_found() -> None:
    assert len(DOCUMENTS) >= 10


def test_the_class_in_contributing_is_sound_and_has_the_axes_that_its_workload_needs() -> None:
    (example,) = re.findall(r"```python\n(.*?)```", (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8"), re.S)
    names = {"_Timed": _Timed, "_Weighed": _Weighed, "measure_class": measure_class}
    exec(example, names)
    shown: Any = names["LinearCrossEntropy"]
    assert problem_of_class(shown) == ""
    assert shown.param_names == LinearCrossEntropy.param_names
