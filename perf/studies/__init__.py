"""One-off questions, each answered by a table: `python -m perf study NAME`."""

import importlib

import click

STUDIES = (
    "accounting",
    "clock",
    "noise",
    "precision",
    "spent",
    "end-to-end",
    "train-step",
    "warm-up",
    "attention",
    "attention-memory",
    "compile",
    "memory",
    "kernels",
    "all-reduce",
    "ddp",
    "ddp-equivalence",
    "overlap",
    "parallel-step",
    "sharding",
)
"""Each is a module of this package, with dashes for underscores, that holds its `command`."""


class Studies(click.Group):
    """Imports a study when it is asked for."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """In the order of `STUDIES`."""
        return list(STUDIES)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """None for an unknown name; click says which there are."""
        if cmd_name not in STUDIES:
            return None
        return importlib.import_module(f"perf.studies.{cmd_name.replace('-', '_')}").command
