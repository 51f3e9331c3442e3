"""One-off questions, each answered by a table: `python -m perf study NAME`.

A study is a module with a `command`, in a folder of its own where it has parts, with its kin where it has any:
attention, memory, kernels, precision, train_step, parallel (several ranks), noise, accounting. It measures by
`perf.workloads` and `perf.harness`; arms are compared by `perf.harness.comparison`. Shared by several studies: `rows`
(types of what is on file), `document` (writes rows), `on_file` (reads them), `lm` (options and steps of the model),
`speedups` and their figure, `figures`, `fresh_process`. `results` holds the committed rows, and `answers` makes the
tables of their README.
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
    "kernels": "kernels.study",
    "all-reduce": "parallel.all_reduce",
    "ddp": "parallel.ddp",
    "ddp-equivalence": "parallel.ddp_equivalence",
    "overlap": "parallel.overlap",
    "parallel-step": "parallel.step",
    "sharding": "parallel.sharding",
}
"""Each with the module of this package that holds its `command`."""


command = Commands(
    {name: f"perf.studies.{module}" for name, module in STUDIES.items()},
    name="study",
    help="Answer one question with a table or two: NAME --help teaches.",
)
