"""The history file: its records, its settings, reading and writing.

The file is an SQLite database with one row per record. It has columns for the values
that queries select by. All other values are JSON, so new fields need no new schema.
SQLite uses its rollback journal, because its write-ahead log does not work on network
file systems. Each call opens and closes the file, so threads and processes can share
it.
"""

from __future__ import annotations

import json
import os
import sqlite3
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from itertools import islice
from pathlib import Path
from shlex import quote as quote_shell
from typing import Any
from urllib.parse import quote as quote_url

from clustertune.core import decoding, settings
from clustertune.core.wording import bytes_text, plural, seconds_text, workers_text
from clustertune.errors import HistoryError

LOCK_TIMEOUT = 1.0  # seconds to wait for another process's write
LARGEST = 2**63 - 1  # largest integer in SQLite
MAX_WORKERS = 100  # workers per record: those with most memory
APPLICATION_ID = 0x436C7475  # "Cltu"

#: statements that upgrade a file from the schema of that index to the next one
SCHEMAS = (
    (
        """CREATE TABLE records (
            id INTEGER PRIMARY KEY AUTOINCREMENT, began REAL NOT NULL,
            kind TEXT NOT NULL, job TEXT NOT NULL, key TEXT UNIQUE, data TEXT NOT NULL
        )""",
        "CREATE INDEX by_job ON records (job, kind)",
        f"PRAGMA application_id = {APPLICATION_ID}",
    ),
)
VERSION = len(SCHEMAS)


# --- records --------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Measures:
    """Resources that a run used, by worker where possible.

    The values are sampled, so short peaks between two samples may be missing.
    """

    seconds: float
    peaks: Mapping[str | int, int] = field(default_factory=dict)  # bytes of process
    limits: Mapping[str | int, int] = field(default_factory=dict)
    spilled: int = 0  # largest number of bytes on disk, of all workers together
    busy: Mapping[str | int, float] = field(default_factory=dict)  # CPUs, on average
    gone: tuple[str | int, ...] = ()  # workers that left during the run
    unheld: float = 0.0  # seconds, at most, for which the hold was lost
    predicted: int | None = None  # bytes of the fullest worker; None: unknown
    idle: Mapping[str | int, int] = field(default_factory=dict)  # unmanaged, at first

    def __str__(self) -> str:
        text = f"held for {seconds_text(self.seconds)}"
        if self.peaks:
            fullest = max(self.peaks, key=lambda i: self.peaks[i])
            text += (
                f"; at most {bytes_text(self.peaks[fullest])} on "
                f"{workers_text([fullest])}"
            )
            if self.limits.get(fullest):
                text += f" of {bytes_text(self.limits[fullest])}"
            if self.predicted is not None:
                text += f" ({bytes_text(self.predicted)} predicted)"
        text += f"; {bytes_text(self.spilled)} spilled" if self.spilled else ""
        if self.busy:
            text += f"; {plural(round(sum(self.busy.values()), 1), 'CPU')} busy"
        text += f"; {workers_text(self.gone)} left meanwhile" if self.gone else ""
        if self.unheld:
            text += f"; the hold was lost for up to {seconds_text(self.unheld)}"
        return text


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerMemory:
    """Bytes of one worker in a run; None where unknown."""

    worker: str | int  # id
    limit: int | None = None
    idle: int | None = None  # unmanaged memory: before a fit, after a run
    peak: int | None = None  # process memory
    managed: int | None = None  # managed memory at the time of ``idle``


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """One call or run; unknown values are None.

    Attributes
    ----------
    kind
        ``prepare``, ``plan`` (a dry run), ``fit`` (a held block), ``run`` (seen by the
        scheduler plugin), or an operation: ``restart``, ``scale``, ...
    job
        Name shared by runs of the same model on the same kind of data.
    began, seconds
        Epoch seconds; duration.
    status
        Status of the :class:`~clustertune.core.report.Report`.
    cluster, workers, threads, hosts, host_cpus
        Address of the scheduler; sizes of the cluster. ``host_cpus`` counts the CPUs
        that the workers of all hosts may use.
    workload, rows, columns, partitions, nbytes
        Workload and training data.
    findings
        ``(severity, check)`` of each finding of the first check.
    steps
        Steps that were done; in a plan, planned.
    actual_seconds, predicted_bytes, actual_bytes
        Sums over the steps; bytes over those for which both are known.
    predicted_peak
        Predicted bytes of the fullest worker.
    memory
        Memory by worker.
    spilled, busy
        Largest number of bytes on disk; average number of busy CPUs; of all workers.
    error
        Reason of a failure.
    ended_by
        End of a ``run``: ``hold``, ``training``, or ``gap``.
    key
        The file keeps only the first record with a key.
    id
        Number in the file.
    """

    kind: str
    began: float
    seconds: float
    job: str = ""
    status: str = ""
    cluster: str = ""
    workers: int | None = None
    threads: int | None = None
    hosts: int | None = None
    host_cpus: float | None = None
    workload: str = ""
    rows: int | None = None
    columns: int | None = None
    partitions: int | None = None
    nbytes: int | None = None
    findings: tuple[tuple[str, str], ...] = ()
    steps: tuple[str, ...] = ()
    actual_seconds: float | None = None
    predicted_bytes: int | None = None
    actual_bytes: int | None = None
    predicted_peak: int | None = None
    memory: tuple[WorkerMemory, ...] = ()
    spilled: int | None = None
    busy: float | None = None
    error: str = ""
    ended_by: str = ""
    key: str | None = None
    id: int | None = None

    @property
    def ended(self) -> float:
        return self.began + self.seconds

    def is_of(self, cluster: str) -> bool:
        """Whether the scheduler has this address, with or without its protocol."""
        return cluster in (self.cluster, self.cluster.rpartition("://")[2])

    @property
    def peak(self) -> float | None:
        known = [m.peak / m.limit for m in self.memory if m.peak and m.limit]
        return max(known, default=None)


