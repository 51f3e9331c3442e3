"""The records of a run: raw samples in order, with the device and the reasons; one file per machine and commit.

Written while measuring: every finished visit is appended to `<commit>.jsonl.part` at once, so that a run that dies
loses nothing. At the end of a run the journal is folded into `<commit>.jsonl.gz`, written aside and renamed.

Lines, by `kind`:
    session   who measured and with what: id, started_at, day, harness, effort, machine, commit, device, software
    process   one worker process of a session: package_digest (of the `cs336_systems` it imported), and ceilings, the
              best rates seen on the machine up to then
    visit     one stay at one case: benchmark, params, visit (0 is thrown away), order, status, samples_ns, ...
    run       how long it all took: benchmark, cases, seconds
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
from dataclasses import dataclass, field
from io import FileIO
from pathlib import Path
from typing import Any

from perf.files import replace_file
from perf.harness.case import case_key
from perf.harness.status import GOES_ON, Status

KINDS = ("session", "process", "visit", "run")

KEPT_FROM_VISIT = 1
"""The first visit of a case (number 0) finds a cool GPU and cold compilers: it is recorded and never used."""


@dataclass(frozen=True)
class Session:
    """One run of one commit on one machine."""

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
    ceilings: dict[str, Any] = field(default_factory=dict)
    """Best rates over the session's processes: matmul_flops_per_s by dtype, copy_bytes_per_s."""


@dataclass(frozen=True)
class CaseResult:
    """One case of one session."""

    benchmark: str
    params: dict[str, Any]
    status: Status

    reason: str
    visits_s: tuple[tuple[float, ...], ...]
    """Samples of each kept visit, in order; empty unless ok."""

    peak_bytes: int | None
    facts: dict[str, float]
    """Numbers beside the time; see `workload.Workload`."""

    cache: str
    clock: str
    flops: float
    min_bytes: float
    matmul_dtype: str
    """Whose measured matmul rate bounds `flops`; "" where none was said."""

    session: Session

    @property
    def samples_s(self) -> tuple[float, ...]:
        """All kept samples, in order."""
        return tuple(sample for visit in self.visits_s for sample in visit)


class Journal:
    """The open records of one commit, appended line by line, by one run at a time.

    Raises `SystemExit` with one line if it cannot write, or another run does.
    """

    def __init__(self, directory: Path, machine: str, commit: str):
        self._target = directory / machine / f"{commit}.jsonl.gz"
        self._part = self._target.with_name(f"{commit}.jsonl.part")
        with self._one_line():
            self._target.parent.mkdir(parents=True, exist_ok=True)
            self._stream = self._open()
            if os.fstat(self._stream.fileno()).st_size:  # of a run that died
                self._fold()
                self._stream.truncate(0)

    def _open(self) -> FileIO:
        """The part, locked: a lock dies with its process, and so tells a run that died from one that is alive."""
        while True:
            stream = self._part.open("ab", buffering=0)
            try:
                fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                stream.close()
                raise SystemExit(f"perf: another run writes {self._part}; wait until it has ended") from None
            if os.fstat(stream.fileno()).st_nlink:
                return stream
            stream.close()  # the run that held it has just ended, and has removed it

    def write(self, line: dict[str, Any]) -> None:
        """Append one line and see it to the disk."""
        text = _encode(line)
        with self._one_line():
            written = self._stream.write(text)  # unbuffered: nothing is left to fail once more at close
            if written < len(text):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            os.fsync(self._stream.fileno())

    def close(self) -> None:
        """Fold the journal into the compressed file."""
        with self._one_line(), self._stream:
            self._fold()
            self._part.unlink()

    def _fold(self) -> None:
        lines = [*_read_lines(self._target), *_read_lines(self._part)]
        packed = io.BytesIO()
        with gzip.GzipFile("", "wb", fileobj=packed, mtime=0) as stream:  # mtime=0: the same lines make the same bytes
            for line in lines:
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
    """Every line of these kinds recorded for a commit, in order, an unfinished journal included."""
    folder = directory / machine
    return [
        *_read_lines(folder / f"{commit}.jsonl.gz", kinds),
        *_read_lines(folder / f"{commit}.jsonl.part", kinds),
    ]


