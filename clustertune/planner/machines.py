"""What the hosts of a cluster offer, from what their workers know of themselves.

Workers with the same ``host`` share its CPUs and its memory; functions here that take
``workers`` mean the workers of one host. CPUs are limited by affinity (which CPUs a
process may use) and by cgroup quotas (how much CPU time all processes of a cgroup may
use together). Cgroups are nested, and a quota holds for everything below it.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from clustertune.core.model import (
    Details,
    Finding,
    Severity,
    Snapshot,
    Unknown,
    View,
    WorkerFacts,
    WorkerSnapshot,
)
from clustertune.core.wording import printable, workers_text

Workers = tuple[WorkerSnapshot, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class CpuLimit:
    """CPUs that some workers of a host share."""

    workers: Workers
    cpus: float

    @property
    def threads(self) -> int:
        """Threads of these workers."""
        return sum(w.nthreads for w in self.workers)

    @property
    def load(self) -> float:
        """Threads per CPU; a part of a CPU counts as one, as Dask rounds it."""
        return self.threads / max(1, math.ceil(self.cpus))


@dataclass(frozen=True, slots=True, kw_only=True)
class HostCpus:
    """CPUs of one host beside the threads of its workers."""

    workers: Workers
    usable: float  # that all of them may use together
    busy: float  # of these, how many their threads can keep busy
    tightest: CpuLimit  # the one in which most threads share a CPU


def by_host(workers: Iterable[WorkerSnapshot]) -> Mapping[str, Workers]:
    """Group workers by their host, in the order given."""
    hosts: dict[str, list[WorkerSnapshot]] = {}
    for worker in workers:
        hosts.setdefault(worker.host, []).append(worker)
    return {host: tuple(group) for host, group in hosts.items()}


def unknown_findings(
    what: str, facts: Iterable[tuple[WorkerSnapshot, object]]
) -> Iterator[Finding]:
    """Say of which workers ``what`` is unknown: one finding for each reason."""
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
    """The workers that said more when they were asked, each with what it said."""
    return [
        (worker, worker.details)
        for worker in view.now.workers
        if isinstance(worker.details, Details)
    ]


def with_scheduler(host: str, snapshot: Snapshot) -> bool:
    """Whether the scheduler, and mostly the client too, runs on this host."""
    if host in ("::1", "localhost") or host.startswith("127."):
        return True
    place = snapshot.scheduler.rpartition("://")[2].lstrip("[")
    return place.startswith((f"{host}:", f"{host}]", f"{host}/"))


def host_cpus(workers: Workers) -> HostCpus | Unknown:
    """Compare the CPUs that these workers may use with their threads."""
    facts = _facts(workers)
    if isinstance(facts, Unknown):
        return facts
    most = [len(f.affinity) for f in facts]
    threads = [min(w.nthreads, n) for w, n in zip(workers, most, strict=True)]
    return HostCpus(
        workers=workers,
        usable=_granted(facts, most),
        busy=_granted(facts, threads),
        tightest=max(_limits(workers, facts), key=lambda limit: limit.load),
    )


def host_memory(workers: Workers) -> int | Unknown:
    """Bytes that a process on this host could use at most."""
    facts = _facts(workers)
    if isinstance(facts, Unknown):
        return facts
    return max(f.host_memory for f in facts)


def _facts(workers: Workers) -> Sequence[WorkerFacts] | Unknown:
    """The facts of all these workers, or why those of one are unknown."""
    known: list[WorkerFacts] = []
    for worker in workers:
        if isinstance(worker.facts, Unknown):
            return worker.facts
        known.append(worker.facts)
    return known


def _limits(workers: Workers, facts: Sequence[WorkerFacts]) -> Iterator[CpuLimit]:
    """Every limit on CPUs that holds for some of these workers, or for all."""
    for cpus in {f.affinity for f in facts} | {_distinct(facts)}:
        inside = zip(workers, facts, strict=True)
        bound = tuple(w for w, f in inside if f.affinity <= cpus)
        yield CpuLimit(workers=bound, cpus=len(cpus))
    for members, quota in _quotas(facts):
        yield CpuLimit(workers=tuple(workers[i] for i in members), cpus=quota)


def _quotas(facts: Sequence[WorkerFacts]) -> list[tuple[list[int], float]]:
    """Which workers share each quota, inner cgroups before those around them."""
    members: dict[str, list[int]] = {}
    cpus: dict[str, float] = {}
    for i, fact in enumerate(facts):
        for cgroup, quota in fact.quotas:
            members.setdefault(cgroup, []).append(i)
            cpus[cgroup] = min(quota, cpus.get(cgroup, math.inf))
    inner_first = sorted(members, key=lambda c: len(members[c]))
    return [(members[c], cpus[c]) for c in inner_first]


def _granted(facts: Sequence[WorkerFacts], wanted: Sequence[float]) -> float:
    """How many of the wanted CPUs quotas and affinity let these workers have."""
    group = list(range(len(facts)))  # of each worker
    granted = {i: float(n) for i, n in enumerate(wanted)}  # to each group
    for members, quota in _quotas(facts):
        merged = {group[i] for i in members}
        granted[min(merged)] = min(quota, sum(granted.pop(g) for g in merged))
        group = [min(merged) if g in merged else g for g in group]
    return min(float(len(_distinct(facts))), sum(granted.values()))


def _distinct(facts: Sequence[WorkerFacts]) -> frozenset[int]:
    """CPUs on which at least one of these workers may run."""
    return frozenset[int]().union(*(f.affinity for f in facts))
