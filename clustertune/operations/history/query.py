"""``history``: read the records of past calls and runs, and compare them."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from difflib import get_close_matches
from pathlib import Path
from textwrap import fill
from typing import Any

from tabulate import tabulate

from clustertune import checks
from clustertune.core import arguments, settings
from clustertune.core.findings import Severity
from clustertune.core.snapshots import Unknown
from clustertune.core.wording import (
    bytes_text,
    names_text,
    plural,
    printable,
    seconds_text,
    time_text,
    times_text,
)
from clustertune.operations.history.store import Record, Store, configured, file_of
from clustertune.operations.history.trends import (
    Leak,
    Regression,
    Usage,
    comparable,
    leaks,
    regressions,
    usage,
)

SCHEMA_VERSION = 1
KINDS = (
    "prepare", "plan", "fit", "run",
    "restart", "resize", "merge", "scale", "trim", "release",
)  # fmt: skip
MAX_SHOWN = 50  # records


# --- comparison of two records --------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """One value of two records, as text."""

    what: str
    first: str
    second: str
    ratio: str = ""  # of the second to the first


def _count(n: float) -> str:
    return f"{n:,.0f}"


#: the name of a value, the value (None or "" is unknown), and its text
_VALUES: tuple[tuple[str, Callable[[Record], Any], Callable[[Any], str]], ...] = (
    ("kind", lambda r: r.kind, printable),
    ("job", lambda r: r.job, printable),
    ("status", lambda r: r.status, printable),
    ("workload", lambda r: r.workload, printable),
    ("found", lambda r: ", ".join(f"{c} ({s})" for s, c in r.findings), printable),
    ("steps", lambda r: "; ".join(r.steps), printable),
    ("error", lambda r: r.error, printable),
    ("took", lambda r: r.seconds, seconds_text),
    ("workers", lambda r: r.workers, _count),
    ("threads", lambda r: r.threads, _count),
    ("rows", lambda r: r.rows, _count),
    ("columns", lambda r: r.columns, _count),
    ("partitions", lambda r: r.partitions, _count),
    ("bytes", lambda r: r.nbytes, bytes_text),
    ("peak of memory", lambda r: r.peak, "{:.0%}".format),
    ("peak predicted", lambda r: r.predicted_peak, bytes_text),
    ("spilled", lambda r: r.spilled, bytes_text),
    ("CPUs busy", lambda r: r.busy, "{:.2g}".format),
    ("steps took", lambda r: r.actual_seconds, seconds_text),
    ("bytes predicted", lambda r: r.predicted_bytes, bytes_text),
    ("bytes moved", lambda r: r.actual_bytes, bytes_text),
)


def compare(first: Record, second: Record) -> tuple[Difference, ...]:
    """Compare all known values of two records."""
    found = []
    for what, value, show in _VALUES:
        a, b = value(first), value(second)
        if a in (None, "") and b in (None, ""):
            continue
        x, y = ("unknown" if v is None else show(v) for v in (a, b))
        is_number = not isinstance(a, str)
        ratio = times_text(b / a) if is_number and a and b is not None else ""
        found.append(Difference(what=what, first=x, second=y, ratio=ratio))
    return tuple(found)


# --- the public call ------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Trends:
    """Trends over the runs of a job; Unknown where there are too few runs."""

    job: str
    leaks: tuple[Leak, ...] | Unknown
    sizing: Usage | Unknown
    regressions: tuple[Regression, ...] | Unknown

    @property
    def found(self) -> tuple[Leak | Regression, ...]:
        """Leaks, and measures that are worse."""
        known = [x for x in (self.leaks, self.regressions) if isinstance(x, tuple)]
        every: list[Leak | Regression] = [x for found in known for x in found]
        return tuple(x for x in every if x.severity is not Severity.unknown)

    def exit_status(self, fail_on: Severity | None) -> int:
        """Return 1 if a leak or regression has at least this severity, else 0."""
        return int(
            fail_on is not None and any(x.severity >= fail_on for x in self.found)
        )

    def __str__(self) -> str:
        lines = [f"job {printable(self.job) or '(none)'}"]
        for what, found in (
            ("memory", self.leaks),
            ("size", self.sizing),
            ("change", self.regressions),
        ):
            several = found if isinstance(found, tuple) else (found,)
            for x in several or ("no worker leaks memory",):
                level = f" ({x.severity})" if x in self.found else ""
                lines.append(f"{what}{level}: {x}")
        return "\n".join(lines)

    def to_json(self) -> str:
        """Return the trends as JSON; ``severity`` is the highest one, or null."""
        worst = max((x.severity for x in self.found), default=None)
        return _json(trends=self, severity=None if worst is None else str(worst))


@dataclass(frozen=True, slots=True, kw_only=True)
class History:
    """Records of calls and runs, oldest first.

    Attributes
    ----------
    path
        Path of the history file.
    records
        The records that match the request; see
        :class:`clustertune.operations.history.store.Record`.
    missing
        Reason why no record matches, if the file has records.
    """

    path: Path
    records: tuple[Record, ...]
    missing: str = ""

    def trends(self) -> Trends:
        """Return memory leaks, the fewest sufficient workers, and regressions."""
        fits = comparable(self.records)
        return Trends(
            job=fits[-1].job if fits else "",
            leaks=leaks(self.records),
            sizing=usage(fits[-1])
            if fits
            else Unknown("too few runs: no fit was held yet"),
            regressions=regressions(self.records),
        )

    def compare(self, first: int, second: int) -> tuple[Difference, ...]:
        """Compare two records by their numbers.

        Raises
        ------
        LookupError
            There is no such record.
        """
        return compare(self.record(first), self.record(second))

    def record(self, id: int) -> Record:
        """Return the record with a number.

        Raises
        ------
        LookupError
            There is no such record.
        """
        for record in self.records:
            if record.id == id:
                return record
        raise LookupError(
            f"there is no record {id} in {self.path}; `clustertune history list` shows "
            "all numbers"
        )

    def __str__(self) -> str:
        if not self.records:
            return (
                self.missing or f"there are no records in {printable(str(self.path))}"
            )
        more = len(self.records) - MAX_SHOWN
        table = self._table("simple")
        return f"({plural(more, 'older one')})\n{table}" if more > 0 else table

    def _table(self, style: str) -> str:
        rows = [_row(record) for record in self.records[-MAX_SHOWN:]]
        return tabulate(rows, headers=_COLUMNS, tablefmt=style, disable_numparse=True)

    def __repr__(self) -> str:
        return f"<History: {plural(len(self.records), 'record')}>"

    def _repr_html_(self) -> str:
        return self._table("html")

    def to_json(self) -> str:
        """Return all records as JSON, with ``schema_version``."""
        return _json(records=list(self.records))


def history(
    job: str | None = None,
    *,
    kind: str | None = None,
    cluster: str | None = None,
    last: int | None = None,
    path: str | Path | None = None,
) -> History:
    """Read the records of past calls and runs.

    Parameters
    ----------
    job
        Select one job: ``clustertune.history.job`` of Dask's configuration, the label
        of a hold, or workload and columns (``xgboost-20``).
    kind
        Select ``"prepare"``, ``"plan"``, ``"fit"`` (held runs), ``"run"`` (seen by the
        scheduler plugin), or an operation, like ``"restart"``.
    cluster
        Select one cluster by the address of its scheduler, such as
        ``"tcp://10.0.0.5:8786"`` or ``"10.0.0.5:8786"``.
    last
        Return only so many records, the latest.
    path
        Path of the file; by default ``clustertune.history.path``.

    Returns
    -------
    History
        Printable; has ``records``, ``trends()`` and ``compare()``.

    Raises
    ------
    ValueError
        An argument is invalid.
    HistoryError
        The file cannot be read; the message names a fix.

    Examples
    --------
    >>> print(clustertune.history("nightly").trends())   # doctest: +SKIP
    """
    if kind is not None and kind not in KINDS:
        raise ValueError(f"kind={kind!r} is none of {', '.join(KINDS)}")
    settings.refuse_unknown(checks.all_settings())
    file = configured().path if path is None else file_of(str(path))
    store = Store(file)
    count = arguments.count("last", last)
    records = store.read(job=job, kind=kind, cluster=cluster, last=count)
    missing = "" if records else _missing(store, job, kind, cluster)
    return History(path=file, records=records, missing=missing)


def _missing(
    store: Store, job: str | None, kind: str | None, cluster: str | None
) -> str:
    """Explain why no record matches, and list the existing jobs, clusters or kinds."""
    left = store.read()
    if not left:
        return ""
    selection: dict[str, Any] = {}
    which = ""
    for what, wanted in (("job", job), ("cluster", cluster), ("kind", kind)):
        if wanted is None:
            continue
        before, left = left, store.read(**(selection := selection | {what: wanted}))
        shown = f"of the {what} {printable(repr(wanted), longest=100)}"
        if left:
            which += f" {shown}"
            continue
        known = sorted({printable(x) for r in before if (x := getattr(r, what))})
        near = get_close_matches(wanted, known, n=1)
        meant = f" (did you mean {near[0]}?)" if near else ""
        there = f"there are {names_text(known, most=MAX_SHOWN)}"
        if not known:
            there = f"no record has a {what}"
        return f"no record{which} is {shown}{meant}; {there}"
    return ""  # the record was added meanwhile


# --- text and JSON --------------------------------------------------------------------

_COLUMNS = (
    "id", "when", "cluster", "kind", "job", "status", "took", "workers", "rows",
    "peak", "spilled", "CPUs",
)  # fmt: skip


def _row(record: Record) -> list[str]:
    def known(value: Any, text: Any = str) -> str:
        return "" if value is None else str(text(value))

    return [
        known(record.id),
        _when(record),
        printable(record.cluster, longest=50) or "-",
        printable(record.kind),
        printable(record.job, longest=30),
        printable(record.status),
        seconds_text(record.seconds),
        known(record.workers),
        known(record.rows, "{:,}".format),
        known(record.peak, "{:.0%}".format),
        known(record.spilled, bytes_text),
        known(record.busy, "{:.2g}".format),
    ]


def _when(record: Record) -> str:
    return time_text(record.began, unit="minutes")


def details(record: Record) -> str:
    """Return all values of a record as text."""
    rows = [("when", _when(record)), ("cluster", printable(record.cluster) or "-")]
    rows += [(d.what, d.first) for d in compare(record, record)]
    text = tabulate(rows, tablefmt="plain", disable_numparse=True)
    memory = [
        [printable(m.worker), *map(_bytes, (m.idle, m.peak, m.limit))]
        for m in record.memory
    ]
    if memory:
        header = ("worker", "idle", "peak", "limit")
        text += f"\n\n{tabulate(memory, header, disable_numparse=True)}"
    return text


def _bytes(n: int | None) -> str:
    return "unknown" if n is None else bytes_text(n)


def differences(found: Sequence[Difference]) -> str:
    """Return two compared records as text."""
    # tabulate's own wrapping takes "200,000" for a number, and fails
    rows = [[d.what, fill(d.first, 40), fill(d.second, 40), d.ratio] for d in found]
    headers = ["", "first", "second", "ratio"]
    return tabulate(rows, headers, disable_numparse=True)


def _json(**what: Any) -> str:
    return json.dumps({"schema_version": SCHEMA_VERSION} | what, default=_plain)


def _plain(value: Any) -> Any:
    if isinstance(value, Unknown):
        return {"unknown": value.reason}
    # asdict would convert nested values, too, and an Unknown among them
    return {f.name: getattr(value, f.name) for f in fields(value)}
