"""Ctrl-C: one line and exit status 130."""

import sys

import click
import pytest
from click.testing import CliRunner

from perf.commands import demo
from perf.options import Commands


@click.command()
@click.argument("said", default="")
def command(said: str) -> None:
    """Be interrupted."""
    raise KeyboardInterrupt(said)


@pytest.mark.parametrize(
    ("arguments", "line"), [([], "Interrupted"), (["rows are kept"], "Interrupted: rows are kept")]
)
@pytest.mark.parametrize("depth", [1, 2])
def test_an_interruption_is_one_line_and_status_130(arguments, line, depth, monkeypatch):
    main = Commands({"command": __name__})
    for _ in range(depth - 1):
        inner, main = main, Commands({"group": "inner"})
        monkeypatch.setattr(main, "get_command", lambda _, name, inner=inner: inner)
        arguments = ["command", *arguments]
    done = CliRunner().invoke(main, ["group" if depth > 1 else "command", *arguments])
    assert done.exit_code == 130
    assert done.output.split("\n") == ["", line, ""]


ASV = """#!{python}
import signal, sys
def end(*_):
    print("Traceback (most recent call last):", file=sys.stderr, flush=True)
    open({file!r}, "w").close()
    sys.exit(1)
signal.signal(signal.SIGTERM, end)
print("measuring", flush=True)
signal.pause()
"""


def test_the_demo_passes_an_interruption_on_to_asv_and_shows_no_traceback(tmp_path, monkeypatch):
    ended, asv = tmp_path / "ended", tmp_path / "asv"
    asv.write_text(ASV.format(python=sys.executable, file=str(ended)))
    asv.chmod(0o700)
    shown = []

    def echo(text):
        shown.append(text)
        raise KeyboardInterrupt

    monkeypatch.setattr(demo.sys, "executable", str(asv))
    monkeypatch.setattr(demo.click, "echo", echo)
    with pytest.raises(KeyboardInterrupt):
        demo._asv("run")
    assert ended.exists()
    assert shown == ["measuring"]
