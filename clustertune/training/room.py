"""Whether every worker has room for a copy of the data.

Pure: nothing here asks a cluster.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from clustertune.core.wording import bytes_text, plural, workers_text

#: What a thread copies of all data for the model that it fits: rows to train on and
#: rows to score on, and what estimators convert. Measured with joblib 1.6, cv=4 and one
#: thread a worker: a process then had 2.2 times the data.
COPIED = 1.2


@dataclass(frozen=True, slots=True)
class Seat:
    """A worker on which models will be fitted.

    Attributes
    ----------
    address
        Where it is reached.
    id
        Its name.
    host
        The machine that it runs on, as Dask calls it.
    machine
        What that machine is told by from any other; empty: unknown.
    threads
        How many models it fits at a time.
    limit
        Bytes that it may use; 0: it has no limit.
    used
        Bytes that its process has.
    """

    address: str
    id: str | int
    host: str
    machine: str
    threads: int
    limit: int
    used: int


def needed(nbytes: int, threads: int) -> int:
    """Bytes that a worker takes for its copy, and for those that its threads make."""
    return int(nbytes * (1 + COPIED * threads))


def obstacle(seats: Sequence[Seat], nbytes: int, fraction: float) -> str | None:
    """Why the data does not fit the workers; None: it does, as far as limits go."""
    full = [
        seat
        for seat in seats
        if seat.limit
        and seat.used + needed(nbytes, seat.threads) > fraction * seat.limit
    ]
    if not full:
        return None
    worst = max(full, key=lambda s: s.used + needed(nbytes, s.threads) - s.limit)
    return (
        f"{workers_text([seat.id for seat in full])}: a copy of the data "
        f"({bytes_text(nbytes)}) and what {plural(worst.threads, 'thread')} of "
        f"{workers_text([worst.id])} copy to fit models take about "
        f"{bytes_text(needed(nbytes, worst.threads))}; it has {bytes_text(worst.used)} "
        f"in use and may fill {fraction:.0%} of its limit of "
        f"{bytes_text(worst.limit)}. Give workers more memory or fewer threads "
        "(clustertune.resize), convert the data to float32, or fit on a part of it"
    )
