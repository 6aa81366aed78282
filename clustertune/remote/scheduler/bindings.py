"""Where tasks run and which replicas stay: bindings, restrictions, kept replicas.

A binding by annotations outlives its task: if the task is computed again after its
worker was lost, it waits for that worker without an end. Even a task that may run
elsewhere can wait: Dask looks for other workers at the moment in which the task becomes
ready, and if none runs at that moment, it does not look again. Runs on the scheduler.

Dask's policy ``ReduceReplicas`` drops all replicas of a key but one, or as many as
tasks wait for it. It starts with the fullest workers. :class:`KeepReplicas` replaces it
and passes its suggestions on, except for two kinds of replicas:

- all replicas of keys with a prefix (:func:`keep`), until the call ends or its client
  disconnects;
- each prepared key's replica on its prepared worker (:class:`PreparedKeys`).
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import (
    AsyncIterator,
    Collection,
    Container,
    Iterable,
    Iterator,
    Mapping,
    Sequence,
)
from heapq import heappop, heappush
from itertools import islice
from time import time
from types import MappingProxyType
from typing import Any, Protocol
from uuid import uuid4
from weakref import WeakKeyDictionary

from distributed.active_memory_manager import (
    ReduceReplicas,
    Suggestion,
    SuggestionGenerator,
)
from distributed.core import Status
from distributed.diagnostics.plugin import SchedulerPlugin

from clustertune.remote.keys import KeyMap, KeyRange, KeySet, drained, in_turns, unpack
from clustertune.remote.scheduler.state import id_of, is_late, is_parking

# --- bindings -------------------------------------------------------------------------

logger = logging.getLogger(__name__)

TICK = 1.0  # seconds between two looks for tasks that wait for lost workers
MAX_DEPENDENTS = 2000  # dependents of a task that are searched
MAX_TASKS = 5000  # waiting tasks that are looked at
MAX_SHOWN = 20  # unmet requirements that are reported, and names of each

Requirement = tuple[str, tuple[str, ...]]
"""``worker``, ``host`` or ``resources``, and their names."""


class Bindings:
    """Sets of tasks that a plan binds to workers, by name."""

    def __init__(self, scheduler: Any):
        self.scheduler = scheduler
        self.kept: dict[str, KeySet] = {}
        #: tasks that no worker ran when they became ready, and that a plan has bound or
        #: that may run elsewhere; they may have started since
        self.waiting: set[Any] = set()
        self.ending: set[asyncio.Task[int]] = set()

    def transition(self, key: Any, finish: str) -> None:
        """Record a task that begins to wait for a worker."""
        if finish == "no-worker":
            self._note(self.scheduler.tasks[key])

    def _note(self, task: Any) -> None:
        bound = any(task.key in keys for keys in self.kept.values())
        if bound or task.loose_restrictions:
            self.waiting.discard(task)  # an earlier task may have the same key
            self.waiting.add(task)

    async def unknown(self, runs: Sequence[KeyRange]) -> KeySet:
        """Return the packed keys that the scheduler does not have.

        A graph binds only new tasks. Known tasks, and their bindings, belong to an
        earlier graph.
        """
        tasks = self.scheduler.tasks
        return await KeySet.of(key for key in unpack(runs) if key not in tasks)

    def keep(self, keys: KeySet) -> str:
        """Record keys of tasks before they are bound; return the name of the set."""
        name = uuid4().hex
        self.kept[name] = keys
        return name

    async def free_stuck(self, name: str) -> int:
        """Unbind tasks whose worker has left or is paused; return their number.

        A paused worker keeps its tasks and does not start them, even tasks that are not
        bound: Dask takes no short tasks from it. The tasks that ours depend on count as
        well.
        """
        ours = self.kept.get(name, KeySet())
        stuck = [ts.key async for ts in self._still_waiting() if ts.key in ours]
        paused = (
            ts
            for ws in list(self.scheduler.workers.values())
            if ws.status.name != "running"
            for ts in list(ws.processing)
            if ts not in ws.executing
        )
        stuck += [ts.key async for ts in in_turns(paused) if _leads_to(ts, ours)]
        return await self._unbind(stuck)

    async def _still_waiting(self) -> AsyncIterator[Any]:
        """Yield the recorded tasks that still wait, and forget the others."""
        async for ts in in_turns(list(self.waiting)):
            if ts in self.scheduler.unrunnable:
                yield ts
            else:
                self.waiting.discard(ts)

    async def end(self, name: str) -> None:
        """Unbind all tasks of a set."""
        await self._unbind(drained(self.kept.pop(name, KeySet())))

    def end_all(self) -> None:
        """Unbind all tasks of all sets, in tasks of the event loop."""
        for keys in self.kept.values():
            task = asyncio.ensure_future(self._unbind(drained(keys)))
            self.ending.add(task)
            task.add_done_callback(self.ending.discard)
        self.kept.clear()

    async def watch(self) -> None:
        """Start waiting tasks that may run elsewhere, every second until cancelled."""
        # tasks that began to wait before the plugin was installed
        async for ts in in_turns(list(self.scheduler.unrunnable)):
            self._note(ts)
        while True:
            try:
                await self.wake()
            except Exception:
                logger.exception("clustertune could not start waiting tasks elsewhere")
            await asyncio.sleep(TICK)

    async def wake(self) -> None:
        """Start tasks that may run elsewhere and wait for workers that are gone."""
        if not self.scheduler.running:
            return
        workers = self.scheduler.workers.keys()
        lost = [
            ts
            async for ts in self._still_waiting()
            if ts.loose_restrictions
            and ts.worker_restrictions
            and workers.isdisjoint(ts.worker_restrictions)
        ]
        await start_waiting(self.scheduler, lost)

    async def _unbind(self, keys: Iterable[Any]) -> int:
        """Undo bindings; return how many tasks waited because of them."""
        count = 0
        async for key in in_turns(keys):
            ts = self.scheduler.tasks.get(key)
            if ts is None:
                continue
            if ts.worker_restrictions:
                unbind(ts)
            if ts in self.scheduler.unrunnable:
                state = "processing"
            elif ts.processing_on is not None and (
                ts.processing_on.status.name != "running"
            ):
                state = "released"  # a wanted task then goes to another worker
            else:
                continue
            self.scheduler.transitions({key: state}, f"clustertune-{time()}")
            count += 1
        return count


async def bound_to(scheduler: Any, addresses: Iterable[str]) -> dict[str, set[Any]]:
    """Return the keys of the tasks that are bound to workers, by their addresses."""
    bound: dict[str, set[Any]] = {address: set() for address in addresses}
    async for ts in in_turns(list(scheduler.tasks.values())):
        for address in bound.keys() & (ts.worker_restrictions or ()):
            bound[address].add(ts.key)
    return bound


async def follow(
    scheduler: Any, keys: Collection[Any], former: set[str], address: str
) -> None:
    """Bind tasks to a worker's new address that are bound to its former ones.

    Otherwise its lost keys could never be computed again. ``keys`` are tasks that were
    bound to the worker before its restart. Other tasks that are bound to a former
    address mean this worker only if no other worker has that address by now.
    """
    if not former:
        return
    workers = scheduler.workers
    # a former process may still be registered, with the name of a parking worker
    free = {a for a in former if a not in workers or is_parking(workers[a].name)}
    waiting = []
    async for ts in in_turns(list(scheduler.tasks.values())):
        bound = ts.worker_restrictions
        gone = former if ts.key in keys else free
        if bound and not gone.isdisjoint(bound):
            ts.worker_restrictions = (bound - gone) | {address}
            waiting.append(ts)
    await start_waiting(scheduler, waiting)


async def start_waiting(scheduler: Any, tasks: Iterable[Any]) -> None:
    """Start the tasks that wait for a worker, in the order of their priorities."""
    # a heap, because a sort of many tasks would take one long turn
    order: list[tuple[Any, int, Any]] = []
    async for number, ts in in_turns(enumerate(tasks)):
        heappush(order, (ts.priority, number, ts))
    async for ts in in_turns(heappop(order)[-1] for _ in range(len(order))):
        if ts in scheduler.unrunnable:
            scheduler.transitions({ts.key: "processing"}, f"clustertune-{time()}")


def unbind(task: Any) -> None:
    """Allow a task to run on any worker."""
    task.worker_restrictions = None
    task.loose_restrictions = False
    task.annotations = {
        k: v
        for k, v in (task.annotations or {}).items()
        if k not in ("workers", "allow_other_workers")
    }


def _leads_to(task: Any, keys: Container[Any]) -> bool:
    """Whether a task is one of these tasks or one of their dependencies."""
    seen, todo = {task}, [task]
    while todo and len(seen) <= MAX_DEPENDENTS:
        ts = todo.pop()
        if ts.key in keys:
            return True
        new = {d for d in ts.waiters or () if d not in seen}
        seen |= new
        todo += new
    return False


# --- unmet requirements ---------------------------------------------------------------
#
# Dask lets tasks wait without an end for a lost worker, a host or resources, and logs
# nothing. Tasks that may run on other workers as well do not count, nor do tasks of
# paused workers.


async def unmet_summary(scheduler: Any) -> list[list[Any]]:
    """Return unmet restrictions of waiting tasks: kind, names, number of tasks."""
    return await _unmet(scheduler, list(islice(scheduler.unrunnable, MAX_TASKS)))


async def unmet_of_keys(scheduler: Any, keys: Iterable[Any]) -> list[list[Any]]:
    """Return unmet restrictions of keys and of their dependencies."""
    if not scheduler.unrunnable:
        return []
    tasks = scheduler.tasks
    todo = [tasks[key] async for key in in_turns(keys) if key in tasks]
    seen, waiting = set(todo), []
    async for ts in in_turns(todo):  # which grows meanwhile
        new = set(ts.waiting_on or ()) - seen
        seen |= new
        todo += new
        if ts in scheduler.unrunnable:
            waiting.append(ts)
    return await _unmet(scheduler, waiting)


async def _unmet(scheduler: Any, tasks: list[Any]) -> list[list[Any]]:
    alike: Counter[Any] = Counter()  # a million tasks may have the same requirements
    async for ts in in_turns(tasks):
        alike[_limits(ts)] += 1
    unmet: Counter[Requirement] = Counter()
    for limits, count in alike.items():
        requirement = _unmet_requirement(scheduler, *limits)
        if requirement is not None:
            unmet[requirement] += count
        await asyncio.sleep(0)
    return [[kind, list(names), n] for (kind, names), n in unmet.most_common(MAX_SHOWN)]


def _limits(task: Any) -> tuple[frozenset[str], frozenset[str], frozenset[Any]]:
    """Return the restrictions of a task: addresses, hosts and resources."""
    strict = not task.loose_restrictions
    return (
        frozenset((strict and task.worker_restrictions) or ()),
        frozenset((strict and task.host_restrictions) or ()),
        frozenset((task.resource_restrictions or {}).items()),
    )


def _unmet_requirement(
    scheduler: Any, bound: frozenset[str], hosts: frozenset[str], needs: frozenset[Any]
) -> Requirement | None:
    """Return a restriction that no worker meets, whatever its status."""
    workers = scheduler.workers
    there = workers.keys()
    if bound or hosts:
        there = there & {*bound, *_on(scheduler, hosts)}
        if not there:
            names = sorted(map(str, bound | hosts))
            return ("host" if hosts else "worker", tuple(names[:MAX_SHOWN]))
    if needs and not any(_has(workers[a].resources, needs) for a in there):
        names = sorted(f"{name}: {amount}" for name, amount in needs)
        return ("resources", tuple(names[:MAX_SHOWN]))
    return None


def _on(scheduler: Any, hosts: Iterable[Any]) -> Iterator[str]:
    """Return the addresses of the workers on these hosts."""
    for host in hosts:
        found = scheduler.host_info.get(scheduler.coerce_hostname(host))
        yield from () if found is None else found["addresses"]


def _has(there: Any, needs: Iterable[tuple[Any, Any]]) -> bool:
    """Whether a worker has all resources; amounts may be text, as Dask allows."""
    return all(
        isinstance(amount, int | float) and there.get(name, 0) >= amount
        for name, amount in needs
    )


class NoWorker:
    """A closed worker: the target of stolen tasks that any worker may run."""

    address = "clustertune-no-worker"
    status = Status.closed
    has_what: Mapping[Any, Any] = MappingProxyType({})
    occupancy = 0.0


NO_WORKER = NoWorker()


def take_tasks_back(scheduler: Any, worker: Any, requested: set[Any]) -> None:
    """Request the tasks that a worker has not begun, by work stealing.

    The worker confirms that it has released a task, or answers that the task runs. The
    target ``NO_WORKER`` does not exist, so the scheduler assigns a released task to any
    worker. ``requested`` keys are not requested again.
    """
    stealing = scheduler.extensions.get("stealing")
    if stealing is None:
        return
    for ts in list(worker.processing):
        if ts.key not in requested:
            requested.add(ts.key)
            stealing.move_task_request(ts, worker, NO_WORKER)


# --- replicas -------------------------------------------------------------------------

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
        replicas without a policy. So they are if that worker may be frozen.
        """
        known = self.workers.get(task)
        if known is None:
            return set()
        _, home = known
        if self.scheduler._replica_lock._count:
            return set(task.who_has)
        found = {
            ws for ws in task.who_has if ws.status in KEEPING and id_of(ws) == home
        }
        late = any(is_late(ws, self.scheduler) for ws in found)
        return set(task.who_has) if late else found


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
