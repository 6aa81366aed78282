"""Names of published data sets, and how they change: all at once, or none.

Dask replaces one name after the other, whoever published the old data. In between,
X would be new and y old. Here all names change in one turn of the scheduler's event
loop, and only if each still has the data that the client has seen. A name wants its new
keys before it points to them, and its old keys until then.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

from dask.utils import stringify

from clustertune.remote.keys import KeyRange, unpack
from clustertune.remote.scheduler.state import is_gone

KEYS_PER_CHANGE = 1000  # keys of which a name wants or releases in one turn


class PublishedNames:
    """The published names of one scheduler, and the entries that clients have seen."""

    def __init__(self, scheduler: Any):
        self.scheduler = scheduler
        self.noted: dict[str, dict[str, Any]] = {}  # entries, by client and name

    def note(self, owner: str, names: Sequence[str]) -> dict[str, int]:
        """Remember the entries of names until the client leaves.

        Returns how many keys of each name are gone.
        """
        entries = {name: self._datasets().get(name) for name in names}
        if owner in self.scheduler.clients:
            self.noted[owner] = entries
        return {name: self._gone(entry) for name, entry in entries.items() if entry}

    def forget(self, client: str) -> None:
        self.noted.pop(client, None)

    async def replace(
        self,
        owner: str,
        new: Sequence[tuple[str, Sequence[KeyRange], Any]],
        kept: Mapping[str, str],
    ) -> dict[str, Any]:
        """Replace the data of names, and publish noted entries under other names.

        ``new`` are names, their packed keys and serialized data. ``kept`` has a new
        name by noted name. If all names were replaced, the answer is empty. Else it has
        ``changed`` and ``taken`` names, and the number of keys that are ``gone``.
        """
        old = self.noted.get(owner, {})
        entries = {n: {"data": data, "keys": list(unpack(k))} for n, k, data in new}
        entries |= {kept[n]: dict(old[n]) for n in kept if old.get(n)}
        answer = self._objection(old, entries, kept)
        if answer:
            return answer
        for name, entry in entries.items():
            for some in _batches(entry["keys"]):
                # keys that a client has released meanwhile are found below
                there = [key for key in some if key in self.scheduler.tasks]
                self.scheduler.client_desires_keys(there, _client(name))
                await asyncio.sleep(0)
        answer = self._objection(old, entries, kept)
        if answer:
            for name, entry in entries.items():
                await self._release(name, entry["keys"])
            return answer
        self._datasets().update(entries)  # the turn in which all names change
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
        """Why names must stay; all noted names count, because they are one data set."""
        datasets = self._datasets()
        unchanged = {
            n for n in old if datasets.get(n) is old[n]
        }  # or absent, as before
        answer = {
            "changed": sorted({*old, *entries} - {*kept.values()} - unchanged),
            "taken": sorted(name for name in kept.values() if name in datasets),
            "gone": sum(map(self._gone, entries.values())),
        }
        return answer if any(answer.values()) else {}

    async def _release(self, name: str, keys: Sequence[Any]) -> None:
        """Release keys of a name, but not those to which it points by then."""
        for some in _batches(keys):
            entry = self._datasets().get(name)
            there: Collection[Any] = set(entry["keys"]) if entry else ()
            going = [key for key in some if key not in there]
            if going and _client(name) in self.scheduler.clients:
                self.scheduler.client_releases_keys(going, _client(name))
            await asyncio.sleep(0)


def _client(name: Any) -> str:
    """The client as which the scheduler holds the keys of a name."""
    return f"published-{stringify(name)}"


def _batches(keys: Sequence[Any]) -> Iterator[Sequence[Any]]:
    for start in range(0, len(keys), KEYS_PER_CHANGE):
        yield keys[start : start + KEYS_PER_CHANGE]


def shared_names(scheduler: Any) -> dict[str, tuple[str, str]]:
    """Kind and name of published data, variables and queues, by their client."""
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


def unpublish(
    scheduler: Any, going: dict[str, list[Any]], prefixes: Collection[str]
) -> tuple[list[str], set[Any]]:
    """Remove the published names of keys that are about to be released.

    A name that also holds data of other prefixes stays, and so do its keys: they leave
    ``going``, which has keys by client. Returns the removed names, and the keys that
    stay.
    """
    removed: list[str] = []
    staying: set[Any] = set()
    datasets = getattr(scheduler.extensions.get("publish"), "datasets", {})
    for name, entry in list(datasets.items()):
        client = _client(name)
        keys = set(going.get(client, ()))
        if keys.isdisjoint(entry["keys"]):
            continue
        rest = [key for key in entry["keys"] if key not in keys]
        alone = [key for key in rest if _is_only_wanted_by(scheduler, key, client)]
        if any(scheduler.tasks[key].prefix.name not in prefixes for key in alone):
            staying.update(going.pop(client))
            continue
        del datasets[name]
        removed.append(str(name))
        # keys in memory without another holder wait for the turn of their prefix
        going[client] += set(rest).difference(alone)
    return removed, staying


def _is_only_wanted_by(scheduler: Any, key: Any, client: str) -> bool:
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
