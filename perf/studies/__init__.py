"""Questions that no series answers, each a command with a table: `python -m perf study NAME`.

A study is a module with a `command`, in a folder of its own if it has parts: options make cases, `perf.workloads` and
`perf.harness` measure them (`perf.harness.comparison` compares arms), and the rows become a table, sentences and a
figure. Shared by several studies: `document` writes and presents rows, `rows` groups them and makes one of a failure,
`on_file` reads them, `row_forms` checks both, `device` is what they are measured on, `cases` measures as the suite
does, `lm` the options and steps of the model, `speedups` the options and intervals of a comparison and `speedup_figure`
its figure, `figures` creates and saves figures, `fresh_process` starts processes, `progress` shows bars. `results`
holds the committed rows; `python -m perf report --answers` makes the tables of their README.
"""

import contextlib
import copy
import functools
from collections.abc import Container
from typing import Any

import click

from perf.harness.lock import measuring
from perf.options import Commands, command_line

STUDIES = {
    "accounting": "accounting.study",
    "clock": "clock",
    "noise": "noise.study",
    "precision": "precision.study",
    "spent": "spent",
    "margins": "margins",
    "end-to-end": "end_to_end",
    "train-step": "train_step.study",
    "warm-up": "warm_up",
    "attention": "attention.study",
    "attention-memory": "attention.memory",
    "tiles": "attention.tiles.study",
    "compile": "compile",
    "memory": "memory.study",
    "checkpointing": "checkpointing",
    "kernels": "kernels.study",
    "all-reduce": "parallel.all_reduce",
    "ddp": "parallel.ddp",
    "ddp-equivalence": "parallel.ddp_equivalence",
    "overlap": "parallel.overlap",
    "parallel-step": "parallel.step",
    "sharding": "parallel.sharding",
    "leaderboard-2026": "leaderboard_2026",
    "fsdp": "parallel.fsdp",
}
"""The module of this package with the `command` of each study."""

CALCULATED = ("accounting", "spent")
"""Studies that run nothing on a device."""


class Studies(Commands):
    """The studies. All but those of `CALCULATED` have the device for themselves, or are refused in one line."""

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import the study; None for an unknown name."""
        study = super().get_command(ctx, cmd_name)
        if study is None or study.callback is None:
            return study
        repeatable = [option.name for option in study.params if getattr(option, "multiple", False)]
        alone = copy.copy(study)
        alone.callback = _alone(study.callback, repeatable, is_calculated=cmd_name in CALCULATED)
        return alone


def _alone(callback: Any, repeatable: Container[str], *, is_calculated: bool) -> Any:
    """Wrap the callback of a study: a value that is given twice to one of the `repeatable` options counts once."""

    @functools.wraps(callback)
    def locked(**options: Any) -> Any:
        once = {name: tuple(dict.fromkeys(one)) if name in repeatable else one for name, one in options.items()}
        with contextlib.nullcontext() if is_calculated else measuring(command_line()):
            return callback(**once)

    return locked


command = Studies(
    {name: f"perf.studies.{module}" for name, module in STUDIES.items()},
    name="study",
    help="Answer a question with a table or two; see NAME --help.",
)
