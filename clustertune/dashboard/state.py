"""The *page state*: everything that the page shows, as plain data.

A state is a dictionary. Sizes are bytes, times are epoch seconds, durations are
seconds, and None means unknown. Its texts come from the cluster and are untrusted.

``time``
    When the cluster was read.
``scheduler``
    Address of the scheduler.
``trouble``
    Why the other entries are old or missing, as a sentence, or an empty text.
``workers``
    For each worker ``id``, ``address``, ``host``, ``status`` (Dask's), ``silent`` (time
    since the last heartbeat), ``threads``, ``limit`` (0: none), ``process``,
    ``managed``, ``spilled``, and ``thresholds``: target, spill, pause, terminate.
``collections``
    For each layout ``label``, ``partitions``, ``rows``, ``apart`` (partitions whose
    companions are on different workers), ``missing`` (partitions in no memory),
    ``lost`` (rows that nothing computes again), and ``workers`` with ``id``, ``rows``,
    ``partitions`` and ``due`` (the even share of rows).
``findings``
    None, or the last findings: ``time``, ``command`` that checks again, and ``found``,
    each with ``severity``, ``check``, ``message``, ``remedy`` and ``processes``:
    addresses of workers. The finding ends with these workers.
``events``
    Oldest first: ``time``, ``kind`` (``done``, ``failed``, ``held`` or ``scheduled``)
    and ``text``.
``fits``
    Running fits: ``round``, ``rounds`` (None: unknown), ``metric`` (its name and last
    value as text), ``rate`` (rounds per second) and ``seconds`` since the fit began.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from time import time
from typing import Any

from clustertune.core.wording import (
    are,
    bytes_text,
    plural,
    times_text,
    verb,
    workers_text,
)

State = dict[str, Any]
Items = Sequence[Mapping[str, Any]]

#: checks of workers that the page sees itself, so their old findings do not count
OF_WORKERS = frozenset(
    ("memory_pressure", "missing_workers", "paused_workers", "unresponsive_workers")
)
#: checks of rows, which the page sees itself if it has counted them
OF_ROWS = frozenset(("empty_workers", "separated_pairs", "uneven_rows"))
MAX_SILENCE = 15.0  # seconds without a heartbeat; there is one each second
MAX_IMBALANCE = 1.05  # rows over the even share: the default tolerance of prepare
MAX_REASONS = 3


def make(**parts: Any) -> State:
    """Return a page state; entries that are not given are empty or unknown."""
    lists = ("workers", "collections", "events", "fits")
    texts = {"scheduler": "", "trouble": ""}
    empty: State = {name: [] for name in lists} | {"time": time(), "findings": None}
    return empty | texts | parts


def condition(worker: Mapping[str, Any]) -> str:
    """Return the problem of a worker in a few words, or an empty text."""
    status, silent = str(worker["status"]).replace("_", " "), worker["silent"]
    words = [] if status == "running" else [status]
    words += [f"silent for {silent:.0f} s"] if silent >= MAX_SILENCE else []
    return ", ".join(words)


def row_problem(share: Mapping[str, Any]) -> str:
    """Return the problem of a worker's rows in a few words, or an empty text."""
    rows, due = share["rows"], share["due"]
    if due and not rows:
        return "empty"
    if rows > due * MAX_IMBALANCE:
        return "too many" if due else "should have none"
    return ""


def imbalance(layout: Mapping[str, Any]) -> float | None:
    """Return the rows of the fullest worker over its even share; 1 is even."""
    found = [w["rows"] / w["due"] for w in layout["workers"] if w["due"]]
    return max(found, default=None)


def in_memory(layouts: Items) -> list[Mapping[str, Any]]:
    """Return the layouts that no client has released as a whole."""
    return [x for x in layouts if not x["missing"] or x["missing"] < x["partitions"]]


def has_ended(finding: Mapping[str, Any], addresses: Collection[str]) -> bool:
    """Return whether all processes of a finding have ended."""
    processes = finding["processes"]
    return bool(processes) and not any(p in addresses for p in processes)


