"""What calls and runs were like, kept in an SQLite file for whoever asks later.

One row a record: the columns by which rows are chosen, and all the rest as JSON, so
that a record can get more fields without another schema. The file has SQLite's rollback
journal and not its write-ahead log, since the home folders of clusters are often on a
network, where that log does not work. Every call opens the file for itself and closes
it: threads and processes may use the same file at once, and wait for each other.

What goes wrong is a :class:`~clustertune.errors.HistoryError` that says how to mend it.
"""

from __future__ import annotations

import json
import os
import sqlite3
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from shlex import quote as quote_shell
from urllib.parse import quote as quote_url

from clustertune.core import decoding
from clustertune.core.wording import bytes_text, plural, seconds_text, workers_text
from clustertune.errors import HistoryError

PATIENCE = 1.0  # seconds for which another process's write is waited for
LARGEST = 2**63 - 1  # that SQLite can hold; nothing that is counted comes near it
MOST_WORKERS = 100  # of a record: those that had most memory
OURS = 0x436C7475  # application_id: "Cltu"

#: each brings a file from the schema of its index to the next; never changed afterwards
SCHEMAS = (
    (
        """CREATE TABLE records (
            id INTEGER PRIMARY KEY AUTOINCREMENT, began REAL NOT NULL,
            kind TEXT NOT NULL, job TEXT NOT NULL, key TEXT UNIQUE, data TEXT NOT NULL
        )""",
        "CREATE INDEX by_job ON records (job, kind)",
        f"PRAGMA application_id = {OURS}",
    ),
)
VERSION = len(SCHEMAS)


