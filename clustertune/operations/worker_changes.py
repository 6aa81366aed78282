"""Workers that join, leave, restart or die: reasons and lost data (pure).

The scheduler plugin records what Dask knows. This module makes messages of it.
"""

from __future__ import annotations

import re
import signal
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from clustertune.core.model import Finding, Severity
from clustertune.core.wording import (
    bytes_text,
    names_text,
    plural,
    printable,
    seconds_text,
    workers_text,
)
from clustertune.planner import remedies

#: meanings of Dask's names for a removal, without their time
REASONS = {
    "retire-workers": "retired",
    "worker-close-gracefully": "it closed itself gracefully, as at its lifetime's end",
    "client-restart": "a client restarted all workers and released all data",
    "client-restart-workers": "a client restarted it",
    "clustertune-drop": "clustertune restarted it without its data",
    "clustertune-restart": "clustertune restarted it",
    "clustertune-unpark": "clustertune restarted it",
    "clustertune-retire": "retired by clustertune",
}
#: reasons after which a worker has no keys to lose
RELEASING = (REASONS["client-restart"], REASONS["clustertune-drop"])
#: names of removals that have no reason: a connection or a process has ended
NO_REASON = ("handle-worker-cleanup", "nanny-close")


@dataclass(frozen=True, slots=True, kw_only=True)
class DataChange:
    """Prepared collections with the same rows, after a change of workers."""

    names: tuple[str, ...]  # "X", "y", ...
    rows: int
    only_there: int  # rows that were only in the memory of a worker that is gone
    lost: int  # rows in no memory that nothing computes again
    held: Mapping[str | int, int]  # rows in memory now, by worker
    parked: int = 0  # rows that former processes or parking workers keep

    @property
    def missing(self) -> int:
        """Rows that are not in memory."""
        return max(0, self.rows - sum(self.held.values()) - self.parked)

    @property
    def label(self) -> str:
        return names_text(self.names)


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerChange:
    """What happened to a worker."""

    worker: str | int
    n_workers: int  # right after it
    reason: str | None = None  # None: Dask recorded none, or the worker joined
    #: until the next process; 0: it registered before; None: the worker did not return
    seconds: float | None = None
    computed: int = 0  # keys that only it had and that Dask can compute again
    scattered: int = 0  # keys that only it had and that are lost
    data: tuple[DataChange, ...] = ()


def read(answer: Mapping[str, Any]) -> Iterator[tuple[float, str, WorkerChange]]:
    """Yield time, kind and change of each entry of the plugin's answer."""
    layouts = [
        (layout, dict(zip(layout["workers"], layout["held"], strict=True)))
        for layout in answer["data"]
    ]
    for raw in answer["changes"]:
        joined = raw["stimulus"] is None
        why = None if joined else reason(raw["stimulus"], raw["recorded"])
        change = WorkerChange(
            worker=raw["worker"],
            n_workers=raw["n_workers"],
            reason=why,
            seconds=raw.get("returned"),
            computed=raw.get("computed", 0),
            scattered=raw.get("scattered", 0),
            data=tuple(_data(raw.get("rows", ()), layouts)),
        )
        if joined:
            kind = "joined"
        elif change.seconds is not None:
            kind = "restarted"
        else:
            kind = "left" if _is_intended(raw) else "died"
        yield raw["time"], kind, change


def _data(
    lost: Sequence[int],
    layouts: Sequence[tuple[Mapping[str, Any], Mapping[str | int, int]]],
) -> Iterator[DataChange]:
    for i, (layout, held) in enumerate(layouts):
        only_there = lost[i] if i < len(lost) else 0
        if layout["lost"] == layout["rows"] and not only_there:
            continue  # its keys were released
        yield DataChange(
            names=tuple(layout["names"]),
            rows=layout["rows"],
            only_there=only_there,
            lost=layout["lost"],
            held=held,
            parked=layout["parked"],
        )


# --- reasons --------------------------------------------------------------------------


def reason(stimulus: str, recorded: Mapping[str, Any]) -> str | None:
    """Return why a worker ended, or None if Dask recorded no reason."""
    if "ttl" in recorded:
        limit = seconds_text(recorded["ttl"])
        return f"no heartbeat for {limit}, so the scheduler ended it"
    if memory := _memory(recorded):
        return f"exceeded {memory}, so its nanny ended it"
    if named := _by_name(stimulus, recorded):
        return named
    return _exit(recorded["exit"]) if "exit" in recorded else None


