"""Compute the CPUs and memory of hosts from what their workers report (pure).

Workers with the same ``host`` share its CPUs and memory. Functions that take
``workers`` expect the workers of one host. Affinity limits which CPUs a process may
use. A cgroup quota limits the CPU time of all processes in a cgroup and below it.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from shlex import quote

from clustertune.core.model import (
    Details,
    Finding,
    Severity,
    Snapshot,
    Unknown,
    View,
    WorkerFacts,
    WorkerSize,
    WorkerSnapshot,
    is_loopback,
)
from clustertune.core.wording import names_text, plural, printable, workers_text

Workers = tuple[WorkerSnapshot, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class CpuLimit:
    """A number of CPUs that some workers of a host share."""

    workers: Workers
    cpus: float

    @property
    def threads(self) -> int:
        """Threads of these workers."""
        return sum(w.nthreads for w in self.workers)

    @property
    def load(self) -> float:
        """Threads per CPU; a fraction of a CPU counts as one, as in Dask."""
        return self.threads / max(1, math.ceil(self.cpus))


@dataclass(frozen=True, slots=True, kw_only=True)
class HostCpus:
    """CPUs of one host, and how many its workers keep busy."""

    workers: Workers
    usable: float  # CPUs that all workers may use together
    busy: float  # CPUs that their threads can keep busy
    tightest: CpuLimit  # the limit with most threads per CPU


def without_parking(snapshot: Snapshot) -> Workers:
    """Return the workers that do more than keep the keys of a restart."""
    return tuple(w for w in snapshot.workers if not w.parking)


def by_host(workers: Iterable[WorkerSnapshot]) -> Mapping[str, Workers]:
    """Group workers by their host, in the order given."""
    hosts: dict[str, list[WorkerSnapshot]] = {}
    for worker in workers:
        hosts.setdefault(worker.host, []).append(worker)
    return {host: tuple(group) for host, group in hosts.items()}


def unknown_findings(
    what: str, facts: Iterable[tuple[WorkerSnapshot, object]]
) -> Iterator[Finding]:
    """Yield one finding for each reason for which ``what`` is unknown."""
    reasons: dict[str, list[str | int]] = {}
    for worker, fact in facts:
        if isinstance(fact, Unknown):
            reasons.setdefault(fact.reason, []).append(worker.id)
    for reason, ids in reasons.items():
        yield Finding(
            severity=Severity.unknown,
            message=f"{what} of {workers_text(ids)} unknown: {printable(reason)}",
            subject=tuple(ids),
        )


def details_of(view: View) -> list[tuple[WorkerSnapshot, Details]]:
    """Return the workers that answered a diagnosis, with their details."""
    return [
        (worker, worker.details)
        for worker in view.now.workers
        if isinstance(worker.details, Details)
    ]


def with_scheduler(workers: Workers, snapshot: Snapshot) -> bool:
    """Return whether the scheduler runs on their host, usually with the client."""
    hosts = {_host(w.address) for w in workers}
    return _host(snapshot.scheduler) in hosts or any(map(is_loopback, hosts))


def _host(address: str) -> str:
    """Return the host of an address like ``tls://[::1]:8786``."""
    place = address.rpartition("://")[2]
    return re.split("[]/]|:[0-9]*$", place.lstrip("["))[0]


def start_command(
    snapshot: Snapshot,
    n_workers: int,
    size: tuple[int, int] | None = None,
    replaced: Workers = (),
) -> str:
    """Return the `dask worker` line that starts workers, by default like the others.

    ``size`` has threads and memory limit (0: none). ``replaced`` are workers whose
    resources the new one gets. Without ``size``, options in which the
    existing workers differ are left out. Without a nanny, the line starts one worker,
    because `dask worker` refuses `--nworkers` then.
    """
    there = [w for w in snapshot.workers if w.is_counted]
    sizes = [size] if size else [(w.nthreads, w.memory_limit) for w in there]
    words = ["dask worker", quote(printable(snapshot.scheduler))]
    if there and all(w.nanny is None for w in there):
        words.append("--no-nanny")
    elif n_workers > 1:
        words.append(f"--nworkers {n_workers}")
    if len(threads := {nthreads for nthreads, _ in sizes}) == 1:
        words.append(f"--nthreads {threads.pop()}")
    if len(limits := {limit for _, limit in sizes}) == 1:
        mib, rest = divmod(limit := limits.pop(), 2**20)
        words.append(f"--memory-limit {limit if rest or not mib else f'{mib}MiB'}")
    found = {_resources(replaced)} if replaced else {_resources([w]) for w in there}
    if len(found) == 1 and (resources := found.pop()):
        words.append(f"--resources {quote(printable(resources))}")
    return " ".join(words)


