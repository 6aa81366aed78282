"""Exchange rows between workers, so a division moves fewer bytes (pure).

Workers are nodes of a graph. An edge is the cheapest move of a row from one worker to
another. One more node is the free room of all workers. A cycle of negative cost is an
exchange that moves fewer bytes and exceeds no limit. Exchanges end when no such cycle
is left, which is the optimum of this linear programme (M. Klein, A primal method for
minimal cost flows, 1967), except for small parts.
"""

from __future__ import annotations

import numpy as np

from clustertune.core.model import Float64s, Int64s
from clustertune.planner.layouts import HeldBytes

# Limits of the search. They bound its time, and results do not depend on time.
CELLS = 500_000  # partitions times workers; with more, the division stays as it is
WORKERS = 128  # with more, the division stays as it is
STEPS = 1_000  # exchanges
_ROUNDING = 1e-9  # of the bytes of a row


def exchanged(
    rows: Int64s,
    held: HeldBytes,
    division: tuple[Int64s, Int64s],
    share: Float64s,
    slack: float,
    least: float,
) -> tuple[Int64s, Int64s]:
    """Return parts of the partitions, and targets, that move fewer bytes.

    ``division`` has the rows and targets of present parts. Workers exceed their share
    by at most the fraction ``slack`` of it, unless they do now. No worker gives more
    than half of its share away. Parts have more than the fraction ``least`` of the
    largest share, unless they are whole partitions or parts of ``division``.
    """
    new, target = division
    size = len(rows), len(share)
    if size[0] * size[1] > CELLS or size[1] > WORKERS:
        return division
    part = np.searchsorted(np.cumsum(rows), np.cumsum(new))
    amount, value = np.zeros(size, np.int64), np.zeros(size)
    np.add.at(amount, (part, target), new)
    value[held.partition, held.worker] = held.nbytes / rows[held.partition]
    smallest = np.minimum(rows, 1 + int(least * share.max()))
    exchange = _Exchange(amount, value, smallest)
    exchange.limit(share, slack)
    for _ in range(STEPS):
        cycle = _cycle(exchange.costs())
        if not cycle:
            break
        exchange.send(cycle)
    part, worker = np.nonzero(amount)
    return amount[part, worker], worker.astype(np.int64)


class _Exchange:
    """The rows of each partition on each worker, and the cheapest moves of a row."""

    def __init__(self, amount: Int64s, value: Float64s, smallest: Int64s) -> None:
        self.amount, self.value, self.smallest = amount, value, smallest
        n_workers = amount.shape[1]
        self.anywhere = n_workers  # the node of free room
        self.cost = np.full((n_workers + 1, n_workers + 1), np.inf)
        self.cheapest = np.zeros((n_workers, n_workers), np.int64)  # partitions
        self.closed = np.eye(n_workers + 1, dtype=bool)
        self.load = amount.sum(axis=0)
        for worker in range(n_workers):
            self._find(worker)

    def limit(self, share: Float64s, slack: float) -> None:
        self.most = np.maximum(share * (1 + slack), self.load).astype(np.int64)
        self.fewest = np.minimum(share / 2, self.load).astype(np.int64)

    def costs(self) -> Float64s:
        """Return the bytes that the move of a row from a worker to another one adds."""
        self.cost[:-1, -1] = np.where(self.load < self.most, 0.0, np.inf)
        self.cost[-1, :-1] = np.where(self.load > self.fewest, 0.0, np.inf)
        return np.where(self.closed, np.inf, self.cost)

    def send(self, cycle: list[tuple[int, int]]) -> None:
        """Send rows along the edges, or close one on which only few could be sent."""
        free = [self._free(*edge) for edge in cycle]
        n = min(free)
        moves = [
            (int(self.cheapest[edge]), *edge)
            for edge in cycle
            if self.anywhere not in edge
        ]
        small = [int(self.smallest[i]) for i, _, _ in moves]
        left = [
            int(self.amount[i, source]) - m
            for (i, source, _), m in zip(moves, small, strict=True)
        ]
        if any(-m < rest - n < 0 for rest, m in zip(left, small, strict=True)):
            n = min(n, *left)
        if n < max(small):
            self.closed[cycle[int(np.argmin(free))]] = True
            return
        for i, source, target in moves:
            self.amount[i, source] -= n
            self.amount[i, target] += n
            self.load[source] -= n
            self.load[target] += n
        for worker in {worker for _, *edge in moves for worker in edge}:
            self._find(worker)

    def _free(self, source: int, target: int) -> int:
        """Return how many rows an edge can take."""
        if target == self.anywhere:
            return int(self.most[source] - self.load[source])
        if source == self.anywhere:
            return int(self.load[target] - self.fewest[target])
        return int(self.amount[self.cheapest[source, target], source])

    def _find(self, worker: int) -> None:
        """Find the cheapest moves from a worker."""
        here = np.flatnonzero(self.amount[:, worker])
        if not len(here):
            self.cost[worker, :-1] = np.inf
            return
        lost = self.value[here, worker, None] - self.value[here]
        first = lost.argmin(axis=0)
        self.cheapest[worker] = here[first]
        self.cost[worker, :-1] = lost[first, np.arange(self.anywhere)]


def _cycle(cost: Float64s) -> list[tuple[int, int]]:
    """Return the edges of a cycle with negative cost; none if there is no such cycle.

    This is the algorithm of Bellman and Ford. It looks for a cycle of predecessors
    after 1, 2, 4... rounds, because cycles are short.
    """
    size = len(cost)
    least, before = np.zeros(size), np.full(size, -1)
    for n in range(1, size + 1):
        ways = least[:, None] + cost
        first = ways.argmin(axis=0)
        found = ways[first, np.arange(size)]
        shorter = found < least - _ROUNDING
        if not shorter.any():
            return []
        before[shorter] = first[shorter]
        least[shorter] = found[shorter]
        if n & (n - 1) == 0 or n == size:
            cycle = _circle(before)
            if cycle:
                return cycle
    return []


def _circle(before: Int64s) -> list[tuple[int, int]]:
    """Return the edges of a cycle of predecessors; none if there is no cycle."""
    node = np.arange(len(before))
    for _ in range(len(before)):
        node = np.where(node < 0, -1, before[node])
        if (node < 0).all():
            return []
    last = start = int(node.max())
    edges: list[tuple[int, int]] = []
    while not edges or last != start:
        edges.append((int(before[last]), last))
        last = int(before[last])
    return edges
