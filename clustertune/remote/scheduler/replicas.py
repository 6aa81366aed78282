"""Replicas that Dask's memory manager keeps.

The default policy of the memory manager, ``ReduceReplicas``, drops all replicas of a
key but one, or as many as tasks wait for it. It drops those on the fullest workers. A
policy in its place passes its suggestions on, except for replicas that are kept: all
replicas of keys with a prefix (:func:`keep`, until the call ends or its client is
gone), and the replica of each prepared key on the worker for which it was prepared
(:class:`Homes`). Other replicas of these keys are dropped as before.
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

from clustertune.remote.scheduler.state import id_of

NAME = "clustertune-copies"
KEEPING = (Status.running, Status.paused)  # of workers that keep prepared keys


class Keeper(Protocol):
    """Decides which replicas are kept."""

    def kept(self, task: Any) -> set[Any]:
        """The workers whose replica of a task in memory is kept."""

    def any(self) -> bool:
        """Whether anything is left to keep."""


class KeepReplicas(ReduceReplicas):
    """Passes on the suggestions of another policy, but drops no kept replicas."""

    def __init__(self, policy: Any, keeper: Keeper):
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
            kept = self.keeper.kept(suggestion.ts) if suggestion.op == "drop" else None
            if kept:
                others = (suggestion.candidates or suggestion.ts.who_has) - kept
                if not others:
                    continue
                suggestion = Suggestion("drop", suggestion.ts, others)
            answer = yield suggestion

    def end(self) -> None:
        """Put the other policy back, unless a third one has replaced this one."""
        if self in self.manager.policies:
            self.manager.policies.discard(self)
            self.manager.add_policy(self.policy)


def begin(scheduler: Any, keeper: Keeper) -> None:
    """Replace each policy of the manager that drops replicas, once per keeper."""
    manager = scheduler.extensions.get("amm")
    for policy in [] if manager is None else list(manager.policies):
        if isinstance(policy, ReduceReplicas) and not _stands_for(policy, keeper):
            manager.policies.discard(policy)
            manager.add_policy(KeepReplicas(policy, keeper))


def _stands_for(policy: Any, keeper: Keeper) -> bool:
    while policy is not None:
        if getattr(policy, "keeper", None) is keeper:
            return True
        policy = getattr(policy, "policy", None)
    return False


def end(scheduler: Any, keeper: Keeper) -> None:
    """Put back the policies that the keeper's policies have replaced."""
    manager = scheduler.extensions.get("amm")
    for policy in [] if manager is None else list(manager.policies):
        if getattr(policy, "keeper", None) is keeper:
            policy.end()


# --- prepared keys --------------------------------------------------------------------


class Homes:
    """The worker on which each prepared key stays while the scheduler knows the key.

    A worker is identified by its id, which survives a restart. A key is identified by
    its task: once the scheduler forgets the task, its entry is gone.
    """

    def __init__(self, scheduler: Any):
        self.scheduler = scheduler
        self.homes: WeakKeyDictionary[Any, Any] = WeakKeyDictionary()

    def begin(self) -> None:
        begin(self.scheduler, self)

    def any(self) -> bool:
        return bool(self.homes)

    def put(self, key: Any, address: str) -> None:
        """Keep a key on the worker that holds it, or to which it will be moved."""
        ts, ws = self.scheduler.tasks.get(key), self.scheduler.workers.get(address)
        if ts is None or ws is None:
            return
        self.homes.pop(ts, None)  # an earlier task of the same name is an equal key
        self.homes[ts] = id_of(ws)

    def kept(self, task: Any) -> set[Any]:
        """The prepared worker, if it holds the key and will keep it.

        Dask's ``rebalance`` drops a replica after it has made another, and asks no
        policy: while it runs, all replicas are kept.
        """
        home = self.homes.get(task)
        if home is None:
            return set()
        if self.scheduler._replica_lock._count:
            return set(task.who_has)
        return {ws for ws in task.who_has if ws.status in KEEPING and id_of(ws) == home}


# --- keys with a prefix ---------------------------------------------------------------


async def keep(dask_scheduler: Any, name: str, owner: str, prefix: str) -> None:
    """Keep replicas of keys with a prefix until :func:`let_go`, or the client is gone.

    Keys that come later are kept as well.
    """
    plugin = dask_scheduler.plugins.get(NAME)
    if plugin is None:
        plugin = KeptPrefixes(dask_scheduler)
        dask_scheduler.add_plugin(plugin, name=NAME)
        begin(dask_scheduler, plugin)
    plugin.prefixes[name] = (owner, prefix)


async def let_go(dask_scheduler: Any, name: str) -> None:
    """Treat the replicas like all others again, and restore the manager's policy."""
    plugin = dask_scheduler.plugins.get(NAME)
    if plugin is not None:
        plugin.let_go([name])


class KeptPrefixes(SchedulerPlugin):
    """The prefixes that are kept for clients."""

    name = NAME

    def __init__(self, scheduler: Any):
        self.scheduler = scheduler
        self.prefixes: dict[str, tuple[str, str]] = {}  # by name: owner, prefix

    def any(self) -> bool:
        return bool(self.prefixes)

    def kept(self, task: Any) -> set[Any]:
        prefixes = tuple(prefix for _, prefix in self.prefixes.values())
        return set(task.who_has) if str(task.key).startswith(prefixes) else set()

    def let_go(self, names: Iterable[str]) -> None:
        for name in names:
            self.prefixes.pop(name, None)
        if self.prefixes:
            return
        end(self.scheduler, self)
        if self.scheduler.plugins.get(NAME) is self:
            self.scheduler.remove_plugin(name=NAME)

    def remove_client(self, scheduler: Any, client: str) -> None:
        """End the prefixes of a client that is gone."""
        self.let_go([n for n, (owner, _) in self.prefixes.items() if owner == client])
