"""Compare the kernels that rows launch at two commits: the same machine code, or which of it differs."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from perf.gate.evidence import Arm
from perf.gate.explanation import pair_by_name
from perf.gate.machine_code.targets import TARGETS

Word = Literal["BROKEN", "WORSE", "DIFFERS", "FIXED", "NEW", "GONE", "SAME"]
BAD: tuple[Word, ...] = ("BROKEN", "WORSE")
ORDER: tuple[Word, ...] = ("BROKEN", "WORSE", "DIFFERS", "FIXED", "NEW", "GONE", "SAME")
"""Words by urgency. WORSE: more of it is on the stack, where registers spill."""

Launches = list[tuple[str, str]]
"""Launches of a row: digest of the kernel, and its grid and numbers; of torch's operators "", and name and shapes."""

MIN_SIMILARITY = 0.6
"""Similarity of two names in the source, shorter than in a profile, from which a kernel counts as renamed."""


@dataclass(frozen=True)
class Plan:
    """Launches of the rows at a commit on a target."""

    rows: Mapping[str, Launches | str | dict[str, str]]
    """Case key -> launches, why they are unknown, or the error of a call that fails."""

    kernels: Mapping[str, dict[str, Any]]
    """Digest -> name and constants."""


@dataclass(frozen=True)
class KernelChange:
    """A kernel whose source, arguments' types or constants differ."""

    target: str
    word: Word
    base: str
    """Name; "" for a new kernel."""

    head: str
    head_dim: str
    """Its constant; "" for a kernel without."""

    constants: tuple[str, ...]
    """"K_TILE_SIZE 64 -> 128"."""

    before: dict[str, Any]
    """`Compiled` at the base, or an error."""

    after: dict[str, Any]
    rows: int


@dataclass(frozen=True)
class Comparison:
    """All rows of one target."""

    kernels: tuple[KernelChange, ...]
    same: tuple[str, ...]
    """Rows whose machine code and launches are the same."""

    reached: dict[str, str]
    """Rows with other machine code or launches, and which."""

    broken: dict[str, str]
    """Rows whose call fails at the head alone, and how."""

    unknown: dict[str, str]
    """Rows whose launches are unknown at either commit, and why."""

    without: tuple[str, ...]
    """Rows that run none of the package's code: its peers."""


@dataclass(frozen=True)
class Report:
    """What `perf machine-code` found."""

    base: Arm
    head: Arm
    targets: dict[str, Comparison]
    compiled: int
    """Kernels that were compiled or read from the cache, of both commits and all targets."""

    triton: str
    seconds: float
    command: str

    @property
    def exit_status(self) -> int:
        """Return 1 if a kernel or a call is broken or a kernel worse, 2 if no row's launches are known, else 0."""
        comparisons = self.targets.values()
        if any(one.broken or any(change.word in BAD for change in one.kernels) for one in comparisons):
            return 1
        return 0 if any(one.same or one.reached or one.without for one in comparisons) else 2


def unlike(base: Plan, head: Plan) -> tuple[list[str], list[str]]:
    """Return the digests of kernels that some row launches at one commit alone: all that needs to be compiled."""
    before, after = set[str](), set[str]()
    for key, ours in base.rows.items():
        theirs = head.rows[key]
        if isinstance(ours, list) and isinstance(theirs, list):
            mine, new = ({digest for digest, _ in launches if digest} for launches in (ours, theirs))
            before |= mine - new
            after |= new - mine
    return sorted(before), sorted(after)


