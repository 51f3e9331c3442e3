"""What the commands share: numbers that are numbers, and names that are looked for nearby when they are misspelt."""

import difflib
import importlib
import math
import re
from collections.abc import Iterable, Mapping
from typing import Any

import click


class Finite(click.FloatRange):
    """A range that no NaN slips through: it is below nothing and above nothing."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """The number; fails in click's words."""
        number: float = super().convert(value, param, ctx)
        if not math.isfinite(number):
            self.fail(f"{value!r} was given; allowed: a finite number", param, ctx)
        return number


class Commands(click.Group):
    """A group of commands, each imported when it is asked for: `modules` is name -> module with a `command`.

    Names the command that was probably meant, and lists each with its first sentence whole.
    """

    def __init__(self, modules: Mapping[str, str], **attributes: Any):
        super().__init__(**attributes)
        self._modules = modules

    def list_commands(self, ctx: click.Context) -> list[str]:
        """In the order of `modules`."""
        return list(self._modules)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """None for an unknown name."""
        if cmd_name not in self._modules:
            return None
        command: click.Command = importlib.import_module(self._modules[cmd_name]).command
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """As click does, which cuts a sentence that is longer than the line."""
        commands = [(name, self.get_command(ctx, name)) for name in self.list_commands(ctx)]
        with formatter.section("Commands"):
            formatter.write_dl([(name, _first_sentence(one.help or "")) for name, one in commands if one])

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """As click does; an unknown name fails with those nearby, or all."""
        if args and self.get_command(ctx, args[0]) is None and not args[0].startswith("-"):
            names = self.list_commands(ctx)
            meant = nearby(args[0], names) or "allowed: " + ", ".join(names)
            raise click.UsageError(f"no command {args[0]!r}; {meant}", ctx)
        return super().resolve_command(ctx, args)


def _first_sentence(text: str) -> str:
    return re.split(r"(?<=[.?])\s", " ".join(text.split()))[0]


def nearby(name: str, known: Iterable[str]) -> str:
    """ "did you mean clock?"; "" if nothing known is near."""
    close = difflib.get_close_matches(name, list(known), n=3)
    return f"did you mean {' or '.join(close)}?" if close else ""
