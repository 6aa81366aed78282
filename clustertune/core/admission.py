"""The one rule for restarts: whether a worker's keys have a place meanwhile (pure).

Plans ask it with the latest snapshot, scheduled restarts with the scheduler's own
numbers, and the job that restarts a worker acts by it.
"""

from __future__ import annotations

from collections.abc import Mapping

from clustertune.core.wording import bytes_text

Room = Mapping[str, int] | str  # memory and disk of a nanny; or why that is not known


def problem(needed: int, in_memory: int, free: float | None, room: Room | None) -> str:
    """Why the keys of a worker have no place while it is restarted, or nothing.

    Parameters
    ----------
    needed
        Bytes of the keys that others would have to take at the same time.
    in_memory
        Bytes of the worker's own keys that are not spilled: its nanny takes over files,
        which needs no room.
    free
        Bytes that the others can take below their thresholds; None: no other runs.
    room
        Bytes that a parking worker in its nanny may fill; None: none may be opened.
    """
    if free is not None and needed <= free:
        return ""
    others = "no other worker runs"
    if free is not None:
        others = f"the others have room for {bytes_text(free)} below their thresholds"
    if room is None:
        return f"{others}, and {bytes_text(needed)} of keys need a place"
    if isinstance(room, str):
        return (
            f"{others}, {bytes_text(needed)} of keys need a place, and the room in its "
            f"nanny is {room}"
        )
    if in_memory <= room["memory"] + room["disk"]:
        return ""
    return (
        f"{others}, {bytes_text(in_memory)} of keys need a place, and its nanny may "
        f"fill {bytes_text(room['memory'])} of memory and {bytes_text(room['disk'])} "
        "of disk only"
    )


def is_parked_first(status: str, spilled: int) -> bool:
    """Whether a worker's keys go to its nanny even if the others have room.

    To send keys to others, a worker that has spilled would have to read them into
    memory. One that is paused is near the line at which its nanny kills it.
    """
    return status == "paused" or spilled > 0


def needed_elsewhere(status: str, spilled: int, nbytes: int) -> int:
    """Bytes of others that a restart needs: those that need least come first.

    No restart takes room away, so each one makes room for the next.
    """
    return 0 if is_parked_first(status, spilled) else nbytes
