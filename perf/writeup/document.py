"""The whole document: page one, a chapter for each problem in the handout's order, deviations, claims."""

import contextlib
import itertools
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from perf.studies.on_file import NotOnFile
from perf.writeup import answered, claims, deviations, distributed, flash
from perf.writeup.markdown import Markup, anchor, anchored, code, plain, table
from perf.writeup.problems import POINTS, PROBLEMS, Problem
from perf.writeup.source import Source, Study
from perf.writeup.worked import closed_form

FIGURES = "figures"
Part = Callable[[Source, Path], str]

TITLE = "CS336 assignment 2, Systems: write-up"

CODE = {
    "flash_forward": "`FlashAttentionPyTorch` (`cs336_systems/attention/flash_pytorch.py`) is Algorithm 1 tile by tile "
    "in PyTorch, with 128 × 128 tiles; `FlashAttentionTriton` (`flash_triton.py`, its kernels in `triton_kernels/`) is "
    "one kernel, whose program takes a tile of queries over all keys that it sees and keeps output, maximum and sum in "
    "float32; on Hopper a second one, in Gluon, does the same with warps that each have their part. Both take "
    "`is_causal`, save one log-sum-exp a row, and are held to a float64 oracle: their error may not exceed that of "
    "eager attention in the same dtype by more than the gate in `tests/attention/gate.py` allows.",
    "flash_backward": "Both backwards are tiled and recompute the scores from the saved log-sum-exp. In Triton it is "
    "two passes, over keys for dK and dV and over queries for dQ, without atomics, so two runs give the same bits; on "
    "Hopper, unless asked for those bits, one pass over keys (in Gluon) that adds dQ in memory. The handout's own "
    "form, Equations 13 to 19 in PyTorch under `torch.compile`, is `FlashAttentionCompiledBackward`.",
    "ddp_overlap_individual_parameters": "`OverlappedDDP` (`cs336_systems/distributed/ddp.py`) launches an all-reduce "
    "from the hook of each gradient, in one order on every rank, and `finish_gradient_synchronization()` waits for "
    "them and averages. Gradients of compiled blocks are launched together, in groups that shrink to the end.",
    "ddp_overlap_bucketed": "`BucketedDDP` fills buckets from the last parameter to the first, closes one before it "
    "would exceed `bucket_size_mb`, and reduces it as soon as its last gradient is there; a larger tensor travels "
    "alone.",
    "optimizer_state_sharding": "`ShardedOptimizer` (`cs336_systems/distributed/sharded_optimizer.py`) wraps any "
    "optimizer: each rank keeps the state of its share of the parameters, updates them and broadcasts them.",
}


def _worked(name: str) -> Part:
    return lambda source, figures: closed_form(name)


PARTS: dict[str, tuple[Part | str, ...]] = {
    **{name: (name,) for name in answered.CHAPTERS},
    "flash_benchmarking": (flash.benchmarking,),
    "leaderboard": (flash.leaderboard,),
    "distributed_communication_single_node": (distributed.all_reduce,),
    "naive_ddp": (distributed.equivalence,),
    "naive_ddp_benchmarking": (distributed.data_parallel("naive"),),
    "minimal_ddp_flat_benchmarking": (distributed.data_parallel("naive", "flat"),),
    "ddp_overlap_individual_parameters_benchmarking": (
        distributed.data_parallel("naive", "flat", "overlapped"),
        distributed.overlap,
    ),
    "ddp_bucketed_benchmarking": (distributed.buckets, _worked("ddp_bucketed_benchmarking")),
    "communication_accounting": (_worked("communication_accounting"),),
    "optimizer_state_sharding_accounting": (distributed.sharding, _worked("optimizer_state_sharding_accounting")),
}
"""What each chapter is made of, the answers by the names of their templates; those of `CODE` need no measurement."""

EXTRAS: dict[str, tuple[str, Part | str]] = {
    "torch_compile": ("The fastest step", "fastest_step"),
    "flash_benchmarking": ("Attention beside every other in PyTorch", "attention"),
    "ddp_bucketed_benchmarking": ("Beside torch's DistributedDataParallel", distributed.parallel_step),
}
"""What the handout does not ask for, after the problem that it belongs to; left out where it was not measured."""