# --- settings -------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class HistorySettings:
    """Settings of the history in Dask's configuration."""

    enabled: bool
    file: str | None  # None: in the user's data folder
    keep: int  # records
    job: str | None  # None: derived from the data

    @property
    def path(self) -> Path:
        """Path of the file; raises HistoryError if the user has no data folder."""
        return file_of(self.file)


def _is_text(value: object) -> bool:
    return isinstance(value, str) and bool(value.strip())


_ALLOWED: Mapping[str, tuple[Callable[[Any], bool], str]] = {
    "enabled": (lambda v: isinstance(v, bool), "True or False"),
    "path": (lambda v: v is None or _is_text(v), "the path of a file, or null"),
    "keep": (lambda v: type(v) is int and v >= 1, "a whole number of at least 1"),
    "job": (lambda v: v is None or _is_text(v), "a name, or null"),
}


def configured() -> HistorySettings:
    """Return the settings of the history; raise ValueError if one is wrong."""
    found = settings.section("clustertune.history")
    for name, value in found.items():
        if name not in _ALLOWED:
            raise ValueError(
                f"clustertune.history has no setting {name!r}; it has "
                f"{', '.join(_ALLOWED)}"
            )
        is_allowed, rule = _ALLOWED[name]
        if not is_allowed(value):
            raise ValueError(f"clustertune.history.{name}={value!r} must be {rule}")
    known = settings.defaults()["clustertune"]["history"] | dict(found)
    return HistorySettings(file=known.pop("path"), **known)


def file_of(path: str | None) -> Path:
    """Return the path of a history file; None: in the user's XDG data folder.

    Raise HistoryError if the user has no home folder, as in some containers.
    """
    base = os.environ.get("XDG_DATA_HOME", "")
    try:
        if path is not None:
            return Path(path).expanduser()
        # the XDG standard calls a relative path invalid
        data = Path(base) if base.startswith("/") else Path.home() / ".local" / "share"
    except RuntimeError as error:
        raise HistoryError(
            f"the user has no home folder for the history ({error}): set "
            "clustertune.history.path, or clustertune.history.enabled to false"
        ) from error
    return data / "clustertune" / "history.sqlite"


# --- the file -------------------------------------------------------------------------


