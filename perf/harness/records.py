"""The records of a run: raw samples in order, with the device and the reasons; one file per machine and commit.

Lines, by `kind` (their form is in `record_forms`, their file in `journal`):
    session   the conditions of a run: id, started_at, day, harness, effort, machine, commit, device, software
    process   one worker process of a session: package_digest (of the `cs336_systems` it imported), and ceilings, the
              best rates measured on the machine up to then
    visit     one visit to one case: benchmark, params, visit (0 is discarded), order, status, samples_ns, ...
    reach     the code that a case needs: benchmark, params, needs; see `reach`. Only where no record has it yet
    run       a class that was measured: benchmark, cases, seconds, ended_at
"""

from collections.abc import Callable, Container, Iterable, Iterator
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

from perf.harness.case import case_key
from perf.harness.journal import Unreadable, read_lines
from perf.harness.record_forms import FORMS, fault
from perf.harness.status import GOES_ON, Status

KEPT_FROM_VISIT = 1
"""Number of the first visit that counts: visit 0 has a cool GPU and cold compilers, and is recorded only."""


@dataclass(frozen=True)
class Session:
    """The conditions of one run of one commit on one machine."""

    id: str
    started_at: str
    day: str
    harness: str
    effort: str
    """full, or quick (`asv run --quick`)."""

    machine: str
    commit: str
    device: dict[str, Any]
    software: dict[str, str]
    suite: str = ""
    """Digest of the classes and workloads that made its cases; "" in older records."""

    ceilings: dict[str, Any] = field(default_factory=dict)
    """Best rates over the session's processes: matmul_flops_per_s by dtype, copy_bytes_per_s, launches_per_s."""


@dataclass(frozen=True)
class CaseResult:
    """One case of one session."""

    benchmark: str
    params: dict[str, Any]
    status: Status

    reason: str
    visits_s: tuple[tuple[float, ...], ...]
    """Samples of each counted visit, in order; empty unless ok."""

    peak_bytes: int | None
    facts: dict[str, float]
    """Numbers beside the time; see `workload.Workload`."""

    cache: str
    clock: str
    flops: float
    min_bytes: float
    matmul_dtype: str
    """The dtype whose measured matmul rate bounds `flops`; "" if unknown."""

    session: Session

    @property
    def key(self) -> str:
        """Return the case's name; see `case_key`."""
        return case_key(self.benchmark, self.params.values())

    @property
    def samples_s(self) -> tuple[float, ...]:
        """Return all counted samples, in order."""
        return tuple(sample for visit in self.visits_s for sample in visit)


@dataclass(frozen=True)
class Recorded:
    """The records of a commit."""

    lines: list[dict[str, Any]]
    """Those of a known form, in order."""

    trouble: str = ""
    """Says what is left out, and why; "" if nothing is."""


def read(
    directory: Path,
    machine: str,
    commit: str,
    kinds: tuple[str, ...] = tuple(FORMS),
    warn: Callable[[str], None] = lambda line: None,
) -> Recorded:
    """Read a commit's records of these kinds, among which sessions have to be; raises nothing.

    Left out are faulty lines, whatever belongs to a faulty session, and each case with a faulty visit; `warn` gets a
    line that names the file and says so.
    """
    try:
        found = _sound(read_lines(directory, machine, commit, kinds))
    except Unreadable as error:
        found = Recorded([], f"cannot be read: {error.reason}")
    if found.trouble:
        warn(f"{directory / machine / commit}.jsonl.gz {found.trouble}; move it aside or restore it")
    return found


def _sound(lines: list[dict[str, Any]]) -> Recorded:
    sessions, faults, cases = set[str](), list[str](), set[str]()
    for line in lines:
        if why := _fault(line, sessions):
            named = f" of {line.get('benchmark')!s:.60}" if line["kind"] == "visit" else ""
            faults.append(f"{line['kind']}{named}: {why}")
            cases.add(_case(line))
        elif line["kind"] == "session":
            sessions.add(line["id"])
    if not faults:
        return Recorded(lines)
    kept = [line for line in lines if _case(line) not in cases]
    return Recorded(
        kept, f"is read without {len(lines) - len(kept)} of {len(lines)} lines, which are of another form: {faults[0]}"
    )


def _fault(line: dict[str, Any], sessions: Container[str | None]) -> str:
    if why := fault(line):
        return why
    if line["kind"] != "session" and line["session"] not in sessions:
        return "its session is unknown, or stands below it"
    if line["kind"] != "visit" or line["status"] != "ok" or line["visit"] < KEPT_FROM_VISIT:
        return ""
    counted = counted_samples(line) if line.get("samples_ns") else ()
    if counted and min(counted) <= 0 and "exposed" not in line["params"].values():  # a difference may be negative
        return f"samples_ns has {min(line['samples_ns'])!r:.40}; allowed: above 0"
    return "" if counted else "samples_ns has no sample"


def _case(line: dict[str, Any]) -> str:
    """Name the case of a visit, or of another line what else is left out with it; of a session that line alone."""
    if line["kind"] == "session":  # a sound line of the same id still tells of its visits
        return repr(line)
    return repr([line.get(name) for name in ("kind", "id", "session", "benchmark", "params")])


def read_commit(directory: Path, machine: str, commit: str) -> list[CaseResult]:
    """Return one result per case, from the newest session that measured it."""
    return summarize(read(directory, machine, commit).lines)


