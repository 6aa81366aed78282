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
    Columns (:data:`WORKER`), lists with an entry for each worker: ``id``, ``address``,
    ``host``, ``status`` (Dask's), ``silent`` (time since the last heartbeat),
    ``threads``, ``limit`` (0: none), ``process``, ``managed``, ``spilled``, and the
    worker's thresholds ``target``, ``spill``, ``pause``, ``terminate`` in bytes.
``hosts``
    Columns (:data:`HOST`): ``host``, ``workers``, ``threads``, ``cpus`` (usable).
``collections``
    For each layout ``label``, ``partitions``, ``rows``, ``apart`` (partitions whose
    companions are on different workers), ``missing`` (partitions in no memory),
    ``lost`` (rows that nothing computes again), ``counted`` (when), and ``workers``,
    columns (:data:`SHARE`): ``id``, ``rows``, ``partitions`` and ``due`` (the even
    share of rows).
``findings``
    None, or the last findings: ``time``, ``command`` that checks again, and ``found``,
    each with ``severity``, ``check``, ``message``, ``evidence``, ``remedy`` and
    ``processes``: addresses of workers. The finding ends with these workers.
``events``
    Oldest first: ``time``, ``kind`` (``did``, ``failed``, ``held`` or ``scheduled``)
    and ``text``.
``fits``
    Running fits: ``round``, ``rounds`` (None: unknown), ``metric`` (its name and last
    value as text), ``rate`` (rounds per second) and ``seconds`` since the fit began.
``history``
    Columns: ``time``, and ``process`` and ``managed`` of all workers together.
``prepared``
    None, or the last report: ``status``, ``lines`` (text), and ``before`` and
    ``after``, for each layout ``label``, ``partitions``, ``rows``, ``separated``,
    ``imbalance`` (rows of the fullest worker over its share) and ``workers``, columns
    (:data:`SHARE`).
"""

from __future__ import annotations

from collections import Counter
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
SHARE = ("id", "rows", "partitions", "due")

#: checks whose conditions the page sees live, so their old findings do not count
LIVE_CHECKS = frozenset(
    (
        "empty_workers", "memory_pressure", "missing_workers", "paused_workers",
        "separated_pairs", "unresponsive_workers", "uneven_rows",
    )
)  # fmt: skip
MAX_SILENCE = 15.0  # seconds without a heartbeat; there is one each second
MAX_IMBALANCE = 1.05  # rows over the even share: the default tolerance of prepare


def make(**parts: Any) -> State:
    """Return a page state; entries that are not given are empty or unknown."""
    return {
        "time": time(),
        "scheduler": "",
        "trouble": "",
        "workers": columns(WORKER, ()),
        "hosts": columns(HOST, ()),
        "collections": [],
        "findings": None,
        "events": [],
        "fits": [],
        "history": columns(("time", "process", "managed"), ()),
        "prepared": None,
    } | parts


def columns(names: Iterable[str], rows: Iterable[Iterable[Any]]) -> Columns:
    """Return rows as columns by name."""
    wanted = tuple(names)
    found = list(zip(*rows, strict=True)) or [()] * len(wanted)
    return {name: list(values) for name, values in zip(wanted, found, strict=True)}


def of_identity(identity: Mapping[str, Any], now: float) -> State:
    """Return the page state of a scheduler that runs no code of clustertune.

    ``identity`` is the scheduler's ``identity(n_workers=-1)``. ``now`` is the time by
    the scheduler's clock, in epoch seconds.
    """
    entries = sorted(
        identity["workers"].items(),
        key=lambda item: (len(str(item[1]["name"])), str(item[1]["name"])),
    )
    workers = columns(WORKER, (_worker_row(a, entry, now) for a, entry in entries))
    threads: Counter[str] = Counter()
    for host, n in zip(workers["host"], workers["threads"], strict=True):
        threads[host] += n
    counts = Counter(workers["host"])
    return make(
        time=now,
        scheduler=identity["address"],
        workers=workers,
        hosts=columns(HOST, ((h, n, threads[h], None) for h, n in counts.items())),
    )


def _worker_row(address: str, entry: Mapping[str, Any], now: float) -> tuple[Any, ...]:
    metrics, name = entry["metrics"], entry["name"]
    spilled = metrics.get("spilled_bytes", {})
    process = int(metrics.get("memory", 0))
    managed = int(metrics.get("managed_bytes", 0)) - int(spilled.get("memory", 0))
    return (
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


# --- the verdict ----------------------------------------------------------------------


def conditions(workers: Columns) -> list[str]:
    """Return for each worker its problem in a few words, or an empty text."""
    found = []
    for status, silent in zip(workers["status"], workers["silent"], strict=True):
        words = [] if status == "running" else [str(status).replace("_", " ")]
        words += [f"silent for {silent:.0f} s"] if silent >= MAX_SILENCE else []
        found.append(", ".join(words))
    return found


def total(workers: Columns) -> str:
    """Return the cluster in one line."""
    hosts = len(set(workers["host"]))
    ids = workers["id"]
    used, limit = sum(workers["process"]), sum(workers["limit"])
    memory = f"{bytes_text(used)} of {bytes_text(limit)}" if limit else bytes_text(used)
    return (
        f"{plural(len(ids), 'worker')} on {plural(hosts, 'host')}, "
        f"{plural(sum(workers['threads']), 'thread')}, {memory} in use"
    )


def verdict(state: State) -> tuple[str, str]:
    """Return whether a fit can begin, and a sentence with the reasons.

    The first is ``ready``, ``usable`` (a fit would run, but not well), ``not ready`` or
    ``unknown``.
    """
    if state["trouble"]:
        return "unknown", f"Unknown: {state['trouble']}"
    if not state["workers"]["id"]:
        return "not ready", "Not ready: the cluster has no workers"
    lost = [
        f"{plural(x['missing'], 'partition')} of {x['label']} not in memory"
        for x in state["collections"]
        if 0 < x["missing"] < x["partitions"]  # all: no client uses it
    ]
    worst = [*_worker_problems(state["workers"]), *lost, *_messages(state, "critical")]
    if worst:
        return "not ready", f"Not ready: {_listed(worst)}"
    bad = [*_memory_problems(state["workers"]), *_row_problems(state["collections"])]
    bad += _messages(state, "warning")
    if bad:
        return "usable", f"Usable, but: {_listed(bad)}"
    if state["findings"] is None:
        return "ready", "Ready, as far as the page can see: no check has run yet"
    return "ready", "Ready: no problem is known"


def _worker_problems(workers: Columns) -> Iterable[str]:
    ids = workers["id"]
    paused = [i for i, s in zip(ids, workers["status"], strict=True) if s == "paused"]
    if paused:
        yield f"{workers_text(paused)} {'is' if len(paused) == 1 else 'are'} paused"
    silent = [
        i for i, s in zip(ids, workers["silent"], strict=True) if s >= MAX_SILENCE
    ]
    if silent:
        least = f"{MAX_SILENCE:.0f} s or more"
        yield f"{workers_text(silent)} sent no heartbeat for {least}"
    if paused or silent or any(s == "running" for s in workers["status"]):
        return
    yield "no worker is running"


def _memory_problems(workers: Columns) -> Iterable[str]:
    own = zip(workers["id"], workers["process"], workers["spill"], strict=True)
    full = [id for id, process, spill in own if spill and process >= spill]
    if full:
        verb = "has" if len(full) == 1 else "have"
        yield f"{workers_text(full)} {verb} more memory than the spill threshold"


def _row_problems(layouts: Iterable[Mapping[str, Any]]) -> Iterable[str]:
    for layout in layouts:
        label, apart = layout["label"], layout["apart"]
        if apart:
            yield f"{plural(apart, 'separated pair')} of {label}"
        fullest = imbalance(layout["workers"])
        if fullest is not None and fullest > MAX_IMBALANCE:
            yield f"rows of {label} are uneven ({fullest:.3g} times the even share)"


def imbalance(share: Columns) -> float | None:
    """Return the rows of the fullest worker over its even share; 1 is even."""
    found = [r / d for r, d in zip(share["rows"], share["due"], strict=True) if d]
    return max(found, default=None)


def _messages(state: State, severity: str) -> list[str]:
    found = state["findings"]["found"] if state["findings"] else ()
    addresses = frozenset(state["workers"]["address"])
    return [
        f["message"]
        for f in found
        if f["severity"] == severity
        and f["check"] not in LIVE_CHECKS
        and not has_ended(f, addresses)
    ]


def has_ended(finding: Mapping[str, Any], addresses: Collection[str]) -> bool:
    """Return whether all processes of a finding have ended."""
    processes = finding.get("processes") or ()
    return bool(processes) and not any(p in addresses for p in processes)


def _listed(reasons: list[str]) -> str:
    """Return the first two reasons, and the number of others."""
    more = f"; and {len(reasons) - 2} more" if len(reasons) > 2 else ""
    return "; ".join(reasons[:2]) + more