def _resources(workers: Sequence[WorkerSnapshot]) -> str:
    """Return the sums of the workers' resources, as an option of `dask worker`."""
    sums: dict[str, float] = {}
    for worker in workers:
        setup = {} if isinstance(worker.facts, Unknown) else worker.facts.setup
        for item in filter(None, setup.get("resources", "").split(", ")):
            name, _, value = item.rpartition("=")
            sums[name] = sums.get(name, 0.0) + float(value)
    return ",".join(f"{name}={value:g}" for name, value in sums.items())


def times_to_run(line: str, n_workers: int) -> str:
    """Return how often to run a line of :func:`start_command`; empty: once."""
    return f" {n_workers} times" if n_workers > 1 and "--nworkers" not in line else ""


def start_by_hand(snapshot: Snapshot, missing: int) -> str:
    """Return why an address alone starts no workers, and the lines that start them."""
    line = start_command(snapshot, missing)
    how = times_to_run(line, missing)
    if snapshot.scheduler.startswith("tls:"):
        how += " with the --tls-... options of the other workers"
    wanted = sum(w.is_counted for w in snapshot.workers) + missing
    return (
        "this client has only the scheduler's address and no cluster object, so it "
        "cannot start workers. Where the cluster was made, clustertune.scale("
        f"cluster.get_client(), {wanted}) can. To start the missing "
        f"{plural(missing, 'worker')}, run "
        f"this{how} on a host that reaches the scheduler: {line}"
    )


def host_cpus(workers: Workers) -> HostCpus | Unknown:
    """Compare the CPUs that these workers may use with their threads."""
    facts = _facts(workers)
    if isinstance(facts, Unknown):
        return facts
    cpus = [len(f.affinity) for f in facts]
    threads = [min(w.nthreads, n) for w, n in zip(workers, cpus, strict=True)]
    quotas = [f.quotas for f in facts]
    return HostCpus(
        workers=workers,
        usable=min(len(_distinct(facts)), _granted(quotas, cpus)),
        busy=min(len(_distinct(facts)), _granted(quotas, threads)),
        tightest=max(_limits(workers, facts), key=lambda limit: limit.load),
    )


def host_memory(workers: Workers) -> int | Unknown:
    """Return the maximum bytes that these workers can use together."""
    facts = _facts(workers)
    if isinstance(facts, Unknown):
        return facts
    limits = [f.memory_levels for f in facts]
    return int(_granted(limits, [f.host_memory for f in facts]))


# --- one worker in place of several ---------------------------------------------------


def shared_hosts(
    snapshot: Snapshot, ids: Collection[str | int] | None = None
) -> tuple[Workers, ...]:
    """Return the workers of each host that has several of these workers."""
    there = [w for w in snapshot.workers if w.is_counted]
    some = [w for w in there if ids is None or w.id in ids]
    return tuple(group for group in by_host(some).values() if len(group) > 1)


def merged_size(workers: Workers) -> WorkerSize | None:
    """Return the size of one worker in place of these; None: their sizes differ.

    Dask limits the memory limit of a worker to the memory of its host. Workers without
    a limit stay without one. An interrupted merge has left one worker with the merged
    size; the others are equal.
    """
    *others, largest = sorted((w.nthreads, w.memory_limit) for w in workers)
    (nthreads, limit), several = others[0], len(workers)
    if set(others) != {others[0]}:
        return None
    if largest == others[0]:
        limit = _possible_limit(workers, several * limit)
        return WorkerSize(nthreads=several * nthreads, memory_limit=limit or None)
    times = largest[0] / nthreads
    if times < several or largest[1] != _possible_limit(workers, times * limit):
        return None
    return WorkerSize(nthreads=largest[0], memory_limit=largest[1] or None)


def _possible_limit(workers: Workers, limit: float) -> int:
    """Return the memory limit that Dask gives to one worker on this host."""
    memory = host_memory(workers)
    return int(limit if isinstance(memory, Unknown) else min(limit, memory))


def merge_obstacle(workers: Workers, snapshot: Snapshot) -> str | None:
    """Return why one worker cannot replace these workers of a host, with a fix."""
    nthreads = sum(w.nthreads for w in workers)
    limit = _possible_limit(workers, sum(w.memory_limit for w in workers))
    who = workers_text([w.id for w in workers])
    if snapshot.can_merge is not None:
        line = snapshot.can_merge.format(
            nthreads=nthreads, memory_limit=f"{limit // 2**20} MiB"
        )
        return f"{who}: {line}"
    reason = difference(workers)
    if snapshot.adaptive is not None:
        reason = "adaptive scaling would start workers of the old size"
    elif not all(w.nanny for w in workers):
        reason = "a worker without a nanny cannot be restarted with another size"
    cpus = host_cpus(workers)
    useful = nthreads
    if not isinstance(cpus, Unknown):
        useful = min(nthreads, max(1, math.floor(cpus.usable)))
    return reason and (
        f"{who}: {reason}; start one worker there instead: "
        f"`{start_command(snapshot, 1, (useful, limit), workers)}`"
    )


