"""How the items of a sum are spread over workers and their results joined (pure).

Everything here is decided before the first task runs, from the number of items, the
threads of the workers and the places of the pieces. So the order in which results are
added does not depend on which task ends first, and the same layout gives the same bits.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate

from clustertune.core.wording import bytes_text, plural, workers_text

WORTH = 8_000_000  # bytes that tasks may carry again and again, in all
FAN = 4  # results of workers that one task joins
SKEW = 1.5  # the fullest thread's share over the mean, from which it is worth a word


@dataclass(frozen=True, slots=True)
class Batch:
    """One task: the results of some items, added in this order.

    Attributes
    ----------
    worker
        Address of the worker on which it is to run.
    items
        Numbers of the items; a range where they are neighbours that lie nowhere.
    """

    worker: str
    items: Sequence[int]


@dataclass(frozen=True, slots=True)
class Join:
    """One task: results added in this order.

    Attributes
    ----------
    worker
        Address of the worker on which it is to run.
    parts
        Numbers of what it adds: batches are numbered first, joins after them.
    """

    worker: str
    parts: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Argument:
    """Something that all tasks need.

    Attributes
    ----------
    name
        As the caller would type it, ``broadcast[0]``.
    nbytes
        Of one copy; None for what lies on the cluster already.
    apart
        Whether it is sent as a task of its own, and not with each batch.
    """

    name: str
    nbytes: int | None
    apart: bool


@dataclass(frozen=True, slots=True)
class Plan:
    """What :func:`clustertune.training.map_reduce` does with its arguments, and why.

    Attributes
    ----------
    batches, joins
        The tasks. The last of all brings the result home.
    arguments
        What is sent to the workers besides items.
    workers
        By address the name of each worker that takes part.
    threads
        By address how many threads it has.
    remarks
        What the caller could do better.
    """

    batches: tuple[Batch, ...]
    joins: tuple[Join, ...]
    arguments: tuple[Argument, ...]
    workers: Mapping[str, str | int]
    threads: Mapping[str, int]
    remarks: tuple[str, ...] = ()

    def __str__(self) -> str:
        return "\n".join(_lines(self))


# --- which items make a task ----------------------------------------------------------


def spread(n_items: int, threads: Mapping[str, int]) -> tuple[Batch, ...]:
    """Items that may run anywhere: a run of neighbours for each thread.

    With fewer items than threads, workers get one each before one gets a second.

    Parameters
    ----------
    n_items
        How many there are, at least 1.
    threads
        By address how many threads each worker has; their order is that of the items.
    """
    slots = [(i, worker) for worker, n in threads.items() for i in range(n)]
    first = sorted(slots, key=lambda slot: slot[0])[:n_items]  # stable
    order = {worker: i for i, worker in enumerate(threads)}
    taken = sorted((worker for _, worker in first), key=order.__getitem__)
    ends = [n_items * (i + 1) // len(taken) for i in range(len(taken))]
    return tuple(
        Batch(worker, range(start, end))
        for worker, start, end in zip(taken, [0, *ends], ends, strict=False)
    )


def where_they_lie(
    pieces: Sequence[Mapping[str, int]], threads: Mapping[str, int]
) -> tuple[Batch, ...]:
    """Pieces on workers: for each thread of a worker a run of what lies there.

    Workers are taken in the order of their first pieces, so that addresses, which are
    others after a restart, have no part in the order of the sum.

    Parameters
    ----------
    pieces
        By address, how many bytes of each piece a worker holds.
    threads
        By address how many threads each worker has.
    """
    held: dict[str, list[int]] = {}
    load = dict.fromkeys(threads, 0.0)
    for i, holders in enumerate(pieces):
        most = max((n for w, n in holders.items() if w in threads), default=0)
        # what nobody has, or nobody that works, may be made anywhere
        able = [w for w in threads if most and holders.get(w, 0) == most] or threads
        owner = min(able, key=lambda w: load[w])
        load[owner] += max(1, _size(holders)) / threads[owner]
        held.setdefault(owner, []).append(i)
    return tuple(
        Batch(worker, run)
        for worker, numbers in held.items()
        for run in _runs(numbers, [_size(pieces[i]) for i in numbers], threads[worker])
    )


def _size(holders: Mapping[str, int]) -> int:
    return max(holders.values(), default=0)


def _runs(
    numbers: Sequence[int], sizes: Sequence[int], most: int
) -> list[tuple[int, ...]]:
    """At most so many runs of neighbours, about even in bytes; none is empty."""
    weights = [max(1, size) for size in sizes]
    total, middles = sum(weights), accumulate(weights)
    runs: dict[int, list[int]] = {}
    for number, weight, end in zip(numbers, weights, middles, strict=True):
        runs.setdefault(int(most * (end - weight / 2) / total), []).append(number)
    return [tuple(run) for run in runs.values()]


# --- in which order results are added -------------------------------------------------


def tree(batches: Sequence[Batch]) -> tuple[Join, ...]:
    """First what lies on the same worker, then workers, a few at a time."""
    joins: list[Join] = []

    def join(parts: Sequence[tuple[int, str]]) -> tuple[int, str]:
        if len(parts) == 1:
            return parts[0]
        numbers, worker = tuple(n for n, _ in parts), parts[0][1]
        joins.append(Join(worker, numbers))
        return len(batches) + len(joins) - 1, worker

    by_worker: dict[str, list[tuple[int, str]]] = {}
    for i, batch in enumerate(batches):
        by_worker.setdefault(batch.worker, []).append((i, batch.worker))
    level = [join(parts) for parts in by_worker.values()]
    while len(level) > 1:
        level = [join(level[i : i + FAN]) for i in range(0, len(level), FAN)]
    return tuple(joins)


# --- what is sent, and how ------------------------------------------------------------


def apart(nbytes: int, n_tasks: int) -> bool:
    """Whether something that all tasks need is worth a task of its own.

    That costs one more task, and that workers wait for it; put into each task, it
    travels from the scheduler as often as there are tasks.
    """
    return (n_tasks - 1) * nbytes > WORTH


# --- in words -------------------------------------------------------------------------


def remarks(batches: Sequence[Batch], pieces: Sequence[Mapping[str, int]]) -> list[str]:
    """What is wrong with the places of pieces: some threads have far more to do."""
    loads = [sum(max(1, _size(pieces[i])) for i in b.items) for b in batches]
    mean = sum(loads) / len(loads)
    if max(loads) <= SKEW * mean:
        return []
    remark = (
        f"the fullest thread has {max(loads) / mean:.2g} times the mean of what there "
        "is to do, and all others wait for it; clustertune.prepare spreads the pieces"
    )
    return [remark]


def _lines(plan: Plan) -> list[str]:
    n_items = sum(len(batch.items) for batch in plan.batches)
    counts = sorted({len(batch.items) for batch in plan.batches})
    each = " or ".join(f"{n:,}" for n in {counts[0], counts[-1]})
    working = {batch.worker for batch in plan.batches}
    used = [plan.workers[w] for w in plan.workers if w in working]
    tasks = plural(len(plan.batches), "task")
    first = f"{plural(n_items, 'item')} in {tasks} ({each} in each)"
    lines = [f"{first} on {workers_text(used)}"]
    idle = sum(plan.threads.values()) - len(plan.batches)
    if idle > 0:
        total = plural(sum(plan.threads.values()), "thread")
        lines.append(f"{idle:,} of {total} have nothing to do")
    lines += [_sent(argument, len(plan.batches)) for argument in plan.arguments]
    if plan.joins:
        lines.append(
            f"results are joined on the workers in {plural(len(plan.joins), 'task')}, "
            "those of a worker first; one comes home"
        )
    return lines + list(plan.remarks)


def _sent(argument: Argument, n_tasks: int) -> str:
    if argument.nbytes is None:
        return f"{argument.name} lies on the cluster"
    size, total = (bytes_text(n) for n in (argument.nbytes, argument.nbytes * n_tasks))
    if argument.apart:
        return (
            f"{argument.name} ({size}) goes to each worker once; with each task it "
            f"would be {total}"
        )
    return f"{argument.name} ({size}) goes with each task, {total} in all"