@dataclass
class Document:
    """The write-up as Markdown, and what it says of itself."""

    text: str = ""
    missing: dict[str, list[str]] = field(default_factory=dict)
    """Problem -> the commands that would measure what it lacks."""

    warnings: list[str] = field(default_factory=list)

    @property
    def commands(self) -> list[str]:
        """Of all that is missing, each once."""
        return list(dict.fromkeys(itertools.chain.from_iterable(self.missing.values())))


def write(source: Source, folder: Path) -> Document:
    """The document of one machine; its figures go to `folder`/figures."""
    made = Document(warnings=list(source.skipped))
    figures = folder / FIGURES
    chapters = [_chapter(problem, source, figures, made) for problem in PROBLEMS]
    parts = [
        f"# {TITLE}",
        _page_one(source, made),
        *chapters,
        f"## Where we left the handout's advice\n\n{deviations.chapter()}",
        f"## What the notes promise, and what was measured\n\n{claims.chapter(source)}",
    ]
    notes = "Where the notes that this project started from are wrong"
    with contextlib.suppress(NotOnFile):  # it cites what those chapters are made of
        if not made.missing.keys() & set(answered.CHAPTERS):
            parts.append(f"### {notes}\n\n{answered.chapter('notes', made.warnings, source, figures)}")
    if made.warnings:
        parts.append("## What could not be read\n\n" + "".join(f"- {plain(one)}\n" for one in made.warnings))
    made.text = anchored("\n\n".join(part.strip() for part in parts) + "\n")
    return made


def _page_one(source: Source, made: Document) -> str:
    rows = [
        {
            "problem": Markup(f"[{plain(problem.name)}](#{anchor(problem.name)})"),
            "points": problem.points or "optional",
            "tests": Markup(", ".join(f"`{name}`" for name in _files(problem))),
            "measured": _measured(problem, source, made),
        }
        for problem in PROBLEMS
    ]
    lacking = len(made.missing)
    said = f"{len(PROBLEMS) - lacking} of {len(PROBLEMS)} problems have all that they ask for"
    said += f"; {lacking} wait for a measurement." if lacking else "."
    hardware = sorted({_hardware(study) for study in source.studies})
    where = f" ({'; '.join(hardware)})" if hardware else ""
    parts = [
        f"Machine {code(source.machine)}{where}. {POINTS} points of spring 2025; {said} Tests are under `tests/`.",
        table(rows),
    ]
    if lacking:
        listed = "".join(f"{number}. `{one}`\n" for number, one in enumerate(made.commands, 1))
        parts.append(f"What measures the rest, by the numbers in the table:\n\n{listed}")
    with contextlib.suppress(NotOnFile):
        parts.append(f"## How it was measured\n\n{answered.conditions(source)}")
    return "\n\n".join(parts)


def _hardware(study: Study) -> str:
    """Device and software behind its rows."""
    from perf.studies.document import heading

    with contextlib.suppress(NotOnFile):
        return plain(heading(study.document))
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


def _chapter(problem: Problem, source: Source, figures: Path, made: Document) -> str:
    points = f"{problem.points} point{'' if problem.points == 1 else 's'}" if problem.points else "Optional"
    parts = [f"## {problem.name}", f"*{points}. Held by* {', '.join(f'`tests/{name}`' for name in problem.tests)}."]
    if problem.name in CODE:
        parts.append(CODE[problem.name])
    commands = list(problem.missing(source))
    why = "Not measured yet"
    for part in PARTS.get(problem.name, ()):
        try:
            parts.append(_made(part, source, figures, made))
        except NotOnFile as error:
            if commands:
                continue
            # What it asks for is there, but its chapter cannot be made of it.
            commands, why = [need.command(source.machine) for need in problem.needs], "Cannot be shown"
            made.warnings.append(f"{problem.name} cannot be shown: {error}")
    if commands:
        made.missing[problem.name] = commands
        parts.append(f"**{why}:** " + ", ".join(f"`{one}`" for one in commands) + ".")
    if problem.name in EXTRAS:
        title, part = EXTRAS[problem.name]
        with contextlib.suppress(NotOnFile):  # nobody asked for it
            parts.append(f"## {title}\n\n{_made(part, source, figures, made)}")
    return "\n\n".join(part.strip() for part in parts)


def _made(part: Part | str, source: Source, figures: Path, made: Document) -> str:
    return answered.chapter(part, made.warnings, source, figures) if isinstance(part, str) else part(source, figures)