def read_machine(
    directory: Path, machine: str, warn: Callable[[str], None] = lambda line: None
) -> Iterator[dict[str, Any]]:
    """Yield what all commits' records tell of the machine: sessions, processes and reach; see `read`."""
    for commit in commits(directory, machine):
        yield from read(directory, machine, commit, ("session", "process", "reach"), warn).lines


def machines(directory: Path) -> list[str]:
    """List the machines with a record of any kind in `directory`."""
    folders = [path for path in directory.iterdir() if path.is_dir()] if directory.is_dir() else []
    return sorted(path.name for path in folders if any(one.is_file() for one in path.rglob("*")))


def commits(directory: Path, machine: str) -> list[str]:
    """List the full hashes of the commits with records of this machine, sorted by hash."""
    return sorted({path.name.partition(".")[0] for path in (directory / machine).glob("*.jsonl.*")})


def known_ceilings(lines: Iterable[dict[str, Any]], device: str) -> dict[str, Any]:
    """Return the best rates of any process among these lines that measured this device (its GPU or CPU)."""
    devices: dict[str, str] = {}
    rates = []
    for line in lines:
        if line["kind"] == "session":
            devices[line["id"]] = line["device"].get("name", "")
        elif line["kind"] == "process" and devices[line["session"]] == device:
            rates.append(line["ceilings"])
    return best_ceilings(rates)


def summarize(lines: Iterable[dict[str, Any]]) -> list[CaseResult]:
    """Pool the visits of each case; see `read_commit`."""
    sessions: dict[str, dict[str, Any]] = {}
    ceilings: dict[str, list[dict[str, Any]]] = {}
    visits: dict[str, dict[str, list[dict[str, Any]]]] = {}
    newest: dict[str, str] = {}
    for line in lines:
        if line["kind"] == "session":
            sessions[line["id"]] = {one.name: line[one.name] for one in fields(Session) if one.name in line}
        elif line["kind"] == "process":
            ceilings.setdefault(line["session"], []).append(line["ceilings"])
        elif line["kind"] == "visit":
            key = key_of(line)
            visits.setdefault(key, {}).setdefault(line["session"], []).append(line)
            last = newest.setdefault(key, line["session"])
            if sessions[line["session"]]["started_at"] >= sessions[last]["started_at"]:  # a merge appends older ones
                newest[key] = line["session"]
    opened = {
        name: Session(**values | {"ceilings": best_ceilings(ceilings.get(name, []))})
        for name, values in sessions.items()
    }
    return [_pool(visits[key][session], opened[session]) for key, session in newest.items()]


def key_of(line: dict[str, Any]) -> str:
    """Return the name of the case of a line of kind visit or reach; see `case_key`."""
    return case_key(line["benchmark"], line["params"].values())


def conditions(session: dict[str, Any]) -> list[Any]:
    """Return what sessions have in common if measurements may go on in the other one."""
    return [session.get(name) for name in ("day", "harness", "effort", "device", "software", "suite")]


def best_ceilings(measurements: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the best rate of each kind over several measurements, which need not have every kind."""
    measurements = [rates for rates in measurements if rates]
    if not measurements:
        return {}
    matmuls = [rates["matmul_flops_per_s"] for rates in measurements]
    dtypes = sorted({dtype for rates in matmuls for dtype in rates})
    best: dict[str, Any] = {
        "matmul_flops_per_s": {dtype: max(rates.get(dtype, 0.0) for rates in matmuls) for dtype in dtypes}
    }
    for name in ("copy_bytes_per_s", "launches_per_s"):
        if found := [rates[name] for rates in measurements if name in rates]:
            best[name] = max(found)
    return best


def _pool(attempts: list[dict[str, Any]], session: Session) -> CaseResult:
    visits = list({attempt["visit"]: attempt for attempt in attempts}.values())  # a later run repeats what failed
    kept = [v for v in visits if v["visit"] >= KEPT_FROM_VISIT and v["status"] == "ok"]
    failed = [v for v in visits if v["status"] not in GOES_ON]
    if failed:
        status, reason = failed[0]["status"], failed[0]["reason"]
    elif kept or not visits[0].get("timed", True):
        status, reason = "ok", ""
    else:
        status = "throttled" if any(v["status"] == "throttled" for v in visits) else "error"
        reason = next((v["reason"] for v in visits if v.get("reason")), "the run ended before a visit that counts")
    first = visits[0]
    floor = first.get("floor", {})
    return CaseResult(
        benchmark=first["benchmark"],
        params=first["params"],
        status=status,
        reason=reason,
        visits_s=tuple(map(counted_samples, kept)) if status == "ok" else (),
        peak_bytes=next((v["peak_bytes"] for v in visits if v.get("peak_bytes") is not None), None),
        facts=first.get("facts", {}),
        cache=first["cache"],
        clock=first.get("clock", ""),
        flops=floor.get("flops", 0.0),
        min_bytes=floor.get("bytes_read", 0.0) + floor.get("bytes_written", 0.0),
        matmul_dtype=floor.get("matmul_dtype", ""),
        session=session,
    )


def counted_samples(visit: dict[str, Any]) -> tuple[float, ...]:
    """Return the samples of a visit, seconds, without those during which the device was throttled."""
    throttled = set(visit.get("throttled", ()))
    return tuple(ns * 1e-9 for index, ns in enumerate(visit["samples_ns"]) if index not in throttled)
