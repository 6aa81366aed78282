"""Replace the data of published names: all at once, or none.

Dask replaces one name at a time, without a check of the old data. In between, X would
be new and y old. Here all names change in one turn of the scheduler's event loop, and
only if each name still has the data that the client has read. A name wants its new keys
before the change, and its old keys until the change. That turn looks only at keys whose
tasks changed meanwhile, because a name may have a million keys.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import chain
from typing import Any
from uuid import uuid4

from dask.utils import stringify
from distributed.diagnostics.plugin import SchedulerPlugin

from clustertune.remote.keys import KeyRange, KeySet, batches, drain, in_turns, unpack
from clustertune.remote.scheduler.state import is_gone


class ChangedKeys(SchedulerPlugin):
    """Those of some keys whose tasks change while it is among Dask's plugins."""

    def __init__(self, keys: KeySet):
        self.keys = keys
        self.found: set[Any] = set()

    def transition(self, key: Any, *_: Any, **__: Any) -> None:
        if key in self.keys:
            self.found.add(key)


class PublishedNames:
    """The published names of one scheduler, and the entries that clients have seen."""

    def __init__(self, scheduler: Any):
        self.scheduler = scheduler
        self.noted: dict[str, dict[str, Any]] = {}  # entries, by client and name

    async def note(self, owner: str, names: Sequence[str]) -> dict[str, int]:
        """Record the entries of names until the client leaves.

        Returns how many keys of each name are gone.
        """
        entries = {name: self._datasets().get(name) for name in names}
        if owner in self.scheduler.clients:
            self.noted[owner] = entries
        return {
            name: await self._gone(entry["keys"])
            for name, entry in entries.items()
            if entry
        }

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
        entries = {}
        for name, runs, data in new:
            own = [key async for key in in_turns(unpack(runs))]
            entries[name] = {"data": data, "keys": own}
        entries |= {kept[n]: dict(old[n]) for n in kept if old.get(n)}
        named = chain.from_iterable(entry["keys"] for entry in entries.values())
        keys = await KeySet.of(named)
        with self._watched(keys) as suspects:
            for name, entry in entries.items():
                await self._hold(name, entry["keys"], suspects)
            # no await before all names have changed
            answer = self._objection(old, entries, kept)
            lost = any(is_gone(self.scheduler, key) for key in suspects)
            if not lost and not any(answer.values()):
                self._datasets().update(entries)
                answer = {}
        if answer:
            answer["gone"] = await self._gone(suspects)
            unused = entries
        else:
            self.forget(owner)
            unused = {n: old[n] for n in old if old[n] and n in entries}
        for name, entry in unused.items():
            await self._release(name, entry["keys"])
        await drain(keys)
        return answer

    def _datasets(self) -> dict[Any, Any]:
        found: dict[Any, Any] = self.scheduler.extensions["publish"].datasets
        return found

    async def _gone(self, keys: Iterable[Any]) -> int:
        gone = 0
        async for key in in_turns(keys):
            gone += is_gone(self.scheduler, key)
        return gone

    def _objection(
        self,
        old: Mapping[str, Any],
        entries: Mapping[str, Any],
        kept: Mapping[str, str],
    ) -> dict[str, Any]:
        """Return names that must stay; all recorded names form one data set."""
        datasets = self._datasets()
        # or absent, as before
        unchanged = {n for n in old if datasets.get(n) is old[n]}
        return {
            "changed": sorted({*old, *entries} - {*kept.values()} - unchanged),
            "taken": sorted(name for name in kept.values() if name in datasets),
        }

    @contextmanager
    def _watched(self, keys: KeySet) -> Iterator[set[Any]]:
        """Yield a set, which receives those of the keys whose tasks change."""
        changed, name = ChangedKeys(keys), f"clustertune-{uuid4().hex}"
        self.scheduler.add_plugin(changed, name=name)
        try:
            yield changed.found
        finally:
            self.scheduler.remove_plugin(name=name)

    async def _hold(self, name: str, keys: Sequence[Any], gone: set[Any]) -> None:
        """Have a name want keys; add keys that are gone to ``gone``."""
        async for some in in_turns(batches(keys)):
            there = [key for key in some if key in self.scheduler.tasks]
            self.scheduler.client_desires_keys(there, _client(name))
            gone.update(key for key in some if is_gone(self.scheduler, key))

    async def _release(self, name: str, keys: Sequence[Any]) -> None:
        """Release the keys of a name, except the keys of its current data."""
        entry, staying = None, KeySet()
        async for some in in_turns(batches(keys)):
            # another client may publish this name meanwhile
            while (now := self._datasets().get(name)) is not entry:
                entry, known = now, now["keys"] if now else ()
                staying = await KeySet.of(known)
            going = [key for key in some if key not in staying]
            if going and _client(name) in self.scheduler.clients:
                self.scheduler.client_releases_keys(going, _client(name))
        await drain(staying)


def _client(name: Any) -> str:
    """Return the client id by which the scheduler holds the keys of a name."""
    return f"published-{stringify(name)}"


def shared_names(scheduler: Any) -> dict[str, tuple[str, str]]:
    """Return kind and name of published data, variables and queues, by client id."""
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


async def unpublish(
    scheduler: Any, going: dict[str, list[Any]], prefixes: Collection[str]
) -> tuple[list[str], KeySet]:
    """Remove the published names of keys before they are released.

    A name that also holds data of other prefixes stays, and so do its keys: they leave
    ``going``, which has keys by client. Returns the removed names, and the keys that
    stay.
    """
    removed: list[str] = []
    staying = KeySet()
    datasets = getattr(scheduler.extensions.get("publish"), "datasets", {})
    todo = [name for name in datasets if going.get(_client(name))]
    for name in todo:  # which grows meanwhile
        client, entry = _client(name), datasets.get(name)
        if entry is None:
            continue
        keys, rest = await KeySet.of(going[client]), KeySet()
        goes = stays = False
        async for key in in_turns(entry["keys"]):
            if key in keys:
                goes = True
            elif not _is_only_wanted_by(scheduler, key, client):
                rest.add(key)
            elif scheduler.tasks[key].prefix.name not in prefixes:
                stays = True
        if datasets.get(name) is not entry:
            todo.append(name)  # another client has published it
        elif goes and stays:
            del going[client]
            await staying.update(keys)
        elif goes:
            del datasets[name]
            removed.append(str(name))
            # keys in memory without another holder wait for the turn of their prefix
            going[client] += rest
        await drain(keys)
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
