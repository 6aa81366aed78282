"""Compute the CPUs and memory of hosts from what their workers report (pure).

Workers with the same ``host`` share its CPUs and memory. Functions that take
``workers`` expect the workers of one host. Affinity limits which CPUs a process may
use. A cgroup quota limits the CPU time of all processes in a cgroup and below it.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from shlex import quote

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


def with_scheduler(host: str, snapshot: Snapshot) -> bool:
    """Return whether the scheduler runs on this host, usually with the client."""
    if host in ("::1", "localhost") or host.startswith("127."):
        return True
    place = snapshot.scheduler.rpartition("://")[2].lstrip("[")
    return place.startswith((f"{host}:", f"{host}]", f"{host}/"))


def start_command(snapshot: Snapshot, n_workers: int) -> str:
    """Return the `dask worker` line that starts workers like the existing ones.

    Options in which the existing workers differ are left out. Without a nanny, the line
    starts one worker, because `dask worker` refuses `--nworkers` then.
    """
    there = [w for w in snapshot.workers if w.is_counted]
    words = ["dask worker", quote(printable(snapshot.scheduler))]
    if there and all(w.nanny is None for w in there):
        words.append("--no-nanny")
    elif n_workers > 1:
        words.append(f"--nworkers {n_workers}")
    if len(threads := {w.nthreads for w in there}) == 1:
        words.append(f"--nthreads {threads.pop()}")
    if len(limits := {w.memory_limit for w in there}) == 1:
        mib, rest = divmod(limit := limits.pop(), 2**20)
        words.append(f"--memory-limit {limit if rest or not mib else f'{mib}MiB'}")
    return " ".join(words)


def host_cpus(workers: Workers) -> HostCpus | Unknown:
    """Compare the CPUs that these workers may use with their threads."""
    facts = _facts(workers)
    if isinstance(facts, Unknown):
        return facts
    cpus = [len(f.affinity) for f in facts]
    threads = [min(w.nthreads, n) for w, n in zip(workers, cpus, strict=True)]
    return HostCpus(
        workers=workers,
        usable=_granted(facts, cpus),
        busy=_granted(facts, threads),
        tightest=max(_limits(workers, facts), key=lambda limit: limit.load),
    )


def host_memory(workers: Workers) -> int | Unknown:
    """Return the maximum bytes that a process on this host can use."""
    facts = _facts(workers)
    return facts if isinstance(facts, Unknown) else max(f.host_memory for f in facts)


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
    for members, quota in _quotas(facts):
        yield CpuLimit(workers=tuple(workers[i] for i in members), cpus=quota)


def _quotas(facts: Sequence[WorkerFacts]) -> list[tuple[list[int], float]]:
    """Return (workers, quota) for each cgroup, inner cgroups first."""
    members: dict[str, list[int]] = {}
    cpus: dict[str, float] = {}
    for i, fact in enumerate(facts):
        for cgroup, quota in fact.quotas:
            members.setdefault(cgroup, []).append(i)
            cpus[cgroup] = min(quota, cpus.get(cgroup, math.inf))
    inner_first = sorted(members, key=lambda c: len(members[c]))
    return [(members[c], cpus[c]) for c in inner_first]


def _granted(facts: Sequence[WorkerFacts], wanted: Sequence[float]) -> float:
    """Return how many of the wanted CPUs quotas and affinity allow."""
    group = list(range(len(facts)))  # group of each worker
    granted = {i: float(n) for i, n in enumerate(wanted)}  # CPUs of each group
    for members, quota in _quotas(facts):
        merged = {group[i] for i in members}
        granted[min(merged)] = min(quota, sum(granted.pop(g) for g in merged))
        group = [min(merged) if g in merged else g for g in group]
    return min(float(len(_distinct(facts))), sum(granted.values()))


def _distinct(facts: Sequence[WorkerFacts]) -> frozenset[int]:
    """Return the CPUs on which at least one of these workers may run."""
    return frozenset[int]().union(*(f.affinity for f in facts))
