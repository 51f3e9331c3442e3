"""The records of a run: raw samples in order, with the device and the reasons; one file per machine and commit.

Every finished visit is appended to `<commit>.jsonl.part` at once, so that a killed run loses nothing. At the end of a
run the journal is folded into `<commit>.jsonl.gz`, atomically.

Lines, by `kind`:
    session   the conditions of a run: id, started_at, day, harness, effort, machine, commit, device, software
    process   one worker process of a session: package_digest (of the `cs336_systems` it imported), and ceilings, the
              best rates measured on the machine up to then
    visit     one visit to one case: benchmark, params, visit (0 is discarded), order, status, samples_ns, ...
    reach     the code that a case needs: benchmark, params, needs; see `reach`. Only where no record has it yet
    run       a class that was measured: benchmark, cases, seconds, ended_at
"""

import errno
import fcntl
import gzip
import io
import json
import os
import zlib
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, fields
from io import FileIO
from pathlib import Path
from typing import Any

from perf.files import replace_file
from perf.harness.case import case_key
from perf.harness.status import GOES_ON, Status

KINDS = ("session", "process", "visit", "reach", "run")

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


class Journal:
    """The open records of one commit, to which one run at a time appends lines.

    Raises `SystemExit` with one line if it cannot write, or if another run is writing.
    """

    def __init__(self, directory: Path, machine: str, commit: str):
        self._target = directory / machine / f"{commit}.jsonl.gz"
        self._part = self._target.with_name(f"{commit}.jsonl.part")
        with self._one_line():
            self._target.parent.mkdir(parents=True, exist_ok=True)
            self._stream = self._open()
            if os.fstat(self._stream.fileno()).st_size:  # left by a killed run
                self._fold()
                self._stream.truncate(0)

    def _open(self) -> FileIO:
        """Open and lock the journal: the lock ends with its process, so an unlocked journal is of a killed run."""
        while True:
            stream = self._part.open("ab", buffering=0)
            try:
                fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                stream.close()
                raise SystemExit(f"perf: another run writes {self._part}; wait until it has ended") from None
            if os.fstat(stream.fileno()).st_nlink:
                return stream
            stream.close()  # the run that had locked it has just removed it

    def write(self, line: dict[str, Any]) -> None:
        """Append one line and sync it to the disk."""
        text = _encode(line)
        with self._one_line():
            written = self._stream.write(text)  # unbuffered: closing the file cannot fail again
            if written < len(text):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            os.fsync(self._stream.fileno())

    def close(self) -> None:
        """Fold the journal into the compressed file."""
        with self._one_line(), self._stream:
            self._fold()
            self._part.unlink()

    def _fold(self) -> None:
        packed = io.BytesIO()
        with gzip.GzipFile("", "wb", fileobj=packed, mtime=0) as stream:  # mtime=0: the same lines make the same bytes
            for line in _joined(self._target, self._part):
                stream.write(_encode(line))
        replace_file(self._target, packed.getvalue())

    @contextmanager
    def _one_line(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            kept = f"; what was measured until then is in {self._part.name}" if self._part.exists() else ""
            raise SystemExit(f"perf: cannot write records to {self._part.parent}: {error.strerror}{kept}") from None


def _encode(line: dict[str, Any]) -> bytes:
    return (json.dumps(line, separators=(",", ":")) + "\n").encode()


def read_lines(directory: Path, machine: str, commit: str, kinds: tuple[str, ...] = KINDS) -> list[dict[str, Any]]:
    """Read a commit's lines of these kinds, in order, those of an unfinished journal included."""
    folder = directory / machine
    return _joined(folder / f"{commit}.jsonl.gz", folder / f"{commit}.jsonl.part", kinds)


def read_commit(directory: Path, machine: str, commit: str) -> list[CaseResult]:
    """Return one result per case, from the newest session that measured it."""
    return summarize(read_lines(directory, machine, commit))


def machines(directory: Path) -> list[str]:
    """List the machines with a record of any kind in `directory`."""
    folders = [path for path in directory.iterdir() if path.is_dir()] if directory.is_dir() else []
    return sorted(path.name for path in folders if any(one.is_file() for one in path.rglob("*")))


def commits(directory: Path, machine: str) -> list[str]:
    """List the full hashes of the commits with records of this machine, sorted by hash."""
    return sorted({path.name.partition(".")[0] for path in (directory / machine).glob("*.jsonl.*")})


def known_ceilings(directory: Path, machine: str, device: str) -> dict[str, Any]:
    """Return the best rates of any process on record for this machine and this device (its GPU or CPU)."""
    rates = []
    for commit in commits(directory, machine):
        devices: dict[str, str] = {}
        with known_form(directory, machine, commit):
            for line in read_lines(directory, machine, commit, kinds=("session", "process")):
                if line["kind"] == "session":
                    devices[line["id"]] = line["device"]["name"]
                elif devices[line["session"]] == device:
                    rates.append(line["ceilings"])
    return best_ceilings(rates)


@contextmanager
def known_form(directory: Path, machine: str, commit: str) -> Iterator[None]:
    """Raise `SystemExit` with one line where what is inside finds lines of another form than it reads."""
    try:
        yield
    except (KeyError, TypeError, AttributeError) as error:
        raise SystemExit(
            f"perf: {directory / machine / commit}.jsonl.gz cannot be read: a line is of another form ({error}); move "
            "it aside or restore it"
        ) from None


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


def _joined(target: Path, part: Path, kinds: tuple[str, ...] = ("",)) -> list[dict[str, Any]]:
    """Return the lines of both files, those of the journal once: a run that is killed after it was folded leaves it."""
    # The journal first: a run that ends in between moves its lines to the other file.
    journal, folded = (list(_read_lines(path, kinds)) for path in (part, target))
    if not journal:
        return folded
    begins = [number for number, line in enumerate(folded) if line == journal[0]]
    is_folded = any(folded[number : number + len(journal)] == journal for number in begins)
    return folded if is_folded else [*folded, *journal]


def _read_lines(path: Path, kinds: tuple[str, ...] = ("",)) -> Iterator[dict[str, Any]]:
    # A line's first characters give its kind, so a million visits need not be parsed to find a session.
    starts = tuple(f'{{"kind":"{kind}' for kind in kinds)
    opener = gzip.open if path.suffix == ".gz" else open
    try:
        with opener(path, "rt", encoding="utf-8") as stream:
            for text in stream:
                # A last line without its end was cut off by the end of a killed run.
                if text.startswith(starts) and text.endswith("\n"):
                    yield json.loads(text)
    except FileNotFoundError:
        return
    except (OSError, EOFError, zlib.error, ValueError) as error:
        raise SystemExit(f"perf: {path} cannot be read: {error}; move it aside or restore it") from None