@dataclass(frozen=True, slots=True, kw_only=True)
class Measures:
    """What a run took, by worker where that makes sense.

    As far as it was seen: between two looks more may have been used.
    """

    seconds: float
    peaks: Mapping[str | int, int] = field(default_factory=dict)  # bytes of process
    limits: Mapping[str | int, int] = field(default_factory=dict)
    spilled: int = 0  # bytes on disk at most, of all workers together
    busy: Mapping[str | int, float] = field(default_factory=dict)  # CPUs, on average
    gone: tuple[str | int, ...] = ()  # workers that went meanwhile
    unheld: float = 0.0  # seconds, at most, for which the hold was lost
    predicted: int | None = None  # bytes of the fullest worker; None: not known
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
        text += f"; {workers_text(self.gone)} went meanwhile" if self.gone else ""
        if self.unheld:
            text += f"; the hold was lost for up to {seconds_text(self.unheld)}"
        return text


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerMemory:
    """Bytes of one worker in a run; None where they are not known."""

    worker: str | int  # id
    limit: int | None = None
    idle: int | None = None  # of its process beside data: before a fit, after a run
    peak: int | None = None  # of its process
    managed: int | None = None  # of keys, when it was idle


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """One call or run; what is not known is None.

    Attributes
    ----------
    kind
        ``prepare``, ``plan`` (a dry run), ``fit`` (a held block), ``run`` (as the
        scheduler has seen it), or an operation: ``restart``, ``scale``, ...
    job
        What belongs together: the same data and model, again and again.
    began, seconds
        Epoch seconds, and how long it took.
    status
        As of a :class:`~clustertune.core.report.Report`.
    cluster, workers, threads, hosts, host_cpus
        The scheduler's address; how many there were. ``host_cpus`` are the CPUs that
        the workers of all hosts may use.
    workload, rows, columns, pieces, nbytes
        Of the training data, and what was to train on it.
    findings
        ``(severity, check)`` of what was found at first.
    steps
        What was done, or in a plan would have been.
    predicted_seconds, actual_seconds, predicted_bytes, actual_bytes
        Of the steps of which both are known.
    predicted_peak
        Bytes of the fullest worker.
    memory
        By worker.
    spilled, busy
        Bytes on disk at most; CPUs that were used on average; of all workers.
    error
        Why it failed, if it did.
    ended_by
        How a ``run`` ended: with a ``hold``, with ``training``, or with a ``gap``.
    key
        Of two with the same only the first is kept.
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
    pieces: int | None = None
    nbytes: int | None = None
    findings: tuple[tuple[str, str], ...] = ()
    steps: tuple[str, ...] = ()
    predicted_seconds: float | None = None
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

    @property
    def peak(self) -> float | None:
        """Memory of the fullest worker, as a fraction of its limit."""
        known = [m.peak / m.limit for m in self.memory if m.peak and m.limit]
        return max(known, default=None)


def file_of(path: str | None) -> Path:
    """The history file of that path; None: in the user's data folder, as XDG has it.

    Raises
    ------
    HistoryError
        The user has no home folder, as in some containers.
    """
    base = os.environ.get("XDG_DATA_HOME", "")
    try:
        if path is not None:
            return Path(path).expanduser()
        # a relative one is invalid, the XDG standard says
        data = Path(base) if base.startswith("/") else Path.home() / ".local" / "share"
    except RuntimeError as error:
        raise HistoryError(
            f"there is no home folder to keep the history in ({error}): set "
            "clustertune.history.path, or clustertune.history.enabled to false"
        ) from error
    return data / "clustertune" / "history.sqlite"


class Store:
    """A history file; it need not exist.

    Parameters
    ----------
    path
        Of the file. Its folder is made when something is added.
    patience
        Seconds for which another process's write is waited for.
    """

    def __init__(self, path: Path, *, patience: float = PATIENCE):
        self.path = path
        self.patience = patience

    def add(self, records: Iterable[Record], *, keep: int) -> int:
        """Append records, and let go of the oldest beyond ``keep``.

        Returns
        -------
        int
            How many were added: none again with a key that is there.

        Raises
        ------
        HistoryError
            The file is locked, damaged, not writable, of a newer release or no history.
        """
        rows = [_row(record) for record in records]
        with self._told(), self._open("rwc") as file:
            file.execute("BEGIN IMMEDIATE")  # the schema is read by who may change it
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
        kinds: Collection[str] = (),
        ids: Collection[int] = (),
        last: int | None = None,
    ) -> tuple[Record, ...]:
        """Records in the order in which they were added, oldest first.

        Parameters
        ----------
        job, kinds, ids
            Only these; all by default.
        last
            Of these only the last ones.

        Raises
        ------
        HistoryError
            As for :meth:`add`; but a file that may only be read is read.
        """
        with self._told():
            if not self.path.exists():
                return ()
        most = -1 if last is None else min(last, LARGEST)
        wanted = {"job": [] if job is None else [job], "kind": kinds, "id": ids}
        where = " AND ".join(
            f"{column} IN ({', '.join('?' * len(values))})"
            for column, values in wanted.items()
            if values
        )
        with self._told(), self._open("rw") as file:
            if not self._version(file):
                return ()
            rows = file.execute(
                # made of column names and question marks alone
                f"SELECT id, data FROM records WHERE {where or 1} "  # noqa: S608
                "ORDER BY id DESC LIMIT ?",
                [*(v for values in wanted.values() for v in values), most],
            ).fetchall()
        return tuple(self._record(*row) for row in reversed(rows))

    @contextmanager
    def _open(self, mode: str) -> Iterator[sqlite3.Connection]:
        if mode == "rwc":
            self.path.parent.mkdir(parents=True, exist_ok=True)
        file = sqlite3.connect(
            f"file:{quote_url(str(self.path.absolute()))}?mode={mode}",
            uri=True,
            timeout=self.patience,
            isolation_level=None,  # transactions are begun and ended here
        )
        try:
            yield file
        finally:
            file.close()  # what was not committed is undone

    def _version(self, file: sqlite3.Connection) -> int:
        """The schema of the file; 0: it is new."""
        (version,) = file.execute("PRAGMA user_version").fetchone()
        (owner,) = file.execute("PRAGMA application_id").fetchone()
        if owner != OURS:
            if file.execute("SELECT 1 FROM sqlite_master").fetchone() or version:
                raise HistoryError(
                    f"{self.path} is a database of something else, and is left alone: "
                    "set clustertune.history.path to another file"
                )
            return 0
        if version > VERSION:
            raise HistoryError(
                f"{self.path} is of a newer clustertune (schema {version}; this one "
                f"knows {VERSION}): install that one, or have another file by "
                "clustertune.history.path"
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
        return f"move the file away (mv {old} {new}); a new one is begun"

    @contextmanager
    def _told(self) -> Iterator[None]:
        """What SQLite and the file system say, and what to do."""
        try:
            yield
        # a message of SQLite's may have bytes of the file, which Python cannot decode
        except (sqlite3.Error, OSError, UnicodeDecodeError) as error:
            raise HistoryError(f"{self.path} {self._explained(error)}") from error

    def _explained(self, error: Exception) -> str:
        text = str(error)
        if "locked" in text:
            return (
                f"has been locked by another process for {self.patience:g} s: try "
                "again when that one has ended"
            )
        damaged = "not a database" in text or "malformed" in text
        if damaged or isinstance(error, UnicodeDecodeError):
            return f"is damaged, or no history file ({text}): {self._move_away()}"
        if isinstance(error, OSError) or "readonly" in text or "unable to open" in text:
            return (
                f"cannot be opened or written ({text}): make it writable, or set "
                "clustertune.history.path to a file that is"
            )
        return f"cannot be used ({text}): see to that, or {self._move_away()}"


# --- rows ---------------------------------------------------------------------------


def _row(record: Record) -> tuple[float, str, str, str | None, str]:
    fullest = sorted(record.memory, key=lambda m: -(m.peak or m.idle or 0))
    data = asdict(replace(record, memory=tuple(fullest[:MOST_WORKERS]), id=None))
    text = json.dumps(data, allow_nan=False)
    return record.began, record.kind, record.job, record.key, text


def _from_json(text: str) -> Record:
    """A record of this release or another one.

    Raises
    ------
    ValueError
        It is none.
    """
    record = decoding.read_json(text, Record)
    numbers = [v for v in asdict(record).values() if isinstance(v, int | float)]
    # a clock that was set back may make a difference negative; NaN is below nothing
    sound = all(abs(v) < LARGEST for v in numbers)
    if not sound or not 0 <= record.began < decoding.LAST:
        raise ValueError("a number in it is none, or no moment")
    return record
