"""Answers to the course from one machine's rows, for the write-up and for the committed pages alike."""

import itertools
import math
import re
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from perf.studies.figures import DPI
from perf.studies.on_file import NotOnFile, some
from perf.studies.parallel.step import ALONE
from perf.studies.rows import Row
from perf.writeup.answers import attention, compiled, kernels, memory, precision, steps, train_step
from perf.writeup.markdown import Markup, code, plain, table
from perf.writeup.source import STUDIES, Source
from perf.writeup.templating import DoesNotHold, render, without_sentences

_MODULES = (steps, precision, kernels, memory, compiled, attention, train_step)
TABLES = {name: table for module in _MODULES for name, table in module.TABLES.items()}
"""By the names that templates use."""
assert len(TABLES) == sum(len(module.TABLES) for module in _MODULES), "two tables have one name"

CHAPTERS = (
    "benchmarking_script",
    "nsys_profile",
    "mixed_precision_accumulation",
    "benchmarking_mixed_precision",
    "memory_profiling",
    "pytorch_attention",
    "torch_compile",
)
"""Problems of the course that are answered by templates of their names."""

GPU = "NVIDIA H200"
"""The device that the sentences are about."""

Picture = Callable[[str, str], Markup]


def values(source: Source, picture: Picture) -> dict[str, Any]:
    """The functions and facts of a machine's rows that a template may use. Pictures appear as `picture` has them."""
    documents = source.documents()
    devices = [one["device"] for one in documents.values()]
    return {
        "table": lambda name: _table(name, documents),
        "front": lambda language, machine: Markup(
            table(attention.front(language, documents, source.on(machine).documents()))
        ),
        "measured": lambda name: Markup(measured_with(name, documents[name])),
        "picture": picture,
        "machine": source.machine,
        "chapters": [Markup(name) for name in CHAPTERS],
        "inf": math.inf,
        "steps": steps.Steps(documents),
        "warm_up": steps.WarmUp(documents),
        "parameters": steps.parameters,
        "states": steps.states,
        "kernels": kernels.Kernels(documents),
        "precision": precision.Precision(documents),
        "memory": memory.Memory(documents),
        "attention": compiled.Attention(documents),
        "model": compiled.CompiledModel(documents),
        "beside": attention.Beside(documents),
        "beside_on": lambda machine: attention.Beside(source.on(machine).documents()),
        "unmeasured": lambda group: attention.unmeasured(source, group),
        "train_step": train_step.TrainStep(documents),
        "parallel": lambda run, ours: train_step.parallel_speedup(_on_two_gpus(source, "parallel-step", run), ours),
        "fully_sharded": lambda run, ours: train_step.parallel_speedup(_on_two_gpus(source, "fsdp", run), ours),
        "tokens_of_a_rank": lambda: sorted(
            {
                row["batch"] * row["context_length"]
                for one in source.named("fsdp")
                for row in one.rows
                if row["against"] != ALONE
            }
        ),
        "parallel_settings": lambda: sorted(
            {
                (row["size"], row["precision"], row["world_size"])
                for one in source.named("parallel-step")
                for row in one.rows
            }
        ),
        "gpu": _common(device.get("name", "a device without a name") for device in devices),
        "driver": _common(device.get("driver", "") for device in devices),
        "software": {
            name: _common(one["software"].get(name, "") for one in documents.values())
            for name in ("torch", "triton", "cuda", "python")
        },
    }


def _table(name: str, documents: dict[str, Any]) -> Markup:
    """The table of that name. Raises `jinja2.UndefinedError` if there is none."""
    import jinja2

    if name not in TABLES:
        raise jinja2.UndefinedError(f"table({name!r}) was given; allowed: {', '.join(TABLES)}")
    return Markup(table(some(TABLES[name](documents), name)))


def _common(values: Iterable[str]) -> str:
    """The value of all documents; where they differ, each."""
    return " or ".join(dict.fromkeys(values))


def _on_two_gpus(source: Source, study: str, run: str) -> list[Row]:
    """The rows of a run of a study on two GPUs."""
    runs = [one.rows for one in source.named(study) if one.folder == Path(f"{source.machine}-x2") / run]
    return list(itertools.chain.from_iterable(runs))


def measured_with(name: str, document: dict[str, Any]) -> str:
    """The command that made the rows of NAME.json, and where they are."""
    commit = re.sub(r"^\w+", lambda found: code(found[0]), plain(document.get("commit") or ""))
    at = f" at commit {commit}" if commit else ""
    return f"Measured with {code(document['command'])}{at}; rows in [{name}.json]({name}.json)."


def chapter(name: str, warnings: list[str], source: Source, figures: Path) -> str:
    """The answer of that template; tables and figures alone where the rows do not bear out its sentences.

    Raises `NotOnFile` where no table can be made.
    """
    template, known = f"answers/{name}.md", values(source, copier(source, figures))
    try:
        return render(template, _about_our_gpu(known))
    except NotOnFile as error:
        why: Exception = error
    except DoesNotHold as error:
        why = error
        warnings.append(f"{name} has tables and figures alone: {error}")
    alone = without_sentences(template, known)
    return f"*Tables and figures alone: {plain(why)}.*\n\n{alone}"


def conditions(source: Source) -> str:
    """The conditions of all measurements. Raises `NotOnFile` where the sentences are about another GPU."""
    return render("answers/conditions.md", _about_our_gpu(values(source, copier(source, Path()))))


def _about_our_gpu(known: dict[str, Any]) -> dict[str, Any]:
    if known["gpu"] != GPU:
        raise NotOnFile(f"the sentences are about an {GPU}")
    return known


def copier(source: Source, figures: Path) -> Picture:
    """Pictures of the studies copied to `figures`, which is beside the document."""
    from PIL import Image

    def copied(words: str, name: str) -> Markup:
        path = source.folder / STUDIES / source.machine / name
        if not path.is_file():
            return Markup(f"*{words}: the picture is not on file.*")
        figures.mkdir(parents=True, exist_ok=True)
        own = name.replace("/", "-")
        with Image.open(path) as image:  # without a resolution a page takes it for 72 dots an inch
            image.save(figures / own, dpi=image.info.get("dpi", (DPI, DPI)))
        return Markup(f"![{words}]({figures.name}/{own})")

    return copied