def difference(workers: Workers) -> str | None:
    """Return why these workers cannot replace each other."""
    facts = _facts(workers)
    if isinstance(facts, Unknown):
        return f"their settings are unknown: {printable(facts.reason)}"
    setups = [f.setup for f in facts]
    names = sorted({name for setup in setups for name in setup})
    differing = [n for n in names if len({setup.get(n) for setup in setups}) > 1]
    if differing:
        return f"they have different {names_text(differing)}"
    if "resources" in names:
        return f"one worker would not add up their {printable(setups[0]['resources'])}"
    reason = None
    if len({(f.affinity, f.quotas, f.host_memory) for f in facts}) > 1:
        reason = "they may use different CPUs or memory"
    elif merged_size(workers) is None:
        reason = "they have different threads or memory limits"
    return reason


def threads_per_host(workers: Iterable[WorkerSnapshot]) -> int | None:
    """Return the threads of a training task if it may use those of a whole host.

    None means that it may not: a host has one worker, workers or hosts differ, or its
    CPUs are unknown or too few.
    """
    hosts = list(by_host(workers).values())
    shapes = {(len(group), w.nthreads) for group in hosts for w in group}
    if len(shapes) != 1:
        return None
    ((n_workers, nthreads),) = shapes
    if n_workers == 1 or any(difference(group) for group in hosts):
        return None
    threads = float(n_workers * nthreads)
    for group in hosts:
        cpus = host_cpus(group)
        threads = 0.0 if isinstance(cpus, Unknown) else min(threads, cpus.usable)
    return int(threads) if threads >= nthreads + 1 else None


def _facts(workers: Workers) -> Sequence[WorkerFacts] | Unknown:
    """Return the facts of all workers, or why those of one are unknown."""
    unknown = next((w.facts for w in workers if isinstance(w.facts, Unknown)), None)
    return unknown or [w.facts for w in workers if not isinstance(w.facts, Unknown)]


def _limits(workers: Workers, facts: Sequence[WorkerFacts]) -> Iterator[CpuLimit]:
    """Yield every limit on CPUs that applies to some of these workers."""
    for cpus in {f.affinity for f in facts} | {_distinct(facts)}:
        pairs = zip(workers, facts, strict=True)
        bound = tuple(w for w, f in pairs if f.affinity <= cpus)
        yield CpuLimit(workers=bound, cpus=len(cpus))
    for members, quota in _levels([f.quotas for f in facts]):
        yield CpuLimit(workers=tuple(workers[i] for i in members), cpus=quota)


#: (cgroup, limit) of each level that limits a worker
Levels = Sequence[tuple[str, float]]


def _levels(limits: Sequence[Levels]) -> list[tuple[list[int], float]]:
    """Return (workers, limit) for each cgroup, inner cgroups first."""
    members: dict[str, list[int]] = {}
    most: dict[str, float] = {}
    for i, levels in enumerate(limits):
        for cgroup, limit in levels:
            members.setdefault(cgroup, []).append(i)
            most[cgroup] = min(limit, most.get(cgroup, math.inf))
    inner_first = sorted(members, key=lambda c: len(members[c]))
    return [(members[c], most[c]) for c in inner_first]


def _granted(limits: Sequence[Levels], wanted: Sequence[float]) -> float:
    """Return how much of the wanted CPUs or memory the limits of cgroups allow."""
    group = list(range(len(limits)))  # group of each worker
    granted = {i: float(n) for i, n in enumerate(wanted)}  # of each group
    for members, limit in _levels(limits):
        merged = {group[i] for i in members}
        granted[min(merged)] = min(limit, sum(granted.pop(g) for g in merged))
        group = [min(merged) if g in merged else g for g in group]
    return sum(granted.values())


def _distinct(facts: Sequence[WorkerFacts]) -> frozenset[int]:
    """Return the CPUs on which at least one of these workers may run."""
    return frozenset[int]().union(*(f.affinity for f in facts))


# --- names of hosts -------------------------------------------------------------------


def with_host_names(workers: Sequence[WorkerSnapshot]) -> tuple[WorkerSnapshot, ...]:
    """Give the workers of a machine one host, called by its host name if possible.

    A machine may have several addresses, and several containers with names of their
    own. Then, and if another machine has the same name, an address is the name.
    """
    facts = {w.host: w.facts for w in workers if not isinstance(w.facts, Unknown)}
    machines = {address: f.machine or address for address, f in facts.items()}
    first: dict[str, str] = {}  # address of each machine
    names: dict[str, set[str]] = {}
    for w in workers:
        machine = machines.get(w.host, w.host)
        first.setdefault(machine, w.host)
        own = w.facts.hostname if not isinstance(w.facts, Unknown) else ""
        names.setdefault(machine, set()).update({own} - {""})
    found = {m: next(iter(some)) for m, some in names.items() if len(some) == 1}
    times = Counter(found.values())
    hosts = {}
    for machine, host in first.items():
        name = found.get(machine, "")
        hosts[machine] = name if times[name] == 1 and not is_loopback(host) else host
    return tuple(replace(w, host=hosts[machines.get(w.host, w.host)]) for w in workers)
