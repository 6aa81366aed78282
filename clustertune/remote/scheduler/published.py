"""Names of published data sets that point to other pieces: all at once, or none.

Dask replaces one name after the other, whoever has published what is there; in between,
X would be new and y old. Here all names change in one turn of the scheduler's event
loop, and only if each still points to what the client has seen. A name wants its new
keys before it points to them, and its old ones until then.
"""

from __future__ import annotations

import asyncio
from collections.abc import (
    Collection,
    Iterator,
    Mapping,
    Sequence,
)
from typing import Any

from dask.utils import stringify

from clustertune.remote.keys import unpack
from clustertune.remote.scheduler.workers import is_gone

YIELD = 1000  # keys between two yields to the event loop


class Names:
    """Of one scheduler; remembers for its clients what names pointed to."""

    def __init__(self, scheduler: Any):
        self.scheduler = scheduler
        self.noted: dict[str, dict[str, Any]] = {}  # entries, by client and name

    def note(self, owner: str, names: Sequence[str]) -> dict[str, int]:
        """Remember what these point to until the client leaves.

        Answers with how many keys of each are gone.
        """
        entries = {name: self._datasets().get(name) for name in names}
        if owner in self.scheduler.clients:
            self.noted[owner] = entries
        return {name: self._gone(entry) for name, entry in entries.items() if entry}

    def forget(self, client: str) -> None:
        self.noted.pop(client, None)

    async def point(
        self,
        owner: str,
        new: Sequence[tuple[str, Sequence[Any], Any]],
        kept: Mapping[str, str],
    ) -> dict[str, Any]:
        """Have names point to other data, and ``kept`` names to what old ones did.

        ``new`` are names, packed keys and serialized data. Answers with what is in the
        way, which is nothing if it was done: ``changed`` names, ``taken`` ones, and how
        many keys are ``gone``.
        """
        old = self.noted.get(owner, {})
        entries = {n: {"data": data, "keys": list(unpack(k))} for n, k, data in new}
        entries |= {kept[n]: dict(old[n]) for n in kept if old.get(n)}
        answer = self._objection(old, entries, kept)
        if answer:
            return answer
        for name, entry in entries.items():
            for some in _parts(entry["keys"]):
                # what a client has let go meanwhile is seen below
                there = [key for key in some if key in self.scheduler.tasks]
                self.scheduler.client_desires_keys(there, _client(name))
                await asyncio.sleep(0)
        answer = self._objection(old, entries, kept)
        if answer:
            for name, entry in entries.items():
                await self._release(name, entry["keys"])
            return answer
        self._datasets().update(entries)  # the turn in which all of them change
        self.forget(owner)
        for name, entry in old.items():
            if entry and name in entries:
                await self._release(name, entry["keys"])
        return {}

    def _datasets(self) -> dict[Any, Any]:
        found: dict[Any, Any] = self.scheduler.extensions["publish"].datasets
        return found

    def _gone(self, entry: Mapping[str, Any]) -> int:
        return sum(is_gone(self.scheduler, key) for key in entry["keys"])

    def _objection(
        self,
        old: Mapping[str, Any],
        entries: Mapping[str, Any],
        kept: Mapping[str, str],
    ) -> dict[str, Any]:
        """Why names may not be changed; of all that were noted, as they are a set."""
        datasets = self._datasets()
        there = {n for n in old if datasets.get(n) is old[n]}  # or was not there
        answer = {
            "changed": sorted({*old, *entries} - {*kept.values()} - there),
            "taken": sorted(name for name in kept.values() if name in datasets),
            "gone": sum(map(self._gone, entries.values())),
        }
        return answer if any(answer.values()) else {}

    async def _release(self, name: str, keys: Sequence[Any]) -> None:
        """Have a name want keys no more, but for those to which it points by then."""
        for some in _parts(keys):
            entry = self._datasets().get(name)
            there: Collection[Any] = set(entry["keys"]) if entry else ()
            going = [key for key in some if key not in there]
            if going and _client(name) in self.scheduler.clients:
                self.scheduler.client_releases_keys(going, _client(name))
            await asyncio.sleep(0)


def _client(name: str) -> str:
    """The client that a name is to the scheduler."""
    return f"published-{stringify(name)}"


def _parts(keys: Sequence[Any]) -> Iterator[Sequence[Any]]:
    for start in range(0, len(keys), YIELD):
        yield keys[start : start + YIELD]


def _unpublish(
    scheduler: Any, going: dict[str, list[Any]], prefixes: Collection[str]
) -> tuple[list[str], set[Any]]:
    """Remove the published names of keys that are going; these names.

    ``going`` are keys by client. A name stays that alone holds other data, and so do
    its keys, which are returned, too.
    """
    removed: list[str] = []
    staying: set[Any] = set()
    datasets = getattr(scheduler.extensions.get("publish"), "datasets", {})
    for name, entry in list(datasets.items()):
        client = f"published-{stringify(name)}"
        keys = set(going.get(client, ()))
        if keys.isdisjoint(entry["keys"]):
            continue
        rest = [key for key in entry["keys"] if key not in keys]
        alone = [key for key in rest if _is_alone(scheduler, key, client)]
        if any(scheduler.tasks[key].prefix.name not in prefixes for key in alone):
            staying.update(going.pop(client))
            continue
        del datasets[name]
        removed.append(str(name))
        # what is in memory and has no other holder waits for the turn of its prefix
        going[client] += set(rest).difference(alone)
    return removed, staying


def _is_alone(scheduler: Any, key: Any, client: str) -> bool:
    """Whether data in memory is wanted by this client alone."""
    ts = scheduler.tasks.get(key)
    return (
        ts is not None
        and ts.state == "memory"
        and {c.client_key for c in ts.who_wants or ()} == {client}
    )


def unpublish_all(scheduler: Any) -> list[str]:
    """Remove all published names that hold keys, before all keys are lost."""
    datasets = getattr(scheduler.extensions.get("publish"), "datasets", {})
    names = [name for name, entry in datasets.items() if entry["keys"]]
    for name in names:
        del datasets[name]
    return [str(name) for name in names]


def shared(scheduler: Any) -> dict[str, tuple[str, str]]:
    """Kind and name of what is shared by name, by the client that holds it for all."""
    extensions = scheduler.extensions
    found = {}
    for extension, table, kind in (
        ("publish", "datasets", "published"),
        ("variables", "variables", "variable"),
        ("queues", "queues", "queue"),
    ):
        for name in getattr(extensions.get(extension), table, ()):
            found[f"{kind}-{stringify(name)}"] = (kind, str(name))
    return found
