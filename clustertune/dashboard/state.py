"""The *page state*: all that the panel shows, as plain data from msgpack or JSON.

A dictionary with these entries; sizes are bytes, times epoch seconds, durations
seconds, and None is unknown:

``time``
    When the cluster was looked at.
``scheduler``
    Its address.
``trouble``
    Why the rest is old or lacking, as a sentence; empty if it is not.
``workers``
    Columns, by name a list with one entry for each worker (:data:`WORKER`): ``id``,
    ``address``, ``host``, ``status`` (Dask's), ``silent`` (since it was last heard of),
    ``threads``, ``limit`` (0: none), ``process``, ``managed``, ``spilled``, and in
    bytes its own thresholds ``target``, ``spill``, ``pause``, ``terminate``.
``hosts``
    Columns (:data:`HOST`): ``host``, ``workers``, ``threads``, ``cpus`` (usable).
``collections``
    For each layout ``label``, ``pieces``, ``rows``, ``apart`` (pieces of which no
    worker holds all members), ``missing`` (pieces that are in nobody's memory),
    ``counted`` (when), and ``workers``, columns (:data:`SHARE`): ``id``, ``rows``,
    ``pieces`` and ``due``, the rows that it should have.
``findings``
    None, or what was found last: ``time``, ``command`` that looks again, and
    ``found``: ``severity``, ``check``, ``message``, ``evidence`` (text), ``remedy``,
    and ``processes``: addresses of workers; once these are gone, so is what was found.
``events``
    What was done, oldest first: ``time``, ``kind`` (:data:`KINDS`) and ``text``.
``history``
    Columns: ``time``, and of all workers together ``process`` and ``managed``.
``prepared``
    None, or of the last ``prepare``: ``status``, ``lines`` (text), and ``before`` and
    ``after``, for each layout ``label``, ``pieces``, ``rows``, ``separated``,
    ``imbalance`` (rows of the fullest worker over its share) and ``workers``, columns
    (:data:`SHARE`).

Text in it comes from the cluster and is not to be trusted.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from time import time
from typing import Any

from clustertune.core.wording import bytes_text, plural, workers_text

State = dict[str, Any]
Columns = dict[str, list[Any]]

THRESHOLDS = ("target", "spill", "pause", "terminate")
WORKER = (
    "id", "address", "host", "status", "silent", "threads", "limit", "process",
    "managed", "spilled", *THRESHOLDS,
)  # fmt: skip
HOST = ("host", "workers", "threads", "cpus")
SHARE = ("id", "rows", "pieces", "due")
KINDS = ("did", "failed", "held", "scheduled")

#: checks of what a page state shows as it is now: what they have found may be over
LIVE = frozenset(
    (
        "empty_workers", "memory_pressure", "missing_workers", "paused_workers",
        "separated_pairs", "silent_workers", "uneven_rows",
    )
)  # fmt: skip
SILENT = 15.0  # seconds after which a worker counts as silent: it tells each second
UNEVEN = 1.05  # rows over the share from which on they are uneven: prepare's tolerance


def make(**parts: Any) -> State:
    """A page state; what is not given is empty or not known."""
    return {
        "time": time(),
        "scheduler": "",
        "trouble": "",
        "workers": columns(WORKER, ()),
        "hosts": columns(HOST, ()),
        "collections": [],
        "findings": None,
        "events": [],
        "history": columns(("time", "process", "managed"), ()),
        "prepared": None,
    } | parts


def columns(names: Iterable[str], rows: Iterable[Iterable[Any]]) -> Columns:
    """Rows as columns by name; no rows are empty columns."""
    wanted = tuple(names)
    found = list(zip(*rows, strict=True)) or [()] * len(wanted)
    return {name: list(values) for name, values in zip(wanted, found, strict=True)}


def of_identity(identity: Mapping[str, Any], now: float) -> State:
    """What a scheduler says of itself and its workers without any code of ours.

    Parameters
    ----------
    identity
        The scheduler's ``identity(n_workers=-1)``.
    now
        Epoch seconds by the scheduler's clock, or this machine's where that is unknown.
    """
    rows: list[tuple[Any, ...]] = []
    hosts: dict[str, list[int]] = {}
    for address, entry in sorted(
        identity["workers"].items(),
        key=lambda item: (len(str(item[1]["name"])), str(item[1]["name"])),
    ):
        metrics = entry["metrics"]
        spilled = metrics.get("spilled_bytes", {})
        process = int(metrics.get("memory", 0))
        managed = int(metrics.get("managed_bytes", 0)) - int(spilled.get("memory", 0))
        name = entry["name"]
        rows.append(
            (
                name if isinstance(name, str | int) and name != "" else address,
                address,
                entry["host"],
                entry["status"],
                max(0.0, now - entry["last_seen"]),
                entry["nthreads"],
                entry["memory_limit"] or 0,
                process,
                min(process, max(0, managed)),
                int(spilled.get("disk", 0)),
                *(None for _ in THRESHOLDS),
            )
        )
        of_host = hosts.setdefault(entry["host"], [0, 0])
        of_host[0] += 1
        of_host[1] += entry["nthreads"]
    return make(
        time=now,
        scheduler=identity["address"],
        workers=columns(WORKER, rows),
        hosts=columns(HOST, ((h, *counts, None) for h, counts in hosts.items())),
    )


# --- what follows from it -------------------------------------------------------------


def conditions(workers: Columns) -> list[str]:
    """For each worker what is unusual about it, in a few words; empty: nothing."""
    found = []
    for status, silent in zip(workers["status"], workers["silent"], strict=True):
        words = [] if status == "running" else [str(status).replace("_", " ")]
        words += [f"silent for {silent:.0f} s"] if silent >= SILENT else []
        found.append(", ".join(words))
    return found


def total(workers: Columns) -> str:
    """The cluster in one line."""
    hosts = len(set(workers["host"]))
    ids = workers["id"]
    used, limit = sum(workers["process"]), sum(workers["limit"])
    memory = f"{bytes_text(used)} of {bytes_text(limit)}" if limit else bytes_text(used)
    return (
        f"{plural(len(ids), 'worker')} on {plural(hosts, 'host')}, "
        f"{plural(sum(workers['threads']), 'thread')}, {memory} in use"
    )


def verdict(state: State) -> tuple[str, str]:
    """Whether a fit can begin, and why not.

    Returns
    -------
    level, text
        ``ready``, ``usable`` (it would run, but not well), ``not ready`` or
        ``unknown``; and a sentence.
    """
    if state["trouble"]:
        return "unknown", f"Unknown: {state['trouble']}"
    if not state["workers"]["id"]:
        return "not ready", "Not ready: the cluster has no workers"
    lost = [
        f"{plural(x['missing'], 'piece')} of {x['label']} not in memory"
        for x in state["collections"]
        if 0 < x["missing"] < x["pieces"]  # all: nobody wants them any more
    ]
    worst = [*_of_workers(state["workers"]), *lost, *_messages(state, "critical")]
    if worst:
        return "not ready", f"Not ready: {_listed(worst)}"
    bad = [*_of_memory(state["workers"]), *_of_rows(state["collections"])]
    bad += _messages(state, "warning")
    if bad:
        return "usable", f"Usable, but: {_listed(bad)}"
    if state["findings"] is None:
        return "ready", "Ready, as far as can be seen: no check has been run yet"
    return "ready", "Ready: nothing stands in the way of a fit"


def _of_workers(workers: Columns) -> Iterable[str]:
    ids = workers["id"]
    paused = [i for i, s in zip(ids, workers["status"], strict=True) if s == "paused"]
    if paused:
        yield f"{workers_text(paused)} {'is' if len(paused) == 1 else 'are'} paused"
    silent = [i for i, s in zip(ids, workers["silent"], strict=True) if s >= SILENT]
    if silent:
        yield f"{workers_text(silent)} did not say anything for {SILENT:.0f} s or more"
    if paused or silent or any(s == "running" for s in workers["status"]):
        return
    yield "no worker is running"


def _of_memory(workers: Columns) -> Iterable[str]:
    own = zip(workers["id"], workers["process"], workers["spill"], strict=True)
    full = [id for id, process, spill in own if spill and process >= spill]
    if full:
        verb = "has" if len(full) == 1 else "have"
        yield f"{workers_text(full)} {verb} more memory than its spill threshold"


def _of_rows(layouts: Iterable[Mapping[str, Any]]) -> Iterable[str]:
    for layout in layouts:
        label, apart = layout["label"], layout["apart"]
        if apart:
            are = "is" if apart == 1 else "are"
            yield f"{plural(apart, 'pair')} of {label} {are} on two workers"
        fullest = imbalance(layout["workers"])
        if fullest is not None and fullest > UNEVEN:
            yield f"rows of {label} are uneven ({fullest:.3g} times the share)"


def imbalance(share: Columns) -> float | None:
    """Rows of the fullest worker over those that it should have; 1 is even."""
    found = [r / d for r, d in zip(share["rows"], share["due"], strict=True) if d]
    return max(found, default=None)


def _messages(state: State, severity: str) -> list[str]:
    found = state["findings"]["found"] if state["findings"] else ()
    there = frozenset(state["workers"]["address"])
    return [
        f["message"]
        for f in found
        if f["severity"] == severity
        and f["check"] not in LIVE
        and not is_over(f, there)
    ]


def is_over(finding: Mapping[str, Any], there: Collection[str]) -> bool:
    """Whether all processes that it is about are gone; of those of old nobody knows."""
    processes = finding.get("processes") or ()
    return bool(processes) and not any(p in there for p in processes)


def _listed(reasons: list[str]) -> str:
    """The first reasons, and how many more there are."""
    more = f"; and {len(reasons) - 2} more" if len(reasons) > 2 else ""
    return "; ".join(reasons[:2]) + more
