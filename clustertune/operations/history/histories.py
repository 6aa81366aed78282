"""``history``: the calls and runs that were noted, and what they tell."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, fields
from datetime import datetime
from difflib import get_close_matches
from pathlib import Path
from textwrap import fill
from typing import Any

from tabulate import tabulate

from clustertune import checks
from clustertune.core import arguments, settings
from clustertune.core.snapshots import Unknown
from clustertune.core.wording import (
    bytes_text,
    names_text,
    plural,
    printable,
    seconds_text,
)
from clustertune.operations.history import settings as history_settings
from clustertune.operations.history import trends
from clustertune.operations.history.record import Record, Store, file_of
from clustertune.operations.history.trends import (
    Difference,
    Leak,
    Regression,
    Sizing,
    WhatIf,
)

SCHEMA_VERSION = 1
KINDS = (
    "prepare", "plan", "fit", "run",
    "restart", "resize", "scale", "trim", "release", "reset",
)  # fmt: skip
MOST = 50  # records that are shown


@dataclass(frozen=True, slots=True, kw_only=True)
class Trends:
    """What the runs of a job have in common; unknown where they are too few."""

    job: str
    leaks: tuple[Leak, ...] | Unknown
    sizing: Sizing | Unknown
    regressions: tuple[Regression, ...] | Unknown

    def __str__(self) -> str:
        lines = [f"job {printable(self.job) or '(none)'}"]
        for what, found in (
            ("memory", self.leaks),
            ("size", self.sizing),
            ("change", self.regressions),
        ):
            several = found if isinstance(found, tuple) else (found,)
            lines += [
                f"{what}: {x}" for x in several or ("nothing is lost from run to run",)
            ]
        return "\n".join(lines)

    def to_json(self) -> str:
        """The same as JSON, with ``schema_version``."""
        return _json(trends=self)


@dataclass(frozen=True, slots=True, kw_only=True)
class History:
    """Calls and runs that were noted, oldest first.

    Attributes
    ----------
    path
        The file that they are in.
    records
        The records that match the request; see
        :class:`clustertune.operations.history.record.Record`.
    missing
        Why there are none, although the file has records.
    """

    path: Path
    records: tuple[Record, ...]
    missing: str = ""

    def what_if(self, workers: Sequence[int]) -> WhatIf | Unknown:
        """Predict how long the last job's fit takes on so many workers.

        The model (work per CPU, a cost for each worker beyond the first, a fixed cost)
        is fitted to this job's own runs, and knows nothing else.

        Parameters
        ----------
        workers
            Numbers of workers, each like those of the last run.

        Returns
        -------
        WhatIf or Unknown
            Its ``error`` is that at known points, each left out in turn. Unknown where
            fewer than three kinds of clusters were seen.

        Raises
        ------
        ValueError
            A number is not a whole one of at least 1.
        """
        for n in workers:
            arguments.number("workers", n)
        return trends.what_if(self.records, workers)

    def trends(self) -> Trends:
        """Memory that leaks, how many workers would do, and whether runs get worse."""
        fits = trends.comparable(self.records)
        sizing: Sizing | Unknown = Unknown("too few runs: no fit was held yet")
        for fit in fits[-1:]:
            sizing = trends.sizing(fit)
        return Trends(
            job=fits[-1].job if fits else "",
            leaks=trends.leaks(self.records),
            sizing=sizing,
            regressions=trends.regressions(self.records),
        )

    def compare(self, first: int, second: int) -> tuple[Difference, ...]:
        """Two records side by side.

        Raises
        ------
        LookupError
            There is no such record.
        """
        return trends.compare(self.record(first), self.record(second))

    def record(self, id: int) -> Record:
        """The record of that number.

        Raises
        ------
        LookupError
            There is none.
        """
        for record in self.records:
            if record.id == id:
                return record
        raise LookupError(
            f"there is no record {id} in {self.path}; `clustertune history list` shows "
            "which there are"
        )

    def __str__(self) -> str:
        if not self.records:
            return self.missing or f"nothing is noted in {printable(str(self.path))}"
        more = len(self.records) - MOST
        table = self._table("simple")
        return f"({plural(more, 'older one')})\n{table}" if more > 0 else table

    def _table(self, style: str) -> str:
        rows = [_row(record) for record in self.records[-MOST:]]
        return tabulate(rows, headers=_COLUMNS, tablefmt=style, disable_numparse=True)

    def __repr__(self) -> str:
        return f"<History: {plural(len(self.records), 'record')}>"

    def _repr_html_(self) -> str:
        return self._table("html")

    def to_json(self) -> str:
        """All records as JSON, with ``schema_version``."""
        return _json(records=list(self.records))


_COLUMNS = (
    "id", "when", "kind", "job", "status", "took", "workers", "rows", "peak",
    "spilled", "CPUs",
)  # fmt: skip


def _row(record: Record) -> list[str]:
    def known(value: Any, text: Any = str) -> str:
        return "" if value is None else str(text(value))

    return [
        known(record.id),
        when(record),
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


def when(record: Record) -> str:
    """When it began, in the local zone."""
    return datetime.fromtimestamp(record.began).astimezone().strftime("%Y-%m-%d %H:%M")


def details(record: Record) -> str:
    """All that is known of a record, as text."""
    rows = [("when", when(record)), ("cluster", printable(record.cluster))]
    rows += [(d.what, d.first) for d in trends.compare(record, record)]
    text = tabulate(rows, tablefmt="plain", disable_numparse=True)
    memory = [
        [printable(m.worker), *(_bytes(n) for n in (m.idle, m.peak, m.limit))]
        for m in record.memory
    ]
    if memory:
        header = ("worker", "idle", "peak", "limit")
        text += f"\n\n{tabulate(memory, header, disable_numparse=True)}"
    return text


def _bytes(n: int | None) -> str:
    return "unknown" if n is None else bytes_text(n)


def differences(found: Sequence[Difference]) -> str:
    """Two records side by side, as text."""
    # tabulate's own wrapping takes "200,000" for a number, and fails
    rows = [[d.what, fill(d.first, 40), fill(d.second, 40), d.ratio] for d in found]
    headers = ["", "first", "second", "ratio"]
    return tabulate(rows, headers, disable_numparse=True)


def _json(**what: Any) -> str:
    return json.dumps({"schema_version": SCHEMA_VERSION} | what, default=_plain)


def _plain(value: Any) -> Any:
    """What JSON is to say of a value of ours."""
    if isinstance(value, Unknown):
        return {"unknown": value.reason}
    # not asdict, which would make plain what lies deeper
    return {f.name: getattr(value, f.name) for f in fields(value)}


def history(
    job: str | None = None,
    *,
    kind: str | None = None,
    last: int | None = None,
    path: str | Path | None = None,
) -> History:
    """Read the calls and runs that were noted.

    Parameters
    ----------
    job
        Only of this one, as it was noted: ``clustertune.history.job`` of Dask's
        configuration, the label of a hold, or workload and columns (``xgboost-20``).
    kind
        Only these: ``"prepare"``, ``"plan"``, ``"fit"`` (held runs), ``"run"`` (as the
        scheduler has seen them), or an operation, like ``"restart"``.
    last
        Only so many, the latest.
    path
        Of the file; by default that of ``clustertune.history.path``.

    Returns
    -------
    History
        Printable; ``records``, ``what_if()``, ``trends()``, ``compare()``.

    Raises
    ------
    ValueError
        An argument is not what it must be.
    HistoryError
        The file cannot be read; the text says how to mend that.

    Examples
    --------
    >>> print(clustertune.history("nightly").what_if([2, 4, 8]))   # doctest: +SKIP
    """
    if kind is not None and kind not in KINDS:
        raise ValueError(f"kind={kind!r} is none of {', '.join(KINDS)}")
    settings.refuse_unknown(checks.all_settings())
    file = history_settings.configured().path if path is None else file_of(str(path))
    store = Store(file)
    records = store.read(
        job=job,
        kinds=() if kind is None else (kind,),
        last=arguments.count("last", last),
    )
    missing = "" if records else _missing(store, job, kind)
    return History(path=file, records=records, missing=missing)


def _missing(store: Store, job: str | None, kind: str | None) -> str:
    """Why no record matches a request, and which jobs and kinds there are."""
    every = store.read()
    if not every:
        return ""
    shown = printable(repr(job), longest=100)
    of_job = [r for r in every if job in (None, r.job)]
    if of_job:
        which = "" if job is None else f" of the job {shown}"
        kinds = sorted({printable(r.kind) for r in of_job})
        return (
            f"no record{which} is of the kind {kind}; there are "
            f"{names_text(kinds, most=MOST)}"
        )
    jobs = sorted({printable(r.job) for r in every if r.job})
    near = get_close_matches(str(job), jobs, n=1)
    meant = f" (did you mean {near[0]}?)" if near else ""
    known = f"jobs are {names_text(jobs, most=MOST)}" if jobs else "no record has a job"
    return f"no record is of the job {shown}{meant}; {known}"
