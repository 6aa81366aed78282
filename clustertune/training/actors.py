"""Members of roles as their client knows them, and why they have not all ended well.

Pure: nothing here asks a cluster.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from clustertune.core.wording import printable, seconds_text, workers_text
from clustertune.errors import ConnectionLostError, RoleError
from clustertune.remote import roles as remote

#: A role that fails makes others fail, which may be heard of first: a worker that is
#: found lost so many seconds later is taken for the cause.
SETTLE = 3.0

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Trouble:
    """What went wrong with a role."""

    at: float  # monotonic seconds
    text: str
    error: BaseException | None = None
    lost: bool = False  # with its worker


@dataclass(eq=False, kw_only=True)
class Actor:
    """One member of a role, as far as its client knows."""

    role: str
    rank: int
    worker: str  # address
    id: str | int  # of the worker
    part: str  # name of what the worker keeps of it
    place: str = ""  # host:port
    future: Any = None  # of its task
    stage: str = "hired"
    seen: int = 0  # version of the news
    dropped: int = 0  # scores and lines that were too many
    result: Any = None
    over: bool = False  # its task has ended, or nobody will hear of it again
    forgotten: bool = False  # by its worker
    trouble: Trouble | None = None

    def __str__(self) -> str:
        role = printable(self.role, longest=60)
        return f"{role} {self.rank} on {workers_text([self.id])}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Rules:
    """How roles begin and end."""

    target: str  # when all that have this role have ended, the others are to stop
    bare: frozenset[str]  # roles that end only when they are told to
    timeout: float  # seconds in which all must be there
    grace: float  # seconds in which all must have ended after they were told to


def by_role(actors: Iterable[Actor], what: Callable[[Actor], T]) -> dict[str, list[T]]:
    """By role something of each of its members, by rank."""
    found: dict[str, list[T]] = {}
    for actor in actors:
        found.setdefault(actor.role, []).append(what(actor))
    return found


def is_lost(actor: Actor) -> bool:
    """Whether its worker is, so that there is nobody to be told anything."""
    return actor.trouble is not None and actor.trouble.lost


def is_gone(actor: Actor) -> bool:
    """Whether no worker knows it any more."""
    return actor.forgotten or is_lost(actor)


def cause(actors: Sequence[Actor], grace: float) -> Exception | None:
    """Why the roles have not all ended well; None: they have."""
    troubled = [(a, a.trouble) for a in actors if a.trouble is not None]
    troubled.sort(key=lambda pair: pair[1].at - SETTLE * pair[1].lost)
    if troubled and isinstance(troubled[0][1].error, ConnectionLostError):
        return troubled[0][1].error  # which is nothing about a role
    at_work = (remote.HERE, remote.PLAYING)
    stuck = [a for a in actors if not a.over and a.stage in at_work]
    if not troubled and not stuck:
        return None
    said = [trouble.text for _, trouble in troubled[:1]]
    if troubled and troubled[0][1].lost:
        said.append(
            "so it does when it exceeds its memory, is killed or retired (see the logs "
            "of worker and nanny), and a role is not started again: run_roles again"
        )
    said += [f"after that, {trouble.text}" for _, trouble in troubled[1:3]]
    said += [_stuck(stuck, grace)] * bool(stuck)
    error = RoleError("; ".join(said))
    first = troubled[0][0] if troubled else stuck[0]
    error.role, error.rank, error.worker = first.role, first.rank, first.worker
    error.__cause__ = troubled[0][1].error if troubled else None
    return error


def _stuck(actors: Sequence[Actor], grace: float) -> str:
    return (
        f"{', '.join(map(str, actors))} did not stop within {seconds_text(grace)}: "
        "functions have to ask ctx.should_stop(). Nothing waits for it any more, but "
        "it goes on until it returns, and takes a thread of its worker till then; "
        f"clustertune.restart(client, workers={[a.id for a in actors]!r}) ends it"
    )
