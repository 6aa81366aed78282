"""What a plan saw of a cluster and of data, and in what that differs from now (pure).

Small enough for a file: workers one by one, data as digests of its keys, bytes and
places. Memory, queues and speeds are no part of it: they change all the time, and what
a plan makes of them is in its steps.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from hashlib import sha256

import numpy as np

from clustertune.core.model import Member, View
from clustertune.core.wording import are, bytes_text, plural, printable, workers_text


@dataclass(frozen=True, slots=True, kw_only=True)
class SeenWorker:
    """A worker; its address is another one after each restart."""

    id: str | int
    address: str
    status: str
    nthreads: int
    memory_limit: int  # bytes; 0: none is set

    @property
    def state(self) -> str:
        """What may change while its process goes on, in words."""
        limit = bytes_text(self.memory_limit) if self.memory_limit else "no limit"
        return f"{printable(self.status)}, {plural(self.nthreads, 'thread')}, {limit}"


@dataclass(frozen=True, slots=True, kw_only=True)
class SeenData:
    """A collection; what it does not know yet, as it is not loaded, is empty."""

    label: str
    pieces: int
    loaded: bool
    keys: str  # digest of its keys, in order
    nbytes: str  # digest of the bytes of each piece
    holders: str  # digest of the workers, by id, that hold each piece


@dataclass(frozen=True, slots=True, kw_only=True)
class Fingerprint:
    """What a plan saw."""

    scheduler: str  # its id, which is another one after each start
    address: str
    workers: tuple[SeenWorker, ...]
    data: tuple[SeenData, ...]
    #: seconds that a task takes beside its work, which decides into how many pieces
    #: data is cut; None: it was not measured
    overhead: float | None


def take(scheduler: str, view: View) -> Fingerprint:
    """The fingerprint of a view of the scheduler with this id."""
    now = view.now
    return Fingerprint(
        scheduler=scheduler,
        address=now.scheduler,
        workers=tuple(
            SeenWorker(
                id=w.id,
                address=w.address,
                status=w.status,
                nthreads=w.nthreads,
                memory_limit=w.memory_limit,
            )
            for w in now.workers
            if not w.parking
        ),
        data=tuple(_data(m, view) for x in view.layouts for m in x.members),
        overhead=now.overhead,
    )


def _data(member: Member, view: View) -> SeenData:
    holders = ""
    if member.holders is not None:
        pieces, workers = (side.tolist() for side in member.holders)
        ids = [str(w.id) for w in view.now.workers]
        holders = _digest(
            sorted((p, ids[w]) for p, w in zip(pieces, workers, strict=True))
        )
    known = member.nbytes is not None
    return SeenData(
        label=member.label,
        pieces=member.n_pieces,
        loaded=member.loaded,
        keys=_digest([str(key) for key in member.keys]),
        nbytes=_digest(np.asarray(member.nbytes).tolist()) if known else "",
        holders=holders,
    )


def _digest(things: object) -> str:
    return sha256(repr(things).encode("utf-8", "surrogatepass")).hexdigest()[:16]


# --- differences ----------------------------------------------------------------------


def differences(was: Fingerprint, now: Fingerprint) -> Iterator[str]:
    """In what two fingerprints of one scheduler differ, a text each."""
    before = {w.id: w for w in was.workers}
    after = {w.id: w for w in now.workers}
    if gone := [id for id in before if id not in after]:
        yield f"{workers_text(gone)} {are(gone)} gone"
    if new := [id for id in after if id not in before]:
        yield f"{workers_text(new)} {are(new)} new"
    both = [(before[id], after[id]) for id in before if id in after]
    if again := [w.id for w, x in both if w.address != x.address]:
        yield f"{workers_text(again)} {_was(again)} restarted"
    for w, x in both:
        if w.state != x.state:
            yield f"{workers_text([w.id])} is now {x.state}, and was {w.state}"
    data = {d.label: d for d in now.data}
    for d in was.data:
        if d.label not in data:
            yield f"{printable(d.label)} is not there"
        elif text := _changed(d, data[d.label]):
            yield f"{printable(d.label)} {text}"


def _changed(was: SeenData, now: SeenData) -> str:
    if was.keys != now.keys:
        return f"has other pieces: {now.pieces}, and it had {was.pieces}"
    if was.loaded != now.loaded:
        return "is in memory now" if now.loaded else "is not in memory any more"
    if was.nbytes != now.nbytes:
        return "has pieces of other sizes"
    return "lies on other workers" if was.holders != now.holders else ""


def _was(ids: list[str | int]) -> str:
    return "was" if len(ids) == 1 else "were"
