"""Option types and command groups that all commands share."""

import contextlib
import difflib
import errno
import functools
import importlib
import inspect
import math
import os
import re
import shlex
import signal
import sys
import threading
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import click

_REPEATABLE = "Repeatable."
"""End of the help of an option that may be given several times."""

ENDINGS = (signal.SIGTERM, signal.SIGHUP)
"""Signals that end a command as Ctrl-C does: of a supervisor such as a CI's, and of a terminal that is closed."""

INTERRUPTED = 128 + signal.SIGINT
"""Exit status of a command that Ctrl-C ended."""


class Terminated(BaseException):
    """Raised on one of `ENDINGS`, with the exit status; no `SystemExit`, after which code of a user's may go on."""


class NotJudged(click.ClickException):
    """Error of a command that compares: it exits with 2, since 1 means that something is worse."""

    exit_code = 2


def unprintable(error: OSError) -> Exception | None:
    """Return how a command ends whose standard output cannot be written, which then gets nothing more.

    It exits with 2, since 1 may mean a verdict; without a word if nobody reads any longer, as behind `| head`. None
    for an error of anything but an output.
    """
    *_, last = traceback.extract_tb(error.__traceback__)
    if last.filename != click.utils.__file__:
        return None
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # else Python fails again when it exits
    if error.errno == errno.EPIPE:
        return click.exceptions.Exit(NotJudged.exit_code)
    return NotJudged(f"standard output cannot be written: {error.strerror}")


def command_line(*, flags: Iterable[str] = (), valued: Iterable[str] = ()) -> str:
    """Return this process's command line without these flags, and without these options and their values.

    A path of one machine says nothing on another.
    """
    arguments = iter(sys.argv[1:])
    kept = []
    for argument in arguments:
        if argument in valued:
            next(arguments, None)
        elif argument not in flags and argument.partition("=")[0] not in valued:
            kept.append(argument)
    return f"python -m perf {shlex.join(kept)}"