class Store:
    """Read and write a history file, which need not exist.

    ``patience`` is the number of seconds to wait for another process's write. Methods
    raise HistoryError if the file is locked, damaged, not writable, of another program,
    or of a newer release.
    """

    def __init__(self, path: Path, *, patience: float = LOCK_TIMEOUT):
        self.path = path
        self.patience = patience

    def add(self, records: Iterable[Record], *, keep: int) -> int:
        """Append records, delete the oldest beyond ``keep``, return how many are new.

        Records whose key exists are not added.
        """
        rows = [_row(record) for record in records]
        with self._explained(), self._open("rwc") as file:
            file.execute("BEGIN IMMEDIATE")  # before the schema is read
            for statements in SCHEMAS[self._version(file) :]:
                for statement in statements:
                    file.execute(statement)
            file.execute(f"PRAGMA user_version = {VERSION}")
            before = file.total_changes
            file.executemany(
                "INSERT OR IGNORE INTO records (began, kind, job, key, data) "
                "VALUES (?, ?, ?, ?, ?)",
                rows,
            )
            added = file.total_changes - before
            file.execute(
                "DELETE FROM records WHERE id <= (SELECT max(id) FROM records) - ?",
                (keep,),
            )
            file.execute("COMMIT")
        return added

    def read(
        self,
        *,
        job: str | None = None,
        kind: str | None = None,
        cluster: str | None = None,
        last: int | None = None,
    ) -> tuple[Record, ...]:
        """Return records in the order in which they were added, or only the latest.

        ``job``, ``kind`` and ``cluster`` select records. A file that cannot be written
        is still read.
        """
        with self._explained():
            if not self.path.exists():
                return ()
            with self._open("rw") as file:
                if not self._version(file):
                    return ()
                rows = file.execute(
                    "SELECT id, data FROM records WHERE job = coalesce(?, job) "
                    "AND kind = coalesce(?, kind) ORDER BY id DESC",
                    (job, kind),
                )
                records = (self._record(*row) for row in rows)
                found = (r for r in records if cluster is None or r.is_of(cluster))
                most = None if last is None else min(last, LARGEST)
                return tuple(islice(found, most))[::-1]

    @contextmanager
    def _open(self, mode: str) -> Iterator[sqlite3.Connection]:
        if mode == "rwc":
            self.path.parent.mkdir(parents=True, exist_ok=True)
        file = sqlite3.connect(
            f"file:{quote_url(str(self.path.absolute()))}?mode={mode}",
            uri=True,
            timeout=self.patience,
            isolation_level=None,  # this class begins and ends transactions
        )
        try:
            yield file
        finally:
            file.close()  # undoes an open transaction

    def _version(self, file: sqlite3.Connection) -> int:
        """Return the schema of the file; 0: the file is new."""
        (version,) = file.execute("PRAGMA user_version").fetchone()
        (owner,) = file.execute("PRAGMA application_id").fetchone()
        if owner != APPLICATION_ID:
            if file.execute("SELECT 1 FROM sqlite_master").fetchone() or version:
                raise HistoryError(
                    f"{self.path} is a database of another program, so it was not "
                    "changed: set clustertune.history.path to another file"
                )
            return 0
        if version > VERSION:
            raise HistoryError(
                f"a newer clustertune wrote {self.path} (schema {version}; this one "
                f"knows {VERSION}): install that release, or set "
                "clustertune.history.path to another file"
            )
        return int(version)

    def _record(self, id: int, data: str) -> Record:
        try:
            return replace(_from_json(data), id=id)
        except ValueError as error:
            raise HistoryError(
                f"{self.path}: record {id} is damaged ({error!r}); {self._move_away()}"
            ) from error

    def _move_away(self) -> str:
        old, new = quote_shell(str(self.path)), quote_shell(f"{self.path}.bad")
        return f"move the file away (mv {old} {new}); the next call starts a new one"

    @contextmanager
    def _explained(self) -> Iterator[None]:
        """Turn errors of SQLite and the file system into a HistoryError with a fix."""
        try:
            yield
        # SQLite's messages may contain bytes of the file that Python cannot decode
        except (sqlite3.Error, OSError, UnicodeDecodeError) as error:
            raise HistoryError(f"{self.path} {self._problem(error)}") from error

    def _problem(self, error: Exception) -> str:
        text = str(error)
        if "locked" in text:
            return (
                f"has been locked by another process for {self.patience:g} s: try "
                "again when that process has ended"
            )
        damaged = "not a database" in text or "malformed" in text
        if damaged or isinstance(error, UnicodeDecodeError):
            return f"is damaged, or no history file ({text}): {self._move_away()}"
        if isinstance(error, OSError) or "readonly" in text or "unable to open" in text:
            return (
                f"cannot be opened or written ({text}): make it writable, or set "
                "clustertune.history.path to a file that is"
            )
        return f"cannot be used ({text}): remove the cause, or {self._move_away()}"


def _row(record: Record) -> tuple[float, str, str, str | None, str]:
    fullest = sorted(record.memory, key=lambda m: -(m.peak or m.idle or 0))
    data = asdict(replace(record, memory=tuple(fullest[:MAX_WORKERS]), id=None))
    try:
        text = json.dumps(data, allow_nan=False)
        _from_json(text)  # one record that cannot be read hides all others
    except (TypeError, ValueError) as error:
        raise HistoryError(
            f"a record of kind {record.kind!r} could not be read again ({error}), so "
            "the history file was not changed"
        ) from error
    return record.began, record.kind, record.job, record.key, text


def _from_json(text: str) -> Record:
    """Read a record of this release or another one; raise ValueError for other text."""
    record = decoding.read_json(text, Record)
    numbers = [v for v in asdict(record).values() if isinstance(v, int | float)]
    # negative differences are allowed: the clock may have been set back
    are_sound = all(abs(v) < LARGEST for v in numbers)  # False for NaN
    if not are_sound or not 0 <= record.began < decoding.LAST:
        raise ValueError("a number or a time in it is out of range")
    return record