def _by_name(stimulus: str, recorded: Mapping[str, Any]) -> str:
    """Return the reason that Dask's name of a removal has, or nothing."""
    closing = recorded.get("closing", "")
    for text in (stimulus, closing and recorded.get("retired", ""), closing):
        name = re.sub(r"-\d+\.\d+$", "", text)  # without its time
        if name in REASONS:
            return REASONS[name]
        if signalled := re.fullmatch(r"signal-(\d+)", name):
            return f"it got {_signal(signalled[1])}"
        if name and name not in NO_REASON:
            return f"closed with Dask's reason {printable(name, longest=60)!r}"
    return "its nanny closed it" if closing else ""


def _memory(recorded: Mapping[str, Any]) -> str:
    """Return the limit that a process exceeded, and its memory; empty if it did not."""
    used = f" with {bytes_text(recorded['rss'])}" if "rss" in recorded else ""
    if "budget" in recorded:
        return f"{recorded['budget']}% of its memory limit{used}"
    return used and f"its memory limit{used}"


def _exit(text: str) -> str:
    """Return how a process ended, with the name of its signal."""
    killed, _, number = text.partition("was killed by signal ")
    return f"its process {text}" if killed else f"killed by {_signal(number)}"


def _signal(number: str) -> str:
    """Return the number and the name of a signal of this system."""
    names = {str(int(known)): known.name for known in signal.Signals}
    return f"signal {number} ({names.get(number, 'unknown here')})"


def _is_intended(raw: Mapping[str, Any]) -> bool:
    """Whether the worker was retired, restarted or closed, so it did not die."""
    recorded = raw["recorded"]
    if "ttl" in recorded or _memory(recorded):
        return False
    return "closing" in recorded or not raw["stimulus"].startswith(NO_REASON)


# --- messages -------------------------------------------------------------------------


def finding(kind: str, change: WorkerChange, *, leased: bool = False) -> Finding:
    """Describe a change; its severity depends on what was lost.

    ``leased`` means that a plan runs, which may still move data.
    """
    parts = [_what(kind, change)]
    if kind == "joined":
        parts += [
            f"it holds no rows of {x.label}"
            for x in change.data
            if not x.held.get(change.worker)
        ]
    else:
        parts += [_keys(change), *map(_rows, change.data)]
    severity, remedy = _consequence(kind, change, leased)
    return Finding(
        severity=severity,
        message="; ".join(filter(None, parts)),
        subject=(change.worker,),
        remedy=remedy,
    )


def _what(kind: str, change: WorkerChange) -> str:
    name, now = workers_text([change.worker]), plural(change.n_workers, "worker")
    why = change.reason or "reason unknown, Dask recorded none"
    if kind == "joined":
        return f"{name} joined ({now} now)"
    if change.seconds is None:
        return f"{name} {kind}: {why} ({now} now)"
    took = f" after {seconds_text(change.seconds)}" if change.seconds else ""
    return f"{name} restarted{took} in a new process: {why}"


def _keys(change: WorkerChange) -> str:
    lost = []
    if change.computed:
        lost.append(
            f"{change.computed:,} computed (Dask computes them again if needed)"
        )
    if change.scattered:
        lost.append(f"{change.scattered:,} scattered (gone)")
    if not lost and change.reason in RELEASING:
        return ""
    return f"lost keys: {', '.join(lost)}" if lost else "no keys lost"


def _rows(data: DataChange) -> str:
    if not data.only_there:
        return ""
    end = f"; {data.lost:,} rows cannot be computed again" if data.lost else ""
    return f"only it had {data.only_there:,} of {data.rows:,} rows of {data.label}{end}"


def _consequence(kind: str, change: WorkerChange, leased: bool) -> tuple[Severity, str]:
    """Return the severity, and what to do, if no running plan does it."""
    lost = [x for x in change.data if x.lost]
    if lost:
        names = " and ".join(x.label for x in lost)
        now = any(x.only_there for x in lost) or change.scattered
        severity = Severity.critical if now else Severity.warning
        prepare = remedies.prepare_again(change.data[0].names)
        return severity, f"Load {names} again. {remedies.run(prepare)}"
    advice = ["Scatter the lost data again."] * bool(change.scattered)
    idle = any(not n for x in change.data for n in x.held.values())
    uneven = not leased and (idle or any(x.missing for x in change.data))
    if uneven:
        prepare = remedies.prepare_again(change.data[0].names)
        advice.append(remedies.run(prepare, ", so that each worker holds its share"))
    severity = Severity.info
    if change.scattered:
        severity = Severity.critical
    elif uneven or kind == "died":
        severity = Severity.warning
    return severity, " ".join(advice)