def read_commit(directory: Path, machine: str, commit: str) -> list[CaseResult]:
    """One result per case; where several sessions measured a case, the newest speaks."""
    return summarize(read_lines(directory, machine, commit))


def machines(directory: Path) -> list[str]:
    """Machines that have records here."""
    return sorted(path.name for path in directory.iterdir() if path.is_dir()) if directory.is_dir() else []


def commits(directory: Path, machine: str) -> list[str]:
    """Full hashes of the commits with records of this machine, in no particular order."""
    return sorted({path.name.partition(".")[0] for path in (directory / machine).glob("*.jsonl.*")})


def known_ceilings(directory: Path, machine: str, device: str) -> dict[str, Any]:
    """The best rates that any process ever saw on this machine's device of that name (its GPU, or its CPU)."""
    found = []
    for commit in commits(directory, machine):
        devices: dict[str, str] = {}
        for line in read_lines(directory, machine, commit, kinds=("session", "process")):
            if line["kind"] == "session":
                devices[line["id"]] = line["device"]["name"]
            elif devices[line["session"]] == device:
                found.append(line["ceilings"])
    return best_ceilings(found)


def summarize(lines: Iterable[dict[str, Any]]) -> list[CaseResult]:
    """Pool the visits of every case; see `read_commit`."""
    sessions: dict[str, dict[str, Any]] = {}
    ceilings: dict[str, list[dict[str, Any]]] = {}
    visits: dict[str, list[dict[str, Any]]] = {}
    for line in lines:
        if line["kind"] == "session":
            sessions[line["id"]] = {name: value for name, value in line.items() if name != "kind"}
        elif line["kind"] == "process":
            ceilings.setdefault(line["session"], []).append(line["ceilings"])
        elif line["kind"] == "visit":
            of_case = visits.setdefault(case_key(line["benchmark"], line["params"].values()), [])
            if of_case and of_case[-1]["session"] != line["session"]:
                of_case.clear()
            of_case.append(line)
    opened = {
        name: Session(**values, ceilings=best_ceilings(ceilings.get(name, []))) for name, values in sessions.items()
    }
    return [_pool(of_case, opened[of_case[0]["session"]]) for of_case in visits.values()]


def best_ceilings(found: list[dict[str, Any]]) -> dict[str, Any]:
    """The best rate of each kind over several processes, or of several times in one; not all need have every kind."""
    found = [one for one in found if one]
    if not found:
        return {}
    dtypes = {dtype for one in found for dtype in one["matmul_flops_per_s"]}
    best: dict[str, Any] = {
        "matmul_flops_per_s": {
            dtype: max(one["matmul_flops_per_s"].get(dtype, 0.0) for one in found) for dtype in sorted(dtypes)
        }
    }
    if copies := [one["copy_bytes_per_s"] for one in found if "copy_bytes_per_s" in one]:
        best["copy_bytes_per_s"] = max(copies)
    return best


def _pool(visits: list[dict[str, Any]], session: Session) -> CaseResult:
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


def _read_lines(path: Path, kinds: tuple[str, ...] = ("",)) -> Iterator[dict[str, Any]]:
    if not path.exists():
        return
    # Kinds are told by a line's first characters: of a million visits none has to be parsed to find a session.
    starts = tuple(f'{{"kind":"{kind}' for kind in kinds)
    opener = gzip.open if path.suffix == ".gz" else open
    try:
        with opener(path, "rt", encoding="utf-8") as stream:
            for text in stream:
                # A last line without its end was cut off while it was written.
                if text.startswith(starts) and text.endswith("\n"):
                    yield json.loads(text)
    except (OSError, EOFError, zlib.error, ValueError) as error:
        raise SystemExit(f"perf: {path} cannot be read: {error}; move it aside or restore it") from None
