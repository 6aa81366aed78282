"""What roles report and log while they run."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass
from typing import Any

from distributed import Client


@dataclass(frozen=True, slots=True, kw_only=True)
class Score:
    """A score that a role has reported.

    Attributes
    ----------
    role, rank
        Who reported it.
    value
        What ``ctx.report`` was given.
    time
        When, by the clock of that worker: seconds since 1970.
    """

    role: str
    rank: int
    value: Any
    time: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """A line that a role has logged; attributes are those of :class:`Score`."""

    role: str
    rank: int
    text: str
    time: float

    def __str__(self) -> str:
        return f"{self.role} {self.rank}: {self.text}"


class Scores:
    """Scores in the order in which they came; waits for the next, ends with the roles.

    Each iteration begins with the first one. With an asynchronous client it is
    ``async for``.
    """

    def __init__(self, client: Client, score: Callable[[int], Any]):
        self._client = client
        self._score = score

    def __iter__(self) -> Iterator[Score]:
        if self._client.asynchronous:
            raise TypeError("the client is asynchronous: async for score in ...")
        number = 0
        while (score := self._client.sync(self._score, number)) is not None:
            yield score
            number += 1

    async def __aiter__(self) -> AsyncIterator[Score]:
        number = 0
        while (score := await self._score(number)) is not None:
            yield score
            number += 1
