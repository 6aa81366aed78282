"""Which software runs on the other sides, and whether code may be sent there.

Python's bytecode differs between minor releases: functions pickled by one can crash a
process of another outright. So the versions are read first, through calls of
distributed's own that carry no code.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from distributed.versions import get_versions

if TYPE_CHECKING:
    from distributed import Client

OLDEST = (2025, 5)  # release of distributed whose scheduler the resident knows


@dataclass(frozen=True)
class Sides:
    """Versions of packages by name (``python``, ``distributed``, ...), by side."""

    client: Mapping[str, str | None]
    scheduler: Mapping[str, str | None]
    workers: Mapping[str, Mapping[str, str | None]]  # by address
    silent: tuple[str, ...] = ()  # workers that did not answer

    def objections(self) -> tuple[str, ...]:
        """Why code must not go to the scheduler or to a worker; empty: it may."""
        sides = {"the scheduler": self.scheduler} | {
            f"worker {address}": packages for address, packages in self.workers.items()
        }
        return tuple(
            f"{name} {text}"
            for name, packages in sides.items()
            for text in _objections(self.client, packages)
        )


async def read(
    client: Client,
    workers: Iterable[str] | None = None,
    packages: Iterable[str] = (),
    timeout: float = 10,
) -> Sides:
    """Ask all sides for their versions; no code is sent.

    Parameters
    ----------
    client
        A connected client.
    workers
        Addresses to ask; None asks all.
    packages
        Further packages, by the names of their distributions.
    timeout
        Seconds after which a worker that has not answered counts as silent.
    """
    more, remote = list(packages), _scheduler(client)
    here = get_versions(packages=more)["packages"]
    scheduler = (await remote.versions(packages=more))["packages"]
    asked = None if workers is None else list(workers)
    if asked == []:
        return Sides(here, scheduler, {})
    if asked is None:
        identity = await remote.identity(n_workers=-1)
        asked = list(identity["workers"])
    found = await _ask(client, asked, more, timeout)
    if len(asked) > 1 and all(answer is None for answer in found.values()):
        # somebody kept all others waiting: ask each alone
        each = await asyncio.gather(*(_ask(client, [a], more, timeout) for a in asked))
        found = {a: answer for one in each for a, answer in one.items()}
    return Sides(
        here,
        scheduler,
        {address: answer for address, answer in found.items() if answer is not None},
        tuple(address for address, answer in found.items() if answer is None),
    )


def _scheduler(client: Client) -> Any:
    """Distributed makes these calls on the fly: they have no types."""
    return client.scheduler


async def _ask(
    client: Client, workers: list[str], packages: list[str], timeout: float
) -> dict[str, Mapping[str, str | None] | None]:
    """By address what a worker says of its packages; None if it did not answer."""
    call = _scheduler(client).broadcast(
        msg={"op": "versions", "packages": packages},
        workers=workers,
        on_error="ignore",
    )
    try:
        answers: dict[str, Any] = await asyncio.wait_for(call, timeout)
    except asyncio.TimeoutError:
        return dict.fromkeys(workers)
    return {w: _packages(answers.get(w)) for w in workers}


def _packages(answer: Any) -> Mapping[str, str | None] | None:
    """Versions by name; an answer that is none counts as none."""
    found = answer.get("packages") if isinstance(answer, dict) else None
    if isinstance(found, dict) and all(
        isinstance(v, str | None) for v in found.values()
    ):
        return found
    return None


def _objections(
    ours: Mapping[str, str | None], theirs: Mapping[str, str | None]
) -> Iterable[str]:
    if _parts(ours, "python")[:2] != _parts(theirs, "python")[:2]:
        yield (
            f"runs Python {_shown(theirs, 'python')}, this client "
            f"{ours.get('python')}: code of another Python minor can crash it, so none "
            "is sent; use the same Python minor on all sides"
        )
    if _parts(ours, "cloudpickle")[:1] != _parts(theirs, "cloudpickle")[:1]:
        yield (
            f"has cloudpickle {_shown(theirs, 'cloudpickle')}, this client "
            f"{ours.get('cloudpickle')}: install the same major release on all sides"
        )
    if _parts(theirs, "distributed")[:2] < OLDEST:
        yield (
            f"has distributed {_shown(theirs, 'distributed')}: clustertune needs "
            f"{'.'.join(map(str, OLDEST))} or later on all sides"
        )


def _shown(packages: Mapping[str, str | None], name: str) -> str:
    """A version that another process has said: shown as text that cannot act."""
    return ascii(packages.get(name))[:40].strip("'")


def _parts(packages: Mapping[str, str | None], name: str) -> tuple[int, ...]:
    """The leading numbers of a version; empty where it is not known."""
    numbers = []
    for part in (packages.get(name) or "").split("."):
        if not part.isdigit():
            break
        numbers.append(int(part))
    return tuple(numbers)
