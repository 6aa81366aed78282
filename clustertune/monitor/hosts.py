"""Find the machines of workers, and name them (pure)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

from clustertune.core.model import Unknown, WorkerSnapshot, is_loopback


def named(workers: Sequence[WorkerSnapshot]) -> tuple[WorkerSnapshot, ...]:
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
