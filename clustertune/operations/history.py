"""``history``: records of calls, held blocks and fits, in a file of JSON lines.

A thread appends a record after the work, in one write, so several processes can share
the file. A full file becomes ``history.jsonl.old``. Lines that cannot be read are
skipped and counted.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import stat
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING

from clustertune import checks
from clustertune.core import arguments, decoding, settings
from clustertune.core.model import Snapshot
from clustertune.core.report import Report
from clustertune.core.wording import printable
from clustertune.errors import ClustertuneError
from clustertune.operations.journal import Journal
from clustertune.planner import machines
from clustertune.planner.machines import Workers
from clustertune.remote.ending import within

if TYPE_CHECKING:
    import pandas as pd

logger = logging.getLogger("clustertune")

MAX_SIZE = 16 * 2**20  # bytes of a file
MAX_TEXT = 500  # characters of an error
ANSWER = 5.0  # seconds for the file system
MARK = b'{"clustertune": '  # the start of each line
LARGEST = 2**63  # larger numbers fit no column of a DataFrame
LAST = 9e9  # epoch seconds in the year 2255, which pandas can represent
_KINDS = {"float": "float64", "int | None": "Int64", "float | None": "Float64"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """One call or one held block; unknown values are None."""

    call: str  # "prepare", "restart", "hold"; "fit": a hold of prepared data
    began: float  # epoch seconds
    seconds: float
    status: str = ""  # as in the report: "planned" for a dry run
    label: str = ""  # the setting, or the label of the hold
    cluster: str = ""  # address of the scheduler
    workers: int | None = None
    threads: int | None = None
    hosts: int | None = None
    workload: str = ""
    rows: int | None = None
    columns: int | None = None
    partitions: int | None = None
    nbytes: int | None = None
    predicted_peak: int | None = None  # process bytes of the fullest worker
    peak: int | None = None
    limit: int | None = None  # memory limit of the worker with this peak
    spilled: int | None = None  # bytes on disk, of all workers
    busy: float | None = None  # CPUs on average, of all workers
    error: str = ""


# --- the file -------------------------------------------------------------------------


def file_of(path: str | None) -> Path:
    """Return the path of a history; None: in the user's XDG data folder."""
    folder = os.environ.get("XDG_DATA_HOME") or "~/.local/share"
    default = Path(folder, "clustertune", "history.jsonl")
    try:
        return (default if path is None else Path(path)).expanduser()
    except RuntimeError as error:  # some containers have users without a home
        raise ClustertuneError(
            f"the user has no home folder for the history ({error}): set "
            "clustertune.history.path, or clustertune.history.enabled to false"
        ) from error


