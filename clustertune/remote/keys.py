"""Keys of collections on their way to the scheduler, as ranges where they are ranges.

A hundred thousand tuples take 50 ms of the scheduler's event loop to unpickle; the
keys of one collection are almost always ``(name, 0), (name, 1), ...`` or
``(name, 0, 0), (name, 1, 0), ...``, which is four values.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

Key = Any
Run = tuple[Any, ...]


def pack(keys: Sequence[Key]) -> list[Run]:
    """Runs that :func:`unpack` turns into the same keys in the same order."""
    runs: list[Run] = []
    start = 0
    while start < len(keys):
        stop = _end_of_range(keys, start)
        if stop - start > 1:
            name, first, *tail = keys[start]
            runs.append(("range", name, first, stop - start, tuple(tail)))
        elif runs and runs[-1][0] == "list":
            runs[-1][1].append(keys[start])
        else:
            runs.append(("list", [keys[start]]))
        start = stop
    return runs


def unpack(runs: Sequence[Run]) -> Iterator[Key]:
    """The keys of packed runs, one by one."""
    for run in runs:
        if run[0] == "list":
            yield from run[1]
        else:
            _, name, first, count, tail = run
            for i in range(first, first + count):
                yield (name, i, *tail)


def count(runs: Sequence[Run]) -> int:
    """How many keys packed runs have."""
    return sum(len(run[1]) if run[0] == "list" else run[3] for run in runs)


class Places:
    """By key its place in packed collections that have the same rows.

    Ranges are not unpacked: of a hundred thousand keys only some are ever asked for.
    """

    def __init__(self, collections: Iterable[Sequence[Run]]) -> None:
        self._ranges: dict[Key, list[tuple[int, int, int]]] = {}
        self._listed: dict[Key, int] = {}
        for runs in collections:
            place = 0
            for run in runs:
                if run[0] == "list":
                    self._listed |= {key: place + i for i, key in enumerate(run[1])}
                    place += len(run[1])
                else:
                    _, name, first, count, tail = run
                    own = self._ranges.setdefault((name, *tail), [])
                    own.append((first, first + count, place))
                    place += count

    def get(self, key: Key) -> int | None:
        """Its place; None: it is in none of them."""
        if isinstance(key, tuple) and len(key) > 1 and type(key[1]) is int:
            name, number, *tail = key
            for first, stop, place in self._ranges.get((name, *tail), ()):
                if first <= number < stop:
                    found: int = place + number - first
                    return found
        return self._listed.get(key)


def _end_of_range(keys: Sequence[Key], start: int) -> int:
    """One past the last key that continues the range beginning at ``start``."""
    head = keys[start]
    stop = start + 1
    # bool is an int, and True == 1: a key must come back as the very same value
    if not (isinstance(head, tuple) and len(head) > 1 and type(head[1]) is int):
        return stop
    name, first, *rest = head
    tail = tuple(rest)
    while stop < len(keys) and keys[stop] == (name, first + stop - start, *tail):
        if type(keys[stop][1]) is not int:
            break
        stop += 1
    return stop
