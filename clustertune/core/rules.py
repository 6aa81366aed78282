"""Rules that both the client and the scheduler plugin apply (pure).

They decide how much memory is free, whether the keys of a worker have room elsewhere
during its restart, whether a restart helps, and whether unmanaged memory grows.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import pairwise
from statistics import median
from typing import NamedTuple

from clustertune.core.wording import bytes_text, plural

CYCLE = 0.02  # seconds between two cycles of the mover
KEYS_PER_CYCLE = 500  # that a cycle requests, and whose arrival it checks: about 5 ms

# --- free memory ----------------------------------------------------------------------


def free_bytes(ceiling: int, process: int, keys: int, incoming: int = 0) -> float:
    """Return the bytes of keys that a worker can take below a ceiling; 0: no ceiling.

    ``process`` is the memory of its process at the last heartbeat. ``keys`` is the
    least memory that its present keys need, which the scheduler learns at once. A move
    adds the unmanaged memory. ``incoming`` are bytes of keys in flight to the worker.
    """
    if not ceiling:
        return math.inf
    return max(0.0, ceiling - max(process, keys) - incoming)


# --- admission of restarts ------------------------------------------------------------

#: memory and disk of a nanny; or why they are unknown
ParkingSpace = Mapping[str, int] | str


#: statuses of workers that can be restarted
USABLE = ("running", "paused")
NO_NANNY = (
    "it has no nanny that could start it again: restart it the way it was started, or "
    "start it with dask worker --nanny"
)


def restart_refusal(
    *,
    nanny: bool = True,
    status: str = "running",
    actors: int = 0,
    needed: int = 0,
    in_memory: int = 0,
    free: float | None = math.inf,
    room: ParkingSpace | None = None,
) -> str:
    """Explain why a worker cannot end without loss of its keys; "": it can.

    Parameters
    ----------
    nanny
        Whether a nanny can start the worker again, or the worker need not return.
    status, actors
        The worker's own status, and the number of its actors.
    needed
        Bytes that other workers have to take at the same time.
    in_memory
        Bytes of them that are not spilled; the nanny takes over spill files.
    free
        Bytes that other workers have below their thresholds. None: none runs.
    room
        What the nanny may fill. None: it may not park keys.
    """
    if not nanny:
        return NO_NANNY
    if status not in USABLE:
        return f"it is {status}"
    if actors:
        return f"it holds {plural(actors, 'actor')}, which cannot be moved"
    fits = free is not None and needed <= free
    return "" if fits else _no_room(needed, in_memory, free, room)


def _no_room(
    needed: int, in_memory: int, free: float | None, room: ParkingSpace | None
) -> str:
    """Explain why a nanny cannot park what the others have no room for; "": it can."""
    others = "no other worker runs"
    if free is not None:
        others = f"the others have room for {bytes_text(free)} below their thresholds"
    if room is None:
        return (
            f"{others}, and {bytes_text(needed)} of keys need a place: add workers, or "
            "release data"
        )
    if isinstance(room, str):
        text = (
            f"{others}, {bytes_text(needed)} of keys need a place, and the room in its "
            f"nanny is {room}"
        )
    elif in_memory <= room["memory"] + room["disk"]:
        return ""
    else:
        text = (
            f"{others}, {bytes_text(in_memory)} of keys need a place, and its nanny "
            f"may fill {bytes_text(room['memory'])} of memory and "
            f"{bytes_text(room['disk'])} of disk only"
        )
    return f"{text}: add a worker, save the data first, or discard it with --drop-data"


def is_parked_first(status: str, spilled: int) -> bool:
    """Whether the keys of a worker go to its nanny even if others have room.

    A worker with spilled keys would have to read them into memory to send them. A
    paused worker is close to the limit at which its nanny kills it.
    """
    return status == "paused" or spilled > 0


def needed_elsewhere(status: str, spilled: int, nbytes: int) -> int:
    """Return the bytes that a restart needs on other workers.

    Restarts with the smallest need come first, since each restart frees memory.
    """
    return 0 if is_parked_first(status, spilled) else nbytes


#: of a threshold; a restart that frees less would soon be needed again
MIN_GAIN = 0.1


def restart_reason(
    lines: Mapping[str, int],
    process: int,
    managed: int,
    *,
    paused: bool,
    growth: int = 0,
    fresh: int = 0,
) -> str:
    """Return why a restart helps a worker, or "".

    A restart helps if the process is above one of the thresholds ``lines`` (bytes, by
    name), or will be after the next run, and a new process with the same keys is below
    it by a margin. ``fresh`` is the memory of a process without keys, ``growth`` that
    of a run.
    """
    text = f"its process has {bytes_text(process)}"
    if growth:
        text += f" and grows by {bytes_text(growth)} in a run"
    freed = process - fresh - managed
    for name, line in lines.items():
        is_cured = fresh + managed <= line < process + growth
        if is_cured and freed >= MIN_GAIN * line:
            return f"{text}; its {name} threshold is {bytes_text(line)}"
    if paused and process - managed > managed:
        return f"{text}, and it is paused"
    return ""


# --- growth of memory -----------------------------------------------------------------

#: how a run ends, the most explicit way first
ENDS = ("hold", "training", "gap")
ENOUGH = 3  # runs: two steps
LAST = 10  # runs, to find a leak that begins late
MOSTLY = 0.8  # fraction of the steps that must be large
LEAST_GROWTH = 0.01  # of the memory limit by run: less needs 50 runs for half of it


class MemoryAfterRun(NamedTuple):
    """Bytes of a worker after a run."""

    run: int  # its number
    unmanaged: int
    managed: int = 0


def alike(ends: Sequence[str]) -> list[list[int]]:
    """Group the positions of runs by how they ended; omit small groups.

    A fit and the computation after it are two runs. If they were compared with each
    other, a leak in each fit would show only in every second step.
    """
    groups = [[i for i, end in enumerate(ends) if end == way] for way in ENDS]
    return [group[-LAST:] for group in groups if len(group) >= ENOUGH]


def step(left: Sequence[MemoryAfterRun], least: float) -> float | None:
    """Return the bytes by which memory grows per run, or None if it does not.

    ``left`` has the memory of one worker after runs that ended alike, oldest first.
    Nearly every step must have ``least`` bytes.
    """
    if len(left) < ENOUGH:
        return None
    # unmanaged memory that arrives together with data is no leak
    steps = [
        (then.unmanaged - before.unmanaged - max(0, then.managed - before.managed))
        / (then.run - before.run)
        for before, then in pairwise(left)
    ]
    large = sum(one >= least and one > 0 for one in steps)
    return median(steps) if large >= MOSTLY * len(steps) else None
