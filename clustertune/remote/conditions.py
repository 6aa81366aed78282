"""Whether the condition of a scheduled restart is met, as far as the scheduler sees it.

Memory states and what past runs have left it sees by itself. Of checks it has what a
client has found last: checks run only where clustertune is installed.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from clustertune.core.rules import ENOUGH, Left, alike, step
from clustertune.remote.park import is_parking
from clustertune.remote.runs import worker_id

RANKS = {"info": 1, "warning": 2, "critical": 3}  # what is unknown is below all
CRITICAL = RANKS["critical"]  # of memory: at the line at which a worker pauses
MOST = 3  # workers that are named


def met(
    condition: Mapping[str, Any],
    scheduler: Any,
    runs: Iterable[Mapping[str, Any]],
    lines: Mapping[Any, Mapping[str, float]],
    findings: Mapping[str, Any] | None,
    since: float,
) -> tuple[bool, str]:
    """Whether it is, and what was seen.

    Parameters
    ----------
    condition
        ``kind``, and what belongs to it, as ``timetable.conditions`` ships it.
    scheduler
        Whose workers are looked at.
    runs
        The last ones, oldest first.
    lines
        By id of worker the fractions of its limit at which it spills and pauses.
    findings
        The last ones: ``time``, and ``found``, each with check, severity and message.
    since
        Epoch seconds: what was found before is no longer so, as all was restarted then.
    """
    workers = {
        worker_id(ws.address, ws.name, ws.nanny): ws
        for ws in scheduler.workers.values()
        if not is_parking(ws.name)
    }
    if condition["kind"] == "leak":
        return _leak(condition["least"], workers, list(runs))
    if condition["kind"] == "memory":
        return _memory(condition["severity"], workers, lines)
    return _found(condition, findings, since)


def _leak(
    least: float, workers: Mapping[Any, Any], runs: Sequence[Mapping[str, Any]]
) -> tuple[bool, str]:
    """The rule of the check ``memory_growth``."""
    groups = alike([run.get("ended_by", "gap") for run in runs])
    if not groups:
        return False, (
            f"{len(runs)} runs were seen, {ENOUGH} that ended alike are needed to see "
            "a leak"
        )
    growing: dict[Any, None] = {}
    for group in groups:
        left: dict[Any, list[Left]] = {}
        for n, run in enumerate(runs[i] for i in group):
            managed = dict(run.get("managed", ()))
            for worker, nbytes in run["floors"]:
                found = Left(n, nbytes, managed.get(worker, 0))
                left.setdefault(worker, []).append(found)
        for worker, ws in workers.items():
            limit = ws.memory_limit or 0
            if limit and step(left.get(worker, ()), least * limit) is not None:
                growing[worker] = None
    if not growing:
        return False, f"no worker's memory grows over {len(runs)} runs"
    return True, f"memory of {_names(list(growing))} grows from run to run"


def _memory(
    severity: int,
    workers: Mapping[Any, Any],
    lines: Mapping[Any, Mapping[str, float]],
) -> tuple[bool, str]:
    """A restart brings data back: what counts is memory that is mostly no data."""
    name = "pause" if severity >= CRITICAL else "spill"
    # one that came later is taken for one like the others
    lowest = min((at[name] for at in lines.values() if name in at), default=1.0)
    full: list[Any] = []
    data: list[Any] = []
    for worker, ws in workers.items():
        line = lines[worker].get(name) if worker in lines else lowest
        memory = ws.memory
        at = line is not None and memory.process >= line * (
            ws.memory_limit or float("inf")
        )
        if at or ws.status.name == "paused":
            mostly = memory.unmanaged > memory.managed
            (full if mostly else data).append(worker)
    if full:
        return True, f"{_names(full)} at the {name} threshold, with mostly no data"
    if data:
        return False, (
            f"{_names(data)} at the {name} threshold, but most of it is data, which a "
            "restart would bring back"
        )
    return False, f"no worker is at its {name} threshold"


def _found(
    condition: Mapping[str, Any], findings: Mapping[str, Any] | None, since: float
) -> tuple[bool, str]:
    check = condition["check"]
    if findings is None:
        return False, "nothing was looked for yet: clustertune check does"
    if findings["time"] < since:
        return False, (
            f"{check} was looked for before the last restart; clustertune check looks "
            "again"
        )
    for found in findings["found"]:
        rank = RANKS.get(found["severity"], 0)
        if found["check"] == check and rank >= condition["severity"]:
            return True, str(found["message"])
    return False, f"{condition['text']} was not found"


def _names(workers: Sequence[Any]) -> str:
    more = f" and {len(workers) - MOST} more" if len(workers) > MOST else ""
    return f"worker {', '.join(map(str, workers[:MOST]))}{more}"
