"""Copies of data on many workers that the scheduler's memory manager leaves alone.

The default policy of the memory manager deletes all copies of a key but one, or as many
as tasks wait for it. Here its suggestions to drop keys that begin with a prefix are
left out, and all others go on. Ends with the call that asked for it, or with its
client.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from distributed.active_memory_manager import (
    ActiveMemoryManagerPolicy,
    ReduceReplicas,
    SuggestionGenerator,
)
from distributed.diagnostics.plugin import SchedulerPlugin

NAME = "clustertune-copies"


async def keep(dask_scheduler: Any, name: str, owner: str, prefix: str) -> None:
    """Have copies of keys that begin so kept, until :func:`let_go` or without a client.

    Also of keys that come later.
    """
    plugin = dask_scheduler.plugins.get(NAME)
    if plugin is None:
        plugin = Copies(dask_scheduler)
        dask_scheduler.add_plugin(plugin, name=NAME)
        plugin.begin()
    plugin.kept[name] = (owner, prefix)


async def let_go(dask_scheduler: Any, name: str) -> None:
    """Have the copies treated as all others; the policy is as it was before."""
    plugin = dask_scheduler.plugins.get(NAME)
    if plugin is not None:
        plugin.let_go([name])


class Copies(SchedulerPlugin):
    """Which keys are kept for whom, and the policies that stood there before."""

    name = NAME

    def __init__(self, scheduler: Any):
        self.scheduler = scheduler
        self.kept: dict[str, tuple[str, str]] = {}  # by name: owner, prefix
        self.replaced: list[tuple[Any, Any]] = []  # what stood there, and ours

    def begin(self) -> None:
        """Stand between the memory manager and what deletes copies."""
        manager = self.scheduler.extensions.get("amm")
        if manager is None:
            return
        for policy in [p for p in manager.policies if isinstance(p, ReduceReplicas)]:
            ours = Sparing(policy, self)
            manager.policies.discard(policy)
            manager.add_policy(ours)
            self.replaced.append((policy, ours))

    def let_go(self, names: Iterable[str]) -> None:
        for name in names:
            self.kept.pop(name, None)
        if self.kept:
            return
        for policy, ours in self.replaced:
            if ours in ours.manager.policies:
                ours.manager.policies.discard(ours)
                ours.manager.add_policy(policy)
        self.replaced.clear()
        if self.scheduler.plugins.get(NAME) is self:
            self.scheduler.remove_plugin(name=NAME)

    def remove_client(self, scheduler: Any, client: str) -> None:
        """Forget what a client had kept that is gone."""
        self.let_go([n for n, (owner, _) in self.kept.items() if owner == client])


class Sparing(ActiveMemoryManagerPolicy):
    """What another policy suggests, but for dropping what is kept."""

    def __init__(self, policy: Any, copies: Copies):
        self.policy = policy
        self.copies = copies

    def run(self) -> SuggestionGenerator:
        kept = tuple(prefix for _, prefix in self.copies.kept.values())
        suggestions = self.policy.run()
        answer: Any = None
        while True:
            try:
                suggestion = suggestions.send(answer)
            except StopIteration:
                return
            spared = suggestion.op == "drop" and str(suggestion.ts.key).startswith(kept)
            answer = None if spared else (yield suggestion)
