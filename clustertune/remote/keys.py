"""Keys of collections as compact ranges, and work on many keys in short turns.

A hundred thousand tuples take 50 ms of the scheduler's event loop to unpickle. The keys
of a collection are almost always ``(name, 0), (name, 1), ...`` or
``(name, 0, 0), (name, 1, 0), ...``, which is a range of four values.
"""

from __future__ import annotations

import asyncio
from array import array
from collections.abc import (
    AsyncIterator,
    Callable,
    Iterable,
    Iterator,
    MutableMapping,
    Sequence,
)
from itertools import islice, zip_longest
from time import perf_counter
from typing import Any, Generic, TypeVar

TURN = 0.01  # seconds of work in one turn of the event loop
BATCH = 100  # keys of one call of the scheduler, which takes a few milliseconds
PARTS = 64  # of sets and dictionaries of keys

Key = Any
Value = TypeVar("Value")
KeyRange = tuple[Any, ...]


def pack(keys: Sequence[Key]) -> list[KeyRange]:
    """Pack keys into ranges; :func:`unpack` returns the same keys in the same order."""
    runs: list[KeyRange] = []
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


def unpack(runs: Sequence[KeyRange]) -> Iterator[Key]:
    """Iterate over the keys of packed ranges."""
    for run in runs:
        if run[0] == "list":
            yield from run[1]
        else:
            _, name, first, count, tail = run
            for i in range(first, first + count):
                yield (name, i, *tail)


def count(runs: Sequence[KeyRange]) -> int:
    """Count the keys of packed ranges."""
    return sum(len(run[1]) if run[0] == "list" else run[3] for run in runs)


def in_rotation(
    moves: Sequence[tuple[Sequence[KeyRange], bytes]], workers: Sequence[str]
) -> Iterator[tuple[Key, str]]:
    """Iterate over keys and targets, in turns over the collections: y_i follows X_i."""
    pairs = [
        zip(unpack(packed), array("q", targets), strict=True)
        for packed, targets in moves
    ]
    for row in zip_longest(*pairs):
        for key, i in filter(None, row):
            yield key, workers[i]


async def in_turns(items: Iterable[Any]) -> AsyncIterator[Any]:
    """Iterate over items, and let the event loop run each time ``TURN`` passed."""
    end = perf_counter() + TURN
    for item in items:
        yield item
        if perf_counter() >= end:
            await asyncio.sleep(0)
            end = perf_counter() + TURN


def batches(items: Iterable[Any]) -> Iterator[list[Any]]:
    """Iterate over lists of up to ``BATCH`` items."""
    rest = iter(items)
    while some := list(islice(rest, BATCH)):
        yield some


def drained(keys: KeySet | set[Key] | list[Key]) -> Iterator[Key]:
    """Remove keys one by one; to free a million keys at once takes one long turn."""
    for part in keys.parts if isinstance(keys, KeySet) else [keys]:
        while part:
            yield part.pop()


class KeyMap(Generic[Value]):
    """A dictionary in parts: with a million keys, a single one grows for 100 ms."""

    def __init__(self, make: Callable[[], MutableMapping[Key, Value]] = dict) -> None:
        self._parts = [make() for _ in range(PARTS)]

    def _part(self, key: Key) -> MutableMapping[Key, Value]:
        return self._parts[hash(key) % PARTS]

    def __setitem__(self, key: Key, value: Value) -> None:
        self._part(key)[key] = value

    def __delitem__(self, key: Key) -> None:
        del self._part(key)[key]

    def __len__(self) -> int:
        return sum(map(len, self._parts))

    def get(self, key: Key) -> Value | None:
        return self._part(key).get(key)


class KeySet:
    """A set in parts, for the same reason."""

    def __init__(self) -> None:
        self.parts: list[set[Key]] = [set() for _ in range(PARTS)]

    @classmethod
    async def of(cls, keys: Iterable[Key]) -> KeySet:
        """Return the set of some keys, which it reads in turns."""
        found = cls()
        async for key in in_turns(keys):
            found.parts[hash(key) % PARTS].add(key)
        return found

    def __contains__(self, key: Key) -> bool:
        return key in self.parts[hash(key) % PARTS]


class Places:
    """Positions of keys in packed collections that have the same rows.

    Ranges stay packed, because callers look up few of a hundred thousand keys.
    """

    def __init__(self) -> None:
        self.ranges: dict[Key, list[tuple[int, int, int]]] = {}
        self.listed = KeyMap[int]()

    @classmethod
    async def of(cls, collections: Iterable[Sequence[KeyRange]]) -> Places:
        """Return the positions of the keys of packed collections."""
        places = cls()
        for runs in collections:
            place = 0
            for run in runs:
                if run[0] == "list":
                    async for i, key in in_turns(enumerate(run[1], place)):
                        places.listed[key] = i
                    place += len(run[1])
                else:
                    _, name, first, count, tail = run
                    own = places.ranges.setdefault((name, *tail), [])
                    own.append((first, first + count, place))
                    place += count
        return places

    def __contains__(self, key: Key) -> bool:
        return self.get(key) is not None

    def get(self, key: Key) -> int | None:
        """The position of a key, or None if no collection has it."""
        if isinstance(key, tuple) and len(key) > 1 and type(key[1]) is int:
            name, number, *tail = key
            for first, stop, place in self.ranges.get((name, *tail), ()):
                if first <= number < stop:
                    found: int = place + number - first
                    return found
        return self.listed.get(key)


def _end_of_range(keys: Sequence[Key], start: int) -> int:
    """Return one past the last key of the range that begins at ``start``."""
    head = keys[start]
    stop = start + 1
    # bool is an int and True == 1, but a key must come back with the same type
    if not (isinstance(head, tuple) and len(head) > 1 and type(head[1]) is int):
        return stop
    name, first, *rest = head
    tail = tuple(rest)
    while stop < len(keys) and keys[stop] == (name, first + stop - start, *tail):
        if type(keys[stop][1]) is not int:
            break
        stop += 1
    return stop