def gathered(name: str, make: Callable[..., Any], *options: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """Return a decorator that adds `options` to a command, which gets `make` of their values as its argument `name`.

    The parameters of `make` have the options' names; one with a default may be without option.
    """
    parameters = inspect.signature(make).parameters

    def add(command: Callable[..., Any]) -> Any:
        @functools.wraps(command)
        def with_made(**given: Any) -> Any:
            values = {option: given.pop(option) for option in parameters if option in given}
            return command(**{name: make(**values)}, **given)

        return functools.reduce(lambda wrapped, option: option(wrapped), reversed(options), with_made)

    return add


class Finite(click.FloatRange):
    """A range of finite numbers: `click.FloatRange` lets NaN through, which no bound excludes."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """Return the number, or fail as click does."""
        number: float = super().convert(value, param, ctx)
        if not math.isfinite(number):
            self.fail(f"{value!r} was given; allowed: a finite number", param, ctx)
        return number


class Count(click.IntRange):
    """A number of tokens, sequences, samples or steps; one above `most` is a slip, and some would overflow or hang."""

    def __init__(self, least: int = 1, most: int = 2**20):
        super().__init__(least, most)


class Named(click.ParamType):
    """A name that `check` accepts. Its `ValueError` fails in one line, behind the option's name."""

    name = "TEXT"

    def __init__(self, check: Callable[[str], Any]):
        self._check = check

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        """Return the name, or raise `click.ClickException`."""
        try:
            self._check(value)
        except ValueError as error:
            raise click.ClickException(f"{param.opts[0] if param else ''} {error}".strip()) from None
        return str(value)


class Regex(click.ParamType):
    """A regular expression, as text."""

    name = "REGEX"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        """Return the text, or fail as click does."""
        try:
            return re.compile(value).pattern
        except re.error as error:
            self.fail(f"{value!r} was given; allowed: a regular expression ({error})", param, ctx)


class Shard(click.ParamType):
    """One of several parts, "2/4": its number, from 1, and how many there are."""

    name = "I/N"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> tuple[int, int]:
        """Return both numbers, or fail as click does."""
        number, _, count = str(value).partition("/")
        if not (number.isdecimal() and count.isdecimal() and 1 <= int(number) <= int(count)):
            self.fail(f"{value!r} was given; allowed: I/N with 1 <= I <= N, as in 2/4", param, ctx)
        return int(number), int(count)


class Commands(click.Group):
    """A group of commands, imported on demand; `modules` maps a name to the module that defines its `command`.

    An unknown name fails with the nearest names. The help lists each command's whole first sentence, and that of a
    command says which of its options are repeatable.
    """

    def __init__(self, modules: Mapping[str, str], **attributes: Any):
        super().__init__(**attributes)
        self._modules = modules

    def list_commands(self, ctx: click.Context) -> list[str]:
        """List the names in the order of `modules`."""
        return list(self._modules)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import the command; None for an unknown name. Raises `click.ClickException` if a dependency is missing."""
        if cmd_name not in self._modules:
            return None
        try:
            command: click.Command = importlib.import_module(self._modules[cmd_name]).command
        except ModuleNotFoundError as error:
            if str(error.name).partition(".")[0] == __package__:
                raise
            raise click.ClickException(f"{error}; allowed: after pip install -e '.[dev]'") from None
        for option in command.params:
            if isinstance(option, click.Option) and option.multiple and not (option.help or "").endswith(_REPEATABLE):
                option.help = f"{option.help or ''} {_REPEATABLE}".strip()
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the list of commands without cutting a sentence at the end of the line, as click would."""
        commands = [(name, self.get_command(ctx, name)) for name in self.list_commands(ctx)]
        with formatter.section("Commands"):
            formatter.write_dl([(name, _first_sentence(command.help or "")) for name, command in commands if command])

    def invoke(self, ctx: click.Context) -> Any:
        """Invoke the command. An interruption ends it with one line, that of `KeyboardInterrupt` if it has any."""
        try:
            with ending_on_signals():
                return super().invoke(ctx)
        except KeyboardInterrupt as interruption:
            said = str(interruption)
            click.echo(f"\nInterrupted{': ' if said else ''}{said}", err=True)
            ctx.exit(INTERRUPTED)
        except OSError as error:
            if ends := unprintable(error):
                raise ends from None
            raise

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Parse as click does, but refuse an empty argument, which would stand for the default or for this folder."""
        if any(not each or re.fullmatch("--[^=]+=", each) for each in args):
            raise click.UsageError("an empty argument was given, as by an unset variable; allowed: a value", ctx)
        return super().parse_args(ctx, args)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Resolve the command as click does, but name the nearest commands if there is none of this name."""
        if args and self.get_command(ctx, args[0]) is None and not args[0].startswith("-"):
            names = self.list_commands(ctx)
            hint = nearby(args[0], names) or "allowed: " + ", ".join(names)
            raise click.UsageError(f"no command {args[0]!r}; {hint}", ctx)
        return super().resolve_command(ctx, args)


@contextlib.contextmanager
def ending_on_signals() -> Iterator[None]:
    """Exit on SIGTERM and on SIGHUP as on Ctrl-C: child processes are stopped and scratch folders removed.

    The first of them counts. One that has a handler, or that `nohup` ignores, keeps it.
    """
    is_main = threading.current_thread() is threading.main_thread()  # only there Python sets handlers
    endings = [number for number in ENDINGS if is_main and signal.getsignal(number) is signal.SIG_DFL]

    def end(number: int, _: Any) -> None:
        for each in endings:  # a closed terminal may send several
            signal.signal(each, signal.SIG_IGN)
        raise Terminated(128 + number)

    for number in endings:
        signal.signal(number, end)
    try:
        yield
    except Terminated as ending:
        raise SystemExit(*ending.args) from None
    finally:
        for number in endings:
            signal.signal(number, signal.SIG_DFL)


def _first_sentence(text: str) -> str:
    return re.split(r"(?<=[.?])\s", " ".join(text.split()))[0]


def nearby(name: str, known: Iterable[str]) -> str:
    """Return "did you mean clock?" for the known names close to `name`; "" if none is close."""
    close = difflib.get_close_matches(name, list(known), n=3)
    return f"did you mean {' or '.join(close)}?" if close else ""