# --- the verdict ----------------------------------------------------------------------


def total(workers: Items) -> str:
    """Return the cluster in one line."""
    used = bytes_text(sum(w["process"] for w in workers))
    limit = sum(w["limit"] for w in workers)
    memory = f"{used} of {bytes_text(limit)}" if limit else used
    return (
        f"{plural(len(workers), 'worker')} on "
        f"{plural(len({w['host'] for w in workers}), 'host')}, "
        f"{plural(sum(w['threads'] for w in workers), 'thread')}, {memory} in use"
    )


def verdict(state: State) -> tuple[str, str]:
    """Return whether a fit can begin, and the reasons.

    The first is ``Ready``, ``Usable`` (a fit would run, but not well), ``Not ready`` or
    ``Unknown``.
    """
    workers, layouts = state["workers"], in_memory(state["collections"])
    if state["trouble"]:
        return "Unknown", state["trouble"]
    if not workers:
        return "Not ready", "the cluster has no workers"
    lost = [
        f"{plural(x['missing'], 'partition')} of {x['label']} not in memory"
        for x in layouts
        if x["missing"]
    ]
    worst = [*_worker_problems(workers), *lost, *_messages(state, "critical")]
    if worst:
        return "Not ready", _listed(worst)
    # problems of rows first: they cost most
    bad = [*_row_problems(layouts), *_memory_problems(workers)]
    bad += _messages(state, "warning")
    if bad:
        return "Usable, but", _listed(bad)
    if state["findings"] is None:
        return "Ready", "as far as the page can see: no check has run yet"
    return "Ready", "no problem is known"


def _worker_problems(workers: Items) -> Iterable[str]:
    paused = [w["id"] for w in workers if w["status"] == "paused"]
    silent = [w["id"] for w in workers if w["silent"] >= MAX_SILENCE]
    if paused:
        yield f"{workers_text(paused)} {are(paused)} paused"
    if silent:
        least = f"{MAX_SILENCE:.0f} s or more"
        yield f"{workers_text(silent)} sent no heartbeat for {least}"
    if not (paused or silent or any(w["status"] == "running" for w in workers)):
        yield "no worker is running"


def _memory_problems(workers: Items) -> Iterable[str]:
    full = [w["id"] for w in workers if w["process"] >= (w["thresholds"][1] or 2**63)]
    if full:
        has = verb(full, "has")
        yield f"{workers_text(full)} {has} more memory than the spill threshold"


def _row_problems(layouts: Items) -> Iterable[str]:
    for layout in layouts:
        label, shares = layout["label"], layout["workers"]
        empty = [w["id"] for w in shares if row_problem(w) == "empty"]
        if empty:
            yield f"{workers_text(empty)} {verb(empty, 'holds')} no rows of {label}"
        if layout["apart"]:
            yield f"{plural(layout['apart'], 'separated pair')} of {label}"
        fullest = imbalance(layout)
        if fullest is not None and fullest > MAX_IMBALANCE and not empty:
            share = f"the fullest worker has {times_text(fullest)} its share"
            yield f"rows of {label} are uneven: {share}"


def _messages(state: State, severity: str) -> list[str]:
    found = state["findings"]["found"] if state["findings"] else ()
    addresses = {w["address"] for w in state["workers"]}
    live = OF_WORKERS | OF_ROWS if state["collections"] else OF_WORKERS
    known = [f for f in found if f["severity"] == severity and f["check"] not in live]
    # without counted rows, findings about rows are first
    known.sort(key=lambda f: f["check"] not in OF_ROWS)
    return [f["message"] for f in known if not has_ended(f, addresses)]


def _listed(reasons: list[str]) -> str:
    """Return the first reasons, and the number of the others."""
    more = [f"and {len(reasons) - MAX_REASONS} more"] * (len(reasons) > MAX_REASONS)
    return "; ".join([*reasons[:MAX_REASONS], *more])
