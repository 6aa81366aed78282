"""What a block of fits has cost on a cluster, and what one machine would have taken.

Pure. It knows how long each fit took in its worker and how long the caller waited, and
nothing else is assumed: a fit is taken to be as fast on another machine, and threads of
one process to fit side by side, which is said. What was not seen is unknown.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from statistics import median

from clustertune.core.wording import bytes_text, plural, printable, seconds_text
from clustertune.remote.fits import Fitted
from clustertune.training.room import COPIED, Seat

#: Of the cluster's seconds, in which one machine must be done to be called faster: what
#: it would take is reckoned, and fits there may disturb each other otherwise.
SOONER = 0.8
LONG = 1.0  # seconds from which on it matters that something takes long


@dataclass(slots=True)
class Call:
    """A call of joblib's while it lasts, and afterwards."""

    begun: float  # seconds of a clock
    ended: float | None = None
    fitted: list[Fitted] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Here:
    """The machine of the caller.

    Attributes
    ----------
    machine
        Its name among machines; empty: unknown.
    cpus
        That this process may use.
    free
        Bytes that it can still take.
    """

    machine: str
    cpus: int
    free: int


@dataclass(frozen=True, slots=True)
class Block:
    """What was there when a block began.

    Attributes
    ----------
    seats
        The workers.
    here
        The caller's machine.
    nbytes
        Of the data, of which each worker has a copy.
    copying
        Seconds that it took to put the copies there.
    nested
        Whether fits may wait for tasks of their own.
    """

    seats: tuple[Seat, ...]
    here: Here
    nbytes: int
    copying: float
    nested: bool

    @property
    def threads(self) -> int:
        """How many models are fitted at a time."""
        return sum(seat.threads for seat in self.seats)


@dataclass(frozen=True, slots=True)
class Work:
    """All fits of one function.

    Attributes
    ----------
    name
        Of the function.
    fits
        How many there were.
    workers
        On how many workers.
    median, longest, spent
        Seconds of one fit, of the longest, and of all together, in the workers.
    seconds
        That the caller waited for them.
    widest
        Most of them in one call.
    """

    name: str
    fits: int
    workers: int
    median: float
    longest: float
    spent: float
    seconds: float
    widest: int


def works(calls: Iterable[Call]) -> tuple[Work, ...]:
    """Calls that are done, by what they fitted."""
    found: dict[str, list[Call]] = {}
    for call in calls:
        if call.ended is not None and call.fitted:
            found.setdefault(call.fitted[0][0], []).append(call)
    return tuple(_work(name, some) for name, some in found.items())


def _work(name: str, calls: Sequence[Call]) -> Work:
    fitted = [one for call in calls for one in call.fitted]
    spent = [seconds for _, seconds, _ in fitted]
    return Work(
        name=printable(name, longest=60),
        fits=len(fitted),
        workers=len({worker for *_, worker in fitted}),
        median=median(spent),
        longest=max(spent),
        spent=math.fsum(spent),
        seconds=sum(call.ended - call.begun for call in calls if call.ended),
        widest=max(len(call.fitted) for call in calls),
    )


def remarks(block: Block, done: Sequence[Work]) -> list[str]:
    """What would be faster: measured, if anything was fitted."""
    if not done:
        return list(filter(None, [_before(block)]))
    found: list[str] = []
    waited = math.fsum(work.seconds for work in done)
    if block.copying > max(waited, LONG):
        found.append(
            f"copying {bytes_text(block.nbytes)} to "
            f"{plural(len(block.seats), 'worker')} took {seconds_text(block.copying)}, "
            f"longer than all fits there ({seconds_text(waited)}): fits in this "
            "process need no copies"
        )
    if not block.nested:  # else fits have waited for others, and their seconds say less
        found += filter(None, (_judged(block, work) for work in done))
    return found


def _before(block: Block) -> str | None:
    """What is worth trying, as far as can be told."""
    machines = {seat.machine for seat in block.seats}
    if len(machines) > 1 or "" in machines:
        return None
    where = "this machine" if machines == {block.here.machine} else "one machine"
    return (
        f"all workers are on {where}, with {plural(block.threads, 'thread')}: a "
        "process there that fits without Dask copies no data to workers (joblib."
        'parallel_config(backend="threading")); how it went here is said at the end '
        "of the block"
    )


def _judged(block: Block, work: Work) -> str | None:
    if work.spent < work.seconds:
        return _alone(block, work)
    here = beside(block, work)
    if here and here[1] < SOONER * work.seconds:
        return _side_by_side(block, work, *here)
    if work.widest < block.threads and work.seconds > LONG:
        return (
            f"{work.name}: at most {plural(work.widest, 'fit')} in a call, for "
            f"{plural(block.threads, 'thread')}: nested=True has the cluster run what "
            "ensembles fit in them as well"
        )
    return None


def beside(block: Block, work: Work) -> tuple[int, float] | None:
    """Threads that can fit here, and their seconds; None: there is no memory."""
    copy = COPIED * block.nbytes
    room = int(block.here.free / copy) if copy else work.widest
    threads = min(block.here.cpus, room, work.widest)
    if threads < 1:
        return None
    return threads, max(work.spent / threads, work.longest)


def _alone(block: Block, work: Work) -> str:
    lost = (work.seconds * block.threads - work.spent) / work.fits
    return (
        f"{_took(block, work)}, since each cost {seconds_text(lost)} of a thread "
        "beside its work. One after the other in this process, without joblib_backend, "
        "they would have been done sooner"
    )


def _side_by_side(block: Block, work: Work, threads: int, seconds: float) -> str:
    return (
        f"{_took(block, work)}; {plural(threads, 'thread')} of this machine would take "
        f"about {seconds_text(seconds)} where estimators release Python's lock, as "
        f'forests do: joblib.parallel_config(backend="threading", n_jobs={threads})'
    )


def _took(block: Block, work: Work) -> str:
    return (
        f"{plural(work.fits, 'fit')} of {work.name}, {seconds_text(work.median)} each, "
        f"took {seconds_text(work.spent)} in all, and {seconds_text(work.seconds)} on "
        f"{plural(block.threads, 'thread')} of the cluster"
    )


def busy(block: Block, done: Sequence[Work]) -> float | None:
    """The share of their time in which threads were fitting; None: unknown."""
    available = block.threads * math.fsum(work.seconds for work in done)
    if block.nested or not available:
        return None
    return math.fsum(work.spent for work in done) / available


def lines(block: Block, done: Sequence[Work]) -> Iterator[str]:
    """What was measured, and on what; what was not seen is said as unknown."""
    workers = plural(len(block.seats), "worker")
    taken = seconds_text(block.copying)
    yield f"{bytes_text(block.nbytes)} copied to {workers} in {taken}"
    for work in done:
        yield (
            f"{_took(block, work)}; at most {seconds_text(work.longest)}, on "
            f"{plural(work.workers, 'worker')}"
        )
    share = busy(block, done)
    if share is not None:
        yield f"threads of workers were fitting {share:.0%} of that time"
    elif done:
        yield "how busy threads were is unknown: with nested=True, fits wait for others"
    else:
        yield "nothing was fitted on the cluster"
    yield _whereabouts(block)


def _whereabouts(block: Block) -> str:
    here = block.here
    own = (
        f"this machine has {plural(here.cpus, 'CPU')} and {bytes_text(here.free)} free"
    )
    if not here.machine or any(not seat.machine for seat in block.seats):
        return f"{own}; which workers run on it is unknown"
    shared = sum(seat.machine == here.machine for seat in block.seats)
    return f"{own}; {shared} of {plural(len(block.seats), 'worker')} run on it"
