"""Replicas that Dask's memory manager keeps.

Dask's policy ``ReduceReplicas`` drops all replicas of a key but one, or as many as
tasks wait for it. It starts with the fullest workers. :class:`KeepReplicas` replaces it
and passes its suggestions on, except for two kinds of replicas:

- all replicas of keys with a prefix (:func:`keep`), until the call ends or its client
  disconnects;
- each prepared key's replica on its prepared worker (:class:`PreparedKeys`).
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Protocol
from weakref import WeakKeyDictionary

from distributed.active_memory_manager import (
    ReduceReplicas,
    Suggestion,
    SuggestionGenerator,
)
from distributed.core import Status
from distributed.diagnostics.plugin import SchedulerPlugin

from clustertune.remote.keys import KeyMap
from clustertune.remote.scheduler.state import id_of

NAME = "clustertune-copies"
KEEPING = (Status.running, Status.paused)  # workers with these keep prepared keys


class ReplicaKeeper(Protocol):
    """Decides which replicas are kept."""

    def kept_on(self, task: Any) -> set[Any]:
        """The workers whose replica of a task in memory is kept."""

    def any(self) -> bool:
        """Whether any replicas are kept."""


class KeepReplicas(ReduceReplicas):
    """Pass on the suggestions of another policy, but drop no kept replicas."""

    def __init__(self, policy: Any, keeper: ReplicaKeeper):
        self.policy = policy
        self.keeper = keeper

    def run(self) -> SuggestionGenerator:
        if not self.keeper.any():
            self.end()
        suggestions = self.policy.run()
        answer: Any = None
        while True:
            try:
                suggestion = suggestions.send(answer)
            except StopIteration:
                return
            answer = None
            kept_on = (
                self.keeper.kept_on(suggestion.ts) if suggestion.op == "drop" else None
            )
            if kept_on:
                others = (suggestion.candidates or suggestion.ts.who_has) - kept_on
                if not others:
                    continue
                suggestion = Suggestion("drop", suggestion.ts, others)
            answer = yield suggestion

    def end(self) -> None:
        """Put the other policy back, unless a third one has replaced this one."""
        if self in self.manager.policies:
            self.manager.policies.discard(self)
            self.manager.add_policy(self.policy)


def begin(scheduler: Any, keeper: ReplicaKeeper) -> None:
    """Replace each policy of the manager that drops replicas, once per keeper."""
    manager = scheduler.extensions.get("amm")
    for policy in [] if manager is None else list(manager.policies):
        if isinstance(policy, ReduceReplicas) and not _replaces(policy, keeper):
            manager.policies.discard(policy)
            manager.add_policy(KeepReplicas(policy, keeper))


def _replaces(policy: Any, keeper: ReplicaKeeper) -> bool:
    while policy is not None:
        if getattr(policy, "keeper", None) is keeper:
            return True
        policy = getattr(policy, "policy", None)
    return False


def end(scheduler: Any, keeper: ReplicaKeeper) -> None:
    """Put back the policies that the keeper's policies have replaced."""
    manager = scheduler.extensions.get("amm")
    for policy in [] if manager is None else list(manager.policies):
        if getattr(policy, "keeper", None) is keeper:
            policy.end()


# --- prepared keys --------------------------------------------------------------------


class PreparedKeys:
    """The worker on which each prepared key stays while the scheduler knows the key.

    Entries have the worker's id, which survives a restart. An entry ends when the
    scheduler forgets the task of its key.
    """

    def __init__(self, scheduler: Any):
        self.scheduler = scheduler
        #: by task: the id of its object, and of its worker
        self.workers: KeyMap[tuple[int, Any]] = KeyMap(WeakKeyDictionary)

    def begin(self) -> None:
        begin(self.scheduler, self)

    def any(self) -> bool:
        return bool(self.workers)

    def put(self, key: Any, address: str) -> None:
        """Keep a key on the worker that holds it, or to which it will be moved."""
        ts, ws = self.scheduler.tasks.get(key), self.scheduler.workers.get(address)
        if ts is None or ws is None:
            return
        known = self.workers.get(ts)
        # An earlier task of the same name is an equal key. Other entries stay, because
        # Python copies a large dictionary after many removals.
        if known is not None and known[0] != id(ts):
            del self.workers[ts]
        self.workers[ts] = id(ts), id_of(ws)

    def kept_on(self, task: Any) -> set[Any]:
        """The prepared worker, if it holds the key and will keep it.

        While Dask's ``rebalance`` runs, all replicas are kept, because it drops
        replicas without a policy.
        """
        known = self.workers.get(task)
        if known is None:
            return set()
        _, home = known
        if self.scheduler._replica_lock._count:
            return set(task.who_has)
        return {ws for ws in task.who_has if ws.status in KEEPING and id_of(ws) == home}


# --- keys with a prefix ---------------------------------------------------------------


async def keep(dask_scheduler: Any, name: str, owner: str, prefix: str) -> None:
    """Keep replicas of keys with a prefix, also of later keys.

    :func:`stop_keeping` or the end of the client ends this.
    """
    plugin = dask_scheduler.plugins.get(NAME)
    if plugin is None:
        plugin = KeptPrefixes(dask_scheduler)
        dask_scheduler.add_plugin(plugin, name=NAME)
        begin(dask_scheduler, plugin)
    plugin.prefixes[name] = (owner, prefix)


async def stop_keeping(dask_scheduler: Any, name: str) -> None:
    """Stop keeping these replicas, and restore the manager's policy."""
    plugin = dask_scheduler.plugins.get(NAME)
    if plugin is not None:
        plugin.stop_keeping([name])


class KeptPrefixes(SchedulerPlugin):
    """The prefixes that are kept for clients."""

    name = NAME

    def __init__(self, scheduler: Any):
        self.scheduler = scheduler
        self.prefixes: dict[str, tuple[str, str]] = {}  # by name: owner, prefix

    def any(self) -> bool:
        return bool(self.prefixes)

    def kept_on(self, task: Any) -> set[Any]:
        prefixes = tuple(prefix for _, prefix in self.prefixes.values())
        return set(task.who_has) if str(task.key).startswith(prefixes) else set()

    def stop_keeping(self, names: Iterable[str]) -> None:
        for name in names:
            self.prefixes.pop(name, None)
        if self.prefixes:
            return
        end(self.scheduler, self)
        if self.scheduler.plugins.get(NAME) is self:
            self.scheduler.remove_plugin(name=NAME)

    def remove_client(self, scheduler: Any, client: str) -> None:
        """Stop keeping the prefixes of a client that disconnects."""
        self.stop_keeping(
            [n for n, (owner, _) in self.prefixes.items() if owner == client]
        )
