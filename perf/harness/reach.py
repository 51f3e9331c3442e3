"""Map from rows to code: the parts of the measured package that a case runs, recorded while it runs.

A change of code that a case needs (`Sources.needed`) may change its time or memory; a change of other code cannot, as
far as the map sees. It does not see code that runs or not by the state that earlier calls left behind, except for
caches (`_forget`), nor other processes: cases of several ranks and first calls have no entry.
"""

import contextlib
import functools
import sys
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

from perf import workloads
from perf.harness import HARNESS_VERSION
from perf.harness.case import Case
from perf.harness.records import key_of
from perf.harness.sources import Sources
from perf.workloads import package
from perf.workloads.workload import Workload

OTHER_PROCESSES = ("ranks", "first_call")
"""Clocks of cases that run outside the measuring process."""

WORKLOADS = "perf.workloads."
"""Start of the name of a whole module of workloads: a change of any of it makes entries stale."""

Entered = dict[str, Any]
"""functions: "file:qualified name" of each that ran; is_compiled: whether Python is."""

Needs = dict[str, str]
"""Name of a definition (`Sources`), or of a whole module of workloads -> digest."""


def entered(make: Callable[[], Workload]) -> Entered:
    """Build the work, run it once, and return what this entered of the measured package and of `perf.workloads`.

    Compiled functions run uncompiled meanwhile, because a compiler reads code without entering it. Raises
    `RuntimeError` where this Python cannot watch the threads of a GPU's backward.
    """
    import torch

    if torch.cuda.is_available() and sys.version_info < (3, 12):
        raise RuntimeError("Python 3.11 does not trace threads that it has not started")
    _forget()
    with _uncompiled() as compilations, _codes() as codes:
        work = make()
        work.prepare()
        work.run()
    files = {code.co_filename: Path(code.co_filename).resolve() for code in codes}  # asv's environment has links
    names = {f"{files[code.co_filename]}:{code.co_qualname.partition('.<locals>')[0]}" for code in codes}
    return {
        "functions": sorted(names),
        "is_compiled": bool(compilations),
    }


class ReachMap:
    """Needs of a machine's cases: for each, the digests of every definition, once for each recorded version.

    Made of the records' lines of kind `reach`, those of sessions with this harness and `software`.
    """

    def __init__(self, lines: Iterable[dict[str, Any]], software: dict[str, str]):
        self.entries: dict[str, list[Needs]] = {}
        same: set[str] = set()
        for line in lines:
            if line["kind"] == "session" and (line["harness"], line["software"]) == (HARNESS_VERSION, software):
                same.add(line["id"])
            elif line["kind"] == "reach" and line["session"] in same:
                self._add(key_of(line), line["needs"])

    def holds(self, case: Case, *sources: Sources) -> bool:
        """Return whether some entry of the case needs nothing that differs from it in any of `sources`."""
        return any(not any(changed(needs, each) for each in sources) for needs in self.entries.get(case.key, ()))

    def put(self, case: Case, found: Entered, sources: Sources) -> Needs:
        """Enter what a case ran of the code of `sources`; return what it needs."""
        names = sources.needed(sources.names_of(found["functions"]), is_compiled=found["is_compiled"])
        files = (name.rpartition(":")[0] for name in found["functions"])
        needs = dict(sorted((sources.digests(names) | _workload_digests(files)).items()))
        self._add(case.key, needs)
        return needs

    def _add(self, key: str, needs: Needs) -> None:
        if needs not in self.entries.setdefault(key, []):
            self.entries[key].append(needs)


def changed(needs: Needs, sources: Sources) -> list[str]:
    """Return the names of what a case needs that `sources`, or the workloads of this checkout, have otherwise."""
    return sorted(name for name, digest in needs.items() if _digest_now(name, sources) != digest)


def is_recordable(case: Case) -> bool:
    """Return whether a case can have an entry."""
    return case.clock not in OTHER_PROCESSES


@functools.cache
def _workload_sources() -> Sources:
    return Sources(Path(workloads.__file__).parent)


def _workload_digests(files: Iterable[str]) -> dict[str, str]:
    modules = {module for file in files if (module := _workload_sources().module_of(file)) is not None}
    return {f"{WORKLOADS}{module}": _workload_sources().digest_of_module(module) for module in modules}


def _digest_now(name: str, sources: Sources) -> str:
    if name.startswith(WORKLOADS):
        return _workload_sources().digest_of_module(name.removeprefix(WORKLOADS))
    return sources.digests([name])[name]


def _forget() -> None:
    """Empty the package's caches, so that what fills them is entered again: functions' and those named as such."""
    for name, module in list(sys.modules.items()):
        if name.partition(".")[0] != package() or module is None:
            continue
        for value in list(vars(module).values()):
            if hasattr(value, "cache_clear"):
                value.cache_clear()
            elif type(value).__name__.endswith("Cache"):
                value.clear()


@contextlib.contextmanager
def _uncompiled() -> Iterator[list[Any]]:
    """Run compiled functions uncompiled; note each call of `torch.compile` and `Module.compile`.

    Torch's compiler, whose import takes seconds, is not imported for work that compiles nothing.
    """
    import torch

    calls: list[Any] = []
    whole, module = torch.compile, torch.nn.Module.compile

    with contextlib.ExitStack() as stack:
        if "torch._dynamo" in sys.modules:
            stack.enter_context(torch.compiler.set_stance("force_eager"))

        def noting(compile_: Callable[..., Any]) -> Callable[..., Any]:
            def noted(*arguments: Any, **options: Any) -> Any:
                if not calls:
                    stack.enter_context(torch.compiler.set_stance("force_eager"))
                calls.append(arguments)
                return compile_(*arguments, **options)

            return noted

        torch.compile, torch.nn.Module.compile = noting(whole), noting(module)  # type: ignore[method-assign]
        try:
            yield calls
        finally:
            torch.compile, torch.nn.Module.compile = whole, module  # type: ignore[method-assign]


@contextlib.contextmanager
def _codes() -> Iterator[set[CodeType]]:
    """Collect the code of every Python function that starts, in all threads; before Python 3.12, in this one."""
    codes: set[CodeType] = set()
    if sys.version_info < (3, 12):

        def enter(frame: FrameType, event: str, argument: Any) -> None:
            codes.add(frame.f_code)

        before = sys.gettrace()
        sys.settrace(enter)
        try:
            yield codes
        finally:
            sys.settrace(before)
        return
    monitoring = sys.monitoring
    tool = next(number for number in range(6) if monitoring.get_tool(number) is None)

    def start(code: CodeType, offset: int) -> Any:
        codes.add(code)
        return monitoring.DISABLE  # each code once

    monitoring.use_tool_id(tool, "reach")
    monitoring.register_callback(tool, monitoring.events.PY_START, start)
    monitoring.restart_events()
    monitoring.set_events(tool, monitoring.events.PY_START)
    try:
        yield codes
    finally:
        monitoring.set_events(tool, 0)
        monitoring.free_tool_id(tool)