def compare(
    target: str, base: Plan, head: Plan, before: Mapping[str, dict[str, Any]], after: Mapping[str, dict[str, Any]]
) -> Comparison:
    """Compare row by row; `before` and `after` hold the results of compiling the kernels of `unlike`."""
    changes: dict[tuple[str, str], KernelChange] = {}
    same, without = list[str](), list[str]()
    reached, broken, unknown = dict[str, str](), dict[str, str](), dict[str, str]()
    for key in base.rows:
        ours, theirs = base.rows[key], head.rows[key]
        if isinstance(theirs, dict) and not isinstance(ours, dict):
            broken[key] = theirs["error"]
            continue
        if not (isinstance(ours, list) and isinstance(theirs, list)):
            reason = ours if isinstance(theirs, list) else theirs
            unknown[key] = reason["error"] if isinstance(reason, dict) else str(reason)
            continue
        if not ours and not theirs:
            without.append(key)
            continue
        pairs = _paired(ours, theirs, base, head)
        for pair in pairs:
            change = _changed(target, pair, base, head, before, after)
            rows = changes[pair].rows if pair in changes else 0
            changes[pair] = KernelChange(**(vars(change) | {"rows": rows + 1}))
        if differing := [changes[pair] for pair in pairs if changes[pair].word != "SAME"]:
            reached[key] = ", ".join(dict.fromkeys(change.head or change.base for change in differing))
        elif [numbers for _, numbers in ours] != [numbers for _, numbers in theirs]:
            reached[key] = "the same machine code with another grid, other numbers or other operators of torch's"
        else:
            same.append(key)
    kernels = sorted(changes.values(), key=lambda change: (ORDER.index(change.word), change.head or change.base))
    return Comparison(tuple(kernels), tuple(same), reached, broken, unknown, tuple(without))


def _paired(ours: Launches, theirs: Launches, base: Plan, head: Plan) -> list[tuple[str, str]]:
    """Pair the kernels that only one side launches, by their names; "" for none."""
    before, after = (dict.fromkeys(digest for digest, _ in launches if digest) for launches in (ours, theirs))
    gone = {digest: base.kernels[digest]["name"] for digest in before if digest not in after}
    new = {digest: head.kernels[digest]["name"] for digest in after if digest not in before}
    old = pair_by_name(gone, new, MIN_SIMILARITY)
    pairs = [(old.get(digest, ""), digest) for digest in new]
    return pairs + [(digest, "") for digest in gone if digest not in old.values()]


def _changed(
    target: str,
    pair: tuple[str, str],
    base: Plan,
    head: Plan,
    before: Mapping[str, dict[str, Any]],
    after: Mapping[str, dict[str, Any]],
) -> KernelChange:
    old, new = (plan.kernels.get(digest, {}) for plan, digest in zip((base, head), pair, strict=True))
    results = before.get(pair[0], {}), after.get(pair[1], {})
    constants = [
        f"{name} {old['constants'].get(name, '-')} -> {new['constants'].get(name, '-')}"
        for name in (dict.fromkeys([*old["constants"], *new["constants"]]) if old and new else ())
        if old["constants"].get(name) != new["constants"].get(name)
    ]
    word = _word(target, *results)
    known = new.get("constants") or old.get("constants", {})
    head_dim = known.get("HEAD_DIM") or known.get("D", "")
    names = old.get("name", ""), new.get("name", "")
    return KernelChange(target, word, *names, head_dim, tuple(constants), *results, rows=0)


def _word(target: str, before: dict[str, Any], after: dict[str, Any]) -> Word:
    was_broken, is_broken = (
        "error" in found or found.get("shared_bytes", 0) > TARGETS[target].shared_bytes for found in (before, after)
    )
    if is_broken:
        return "DIFFERS" if was_broken else "BROKEN"
    if not after:
        return "GONE"
    if not before:
        return "NEW"
    if was_broken:
        return "FIXED"
    if before["sass"] == after["sass"]:
        return "SAME"
    return "WORSE" if after["stack_bytes"] > before["stack_bytes"] else "DIFFERS"


def changes(change: KernelChange) -> list[str]:
    """List the properties that differ: "registers 168 -> 200"."""
    before, after = change.before, change.after
    if error := after.get("error") or before.get("error"):
        return [str(error)]
    if not before or not after:
        only = after or before
        return [f"{name} {only[key]}" for key, name in NAMES.items()]
    pairs = [(name, before[key], after[key]) for key, name in NAMES.items()]
    pairs += [(kind, before["mix"][kind], count) for kind, count in after["mix"].items()]
    found = [f"{name} {old} -> {new}" for name, old, new in pairs if old != new]
    return found or (["the same instructions in another order"] if change.word != "SAME" else [])


NAMES = {
    "registers": "registers",
    "stack_bytes": "stack bytes",
    "shared_bytes": "shared bytes",
    "instructions": "instructions",
}


def to_measure(comparisons: Iterable[Comparison]) -> set[str]:
    """Return the keys of rows whose device time may have moved on some target, or whose launches are unknown."""
    return {key for comparison in comparisons for key in (*comparison.reached, *comparison.broken, *comparison.unknown)}
