"""Entry script: plan the launches of rows for a GPU that is not here, and compile kernels for it.

    python -m perf.gate.machine_code.worker CHECKOUT CAPABILITY CACHE

It answers two requests on standard input with JSON, a line each:

    {"cases": [...]}                     one line: `machine_code.compared.Plan`
    {"compile": [digests], "jobs": 2}    a line for each digest: `machine_code.compiled.Compiled`, or an error
"""

import dataclasses
import hashlib
import inspect
import json
import os
import select
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from perf import workloads
from perf.files import replace_file
from perf.gate.machine_code.compiled import compiled
from perf.gate.machine_code.pretended import Operators, pretend
from perf.gate.machine_code.targets import TARGETS
from perf.harness.case import Case
from perf.harness.json_process import take_pipes
from perf.harness.measure import pin_package
from perf.harness.status import one_line
from perf.selection import PEERS
from perf.workloads.workload import Unavailable

PLANNED = {"attention": "attention", "attention_leaderboard": "attention_leaderboard", "host": "attention"}
"""Workloads whose launches are planned, and the workload that plans them: all but what builds a model or has ranks."""

ALIKE = {"triton_compiled": "triton", "flash_attention": "triton"}
"""Implementations that launch the kernels of another."""

FORM = hashlib.sha256(Path(inspect.getfile(compiled)).read_bytes()).hexdigest()
"""Digest of the code that says what is kept of a compiled kernel."""


class Launches:
    """The kernels of a commit that were launched so far: their sources, and how they are compiled."""

    def __init__(self) -> None:
        self.found: dict[str, tuple[Any, Any, dict[str, Any]]] = {}
        self._row: list[tuple[str, str]] = []
        self._digest = ""

    def note_kernel(self, source: Any, target: Any, options: dict[str, Any]) -> None:
        """Remember a kernel by the digest of everything that its machine code depends on."""
        import triton

        chosen = json.dumps(options, sort_keys=True, default=str)
        backend = triton.compiler.make_backend(target).hash()  # ptxas's version
        text = "\0".join((triton.__version__, backend, FORM, source.hash(), str(target), chosen))
        self._digest = hashlib.sha256(text.encode()).hexdigest()[:32]
        self.found[self._digest] = source, target, options

    def note_launch(self, grid: Any, arguments: tuple[Any, ...]) -> None:
        """Remember a launch of that kernel, with its grid and the numbers that it gets."""
        programs = grid if isinstance(grid, tuple) else "computed"
        numbers = [argument for argument in arguments if isinstance(argument, int | float)]
        self._row.append((self._digest, f"{programs} {numbers}"))

    def note_operator(self, operator: str) -> None:
        """Remember an operator of torch's, in its place between the launches: a copy too many is one."""
        self._row.append(("", operator))

    def of(self, case: Case) -> list[tuple[str, str]]:
        """Return a row's launches, in their order. Raises what planning raises."""
        impl = case.params.get("impl", "")
        if case.workload not in PLANNED or not impl:
            raise Unavailable(f"launches of {case.workload} are not planned")
        if impl in PEERS:
            return []
        if (alike := ALIKE.get(impl, impl)) != "triton":
            raise Unavailable(f"launches of {impl} are not planned")
        work = workloads.build(PLANNED[case.workload], case.params | {"impl": alike}, "cuda")
        self._row = []
        work.prepare()
        with Operators(self.note_operator):
            work.run()
        return self._row

    def described(self, digest: str) -> dict[str, Any]:
        """Return the name of a kernel, its constants and its options."""
        source, _, options = self.found[digest]
        names = source.fn.arg_names
        constants = {names[index]: value for (index,), value in source.constants.items()}
        chosen = {name: options[name] for name in ("num_warps", "num_stages") if name in options}
        return {"name": source.fn.__name__, "constants": {n: str(v) for n, v in (constants | chosen).items()}}


def plan(launches: Launches, cases: list[Case]) -> dict[str, Any]:
    """Return the launches of each row, or why they are unknown."""
    rows: dict[str, Any] = {}
    for case in cases:
        try:
            rows[case.key] = launches.of(case)
        except Unavailable as reason:
            rows[case.key] = str(reason)
        except Exception as error:  # a commit's own code may raise anything
            rows[case.key] = {"error": one_line(error)}
    return {"rows": rows, "kernels": {digest: launches.described(digest) for digest in launches.found}}


def compile_all(launches: Launches, digests: list[str], jobs: int, cache: Path) -> Iterator[dict[str, Any]]:
    """Compile each kernel in a process of its own, `jobs` at a time: an assertion in the compiler ends the process."""
    waiting, running = list(digests), dict[int, tuple[str, int]]()
    while waiting or running:
        while waiting and len(running) < jobs:
            digest = waiting.pop(0)
            if (kept := cache / f"{digest}.json").is_file():
                yield {"digest": digest, **json.loads(kept.read_text(encoding="utf-8"))}
                continue
            ours, theirs = os.pipe()
            if not (child := os.fork()):
                os.close(ours)
                _compile_and_exit(launches.found[digest], theirs)
            os.close(theirs)
            running[ours] = digest, child
        for pipe in select.select(list(running), [], [])[0] if running else ():
            digest, child = running.pop(pipe)
            with os.fdopen(pipe, "rb") as stream:
                content = stream.read()
            status = os.waitpid(child, 0)[1]
            result = json.loads(content) if content else {"error": f"the compiler ended with signal {status & 127}"}
            if "error" not in result:
                replace_file(cache / f"{digest}.json", json.dumps(result).encode())
            yield {"digest": digest, **result}


def _compile_and_exit(launch: tuple[Any, Any, dict[str, Any]], pipe: int) -> None:
    try:
        found: dict[str, Any] = dataclasses.asdict(compiled(*launch))
    except BaseException as error:
        found = {"error": one_line(error)}
    with os.fdopen(pipe, "wb") as stream:
        stream.write(json.dumps(found).encode())
    os._exit(0)


def main() -> None:
    """Answer the requests; standard output is theirs alone."""
    requests, answers = take_pipes()
    checkout, capability, cache = Path(sys.argv[1]), sys.argv[2], Path(sys.argv[3])
    launches = Launches()
    pretend(TARGETS[capability], launches.note_kernel, launches.note_launch)
    pin_package(checkout)
    for line in requests:
        request = json.loads(line)
        if "cases" in request:
            replies: Any = [plan(launches, [Case(**case) for case in request["cases"]])]
        else:
            replies = compile_all(launches, request["compile"], request["jobs"], cache)
        for reply in replies:
            print(json.dumps(reply), file=answers, flush=True)


if __name__ == "__main__":
    main()