def append(record: Record, path: Path) -> None:
    """Append a record; raise ClustertuneError if the file cannot be used."""
    line = json.dumps({"clustertune": 1} | asdict(record), allow_nan=False).encode()
    with _explained(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        file = _opened(path, os.O_RDWR | os.O_APPEND | os.O_CREAT)
        try:
            size = os.fstat(file).st_size
            if not MARK.startswith(os.pread(file, len(MARK), 0)):
                raise OSError("it is no history of clustertune")
            if size and os.pread(file, 1, size - 1) != b"\n":
                line = b"\n" + line  # the writer of the last line was killed
            if os.write(file, line + b"\n") <= len(line):
                raise OSError("the disk is full")
            # unless another process has renamed it
            if size > MAX_SIZE and os.path.samestat(os.fstat(file), path.stat()):
                path.replace(_old(path))
        finally:
            os.close(file)


def read(path: Path) -> tuple[list[Record], int]:
    """Return the records, oldest first, and the number of unreadable lines."""
    found: list[Record | None] = []
    for part in (_old(path), path):
        with _explained(part), suppress(FileNotFoundError):
            with os.fdopen(_opened(part, os.O_RDONLY), "rb") as file:
                lines = file.read(2 * MAX_SIZE).splitlines()
            found += [_from_line(line) for line in lines if line.strip()]
    return [record for record in found if record], found.count(None)


def _old(path: Path) -> Path:
    return path.with_name(f"{path.name}.old")


def _opened(path: Path, flags: int) -> int:
    """Open a regular file; a named pipe would block, and a device has no end."""
    file = os.open(path, flags | os.O_NONBLOCK | os.O_CLOEXEC, 0o666)
    if not stat.S_ISREG(os.fstat(file).st_mode):
        os.close(file)
        raise OSError("it is not a regular file")
    return file


@contextmanager
def _explained(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise ClustertuneError(
            f"the history {printable(str(path))} cannot be used "
            f"({error.strerror or error}): remove the cause, or set "
            "clustertune.history.path to another file"
        ) from error


def _from_line(line: bytes) -> Record | None:
    """Read a record of this release or another one; None: this is none."""
    try:
        record = decoding.convert(decoding.parse_json(line), Record)
    except ValueError:
        return None
    numbers = [v for v in asdict(record).values() if isinstance(v, int | float)]
    # negative differences are allowed: the clock may have been set back
    are_sound = all(abs(v) < LARGEST for v in numbers)  # False for NaN
    return record if are_sound and 0 <= record.began < LAST else None


# --- records (pure) -------------------------------------------------------------------


def of_call(call: str, journal: Journal, report: Report, began: float) -> Record:
    """Return the record of a call."""
    return replace(
        of_data(journal, report),
        call=call,
        began=began,
        seconds=report.seconds,
        status=report.status,
        predicted_peak=report.predicted_peak,
        error=printable(report.error, longest=MAX_TEXT),
    )


def of_data(journal: Journal, report: Report) -> Record:
    """Return the record of a future fit: its data and its cluster."""
    record = Record(call="fit", began=0.0, seconds=0.0)
    if not journal.views:
        return record
    view = journal.views[-1]
    if view.layouts:
        columns = view.layouts[0].collections[0].columns
        record = replace(record, workload=report.workload, columns=columns)
    for data in report.after[:1]:
        rows, partitions = data.rows, data.partitions
        record = replace(record, rows=rows, partitions=partitions, nbytes=data.nbytes)
    return on(record, view.now, view.eligible_workers)


def on(record: Record, snapshot: Snapshot, workers: Workers) -> Record:
    """Add the sizes of the cluster; count only these workers."""
    return replace(
        record,
        cluster=snapshot.scheduler,
        workers=len(workers),
        threads=sum(w.nthreads for w in workers),
        hosts=len(machines.by_host(workers)),
    )


async def note_call(call: str, journal: Journal, report: Report) -> Report:
    """Add the record of a call; return the report, with a note if that failed."""
    began = time.time() - report.seconds
    text = await note(lambda: of_call(call, journal, report, began))
    return replace(report, notes=(*report.notes, text)) if text else report


async def note(make: Callable[[], Record]) -> str:
    """Add a record if the history is enabled; return the problem, or ""."""
    try:
        own = settings.history()
        if own["enabled"]:
            record = make()
            record = replace(record, label=own["label"] or record.label)
            adding = asyncio.to_thread(append, record, file_of(own["path"]))
            await within(adding, ANSWER)  # a file of a network may never answer
    except asyncio.TimeoutError:
        return (
            f"perhaps not added to the history: no answer of its file in {ANSWER:g} s"
        )
    except (ClustertuneError, ValueError) as error:
        return f"not added to the history: {error}"
    except Exception as error:  # the finished work must not fail for its record
        logger.exception("clustertune could not add a record to the history")
        return f"not added to the history: {printable(repr(error), longest=200)}"
    return ""


# --- the public call ------------------------------------------------------------------


def history(
    call: str | None = None,
    *,
    label: str | None = None,
    since: str | float | None = None,
) -> pd.DataFrame:
    """Read the records of past calls, held blocks and fits.

    The setting ``clustertune.history.path`` has the path of the file.

    Parameters
    ----------
    call
        Select one kind of call: ``"prepare"``, ``"restart"``, ..., ``"hold"``, or
        ``"fit"``: a block that held the workers for prepared data.
    label
        Select one label: ``clustertune.history.label`` of Dask's configuration, or the
        label of a hold.
    since
        Select the records of the last seconds or duration (``"7 days"``).

    Returns
    -------
    pandas.DataFrame
        A row for each record, oldest first. Control characters in texts are escaped.
        ``attrs["skipped"]`` is the number of lines that cannot be read.

    Raises
    ------
    ValueError
        ``since`` is no duration, or a setting is wrong.
    ClustertuneError
        The file cannot be read; the message has the reason.

    Examples
    --------
    >>> clustertune.history("fit", since="7 days").seconds.mean()   # doctest: +SKIP
    """
    import pandas as pd

    settings.refuse_unknown()
    checks.configured()
    file, begin = file_of(settings.history()["path"]), 0.0
    if since is not None:
        begin = time.time() - arguments.duration("since", since)
    records, skipped = read(file)
    # a terminal would obey control characters
    rows = [
        {k: printable(v) if isinstance(v, str) else v for k, v in asdict(r).items()}
        for r in records
        if call in (None, r.call) and label in (None, r.label) and r.began >= begin
    ]
    kinds = {f.name: _KINDS.get(str(f.type), "object") for f in fields(Record)}
    frame = pd.DataFrame(rows, columns=list(kinds)).astype(kinds)
    began = pd.to_datetime(frame["began"], unit="s", utc=True)
    frame["began"] = began.astype("datetime64[ns, UTC]")  # also if there is no record
    frame.attrs["skipped"] = skipped
    return frame
