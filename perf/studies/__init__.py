"""Questions that no series answers, each a command with a table: `python -m perf study NAME`.

A study is a module with a `command`, in a folder of its own if it has parts: options make cases, `perf.workloads` and
`perf.harness` measure them (`perf.harness.comparison` compares arms), and the rows become a table, sentences and a
figure. Shared by several studies: `document` writes and presents rows, `on_file` reads them, `rows` has their types,
`lm` the options and steps of the model, `speedups` the options and intervals of a comparison and `speedup_figure` its
figure, `figures` creates and saves figures, `fresh_process` starts processes, `progress` shows bars. `results` holds
the committed rows, and `answers` makes the tables of their README.
"""

from perf.options import Commands

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


command = Commands(
    {name: f"perf.studies.{module}" for name, module in STUDIES.items()},
    name="study",
    help="Answer a question with a table or two; see NAME --help.",
)
