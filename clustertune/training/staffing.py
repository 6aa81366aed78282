"""Which worker takes which role.

Pure: what is known of the workers is given, and nothing here asks a cluster.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from clustertune.core.wording import names_text, plural, workers_text


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """A worker that may take a role.

    Attributes
    ----------
    address
        Where it is reached.
    id
        Its name.
    host
        The machine that it runs on.
    process
        The same for workers that are threads of one process.
    status
        As Dask has it; only one that is running begins tasks.
    answers
        Whether it answered, and code may be sent to it.
    busy
        How many tasks it runs, or has waiting.
    held
        Bytes of the data that lie there.
    lacks
        Modules that the framework needs and it does not have.
    taken
        What role of another call has set the environment of its process; or none.
    """

    address: str
    id: str | int
    host: str
    process: str
    status: str = "running"
    answers: bool = True
    busy: int = 0
    held: int = 0
    lacks: tuple[str, ...] = ()
    taken: str | None = None


def assign(
    sizes: Mapping[str, int],
    candidates: Sequence[Candidate],
    *,
    first: str | None,
    alone: bool,
) -> dict[str, list[Candidate]] | str:
    """By role the workers that take it, by rank; or why that cannot be.

    Idle workers come first. The members of a role are spread over hosts, then all
    roles are; among equals, one that holds most of the data is taken.

    Parameters
    ----------
    sizes
        By role how many.
    candidates
        All workers, in the order in which equals are taken.
    first
        The role that is given its workers first, since data goes there.
    alone
        Whether each role needs a process of its own.
    """
    fit = [c for c in candidates if c.status == "running" and c.answers]
    able = [c for c in fit if not c.lacks and not (alone and c.taken)]
    if alone:
        able = _one_of_each_process(able)
    wanted = sum(sizes.values())
    if len(able) < wanted:
        return _too_few(sizes, candidates, fit, able, alone=alone)
    chosen: dict[str, list[Candidate]] = {role: [] for role in sizes}
    hosts = Counter[str]()
    for role in sorted(sizes, key=lambda name: name != first):
        of_role = Counter[str]()
        for _ in range(sizes[role]):
            best = min(
                able,
                key=lambda c: (
                    c.busy > 0,
                    of_role[c.host],
                    hosts[c.host],
                    -c.held if role == first else c.held,
                    c.busy,
                ),
            )
            able.remove(best)
            hosts[best.host] += 1
            of_role[best.host] += 1
            chosen[role].append(best)
    return chosen


def _one_of_each_process(candidates: Sequence[Candidate]) -> list[Candidate]:
    found: dict[tuple[str, str], Candidate] = {}
    for candidate in sorted(candidates, key=lambda c: c.busy):
        found.setdefault((candidate.host, candidate.process), candidate)
    return [c for c in candidates if c in found.values()]


def _too_few(
    sizes: Mapping[str, int],
    candidates: Sequence[Candidate],
    fit: Sequence[Candidate],
    able: Sequence[Candidate],
    *,
    alone: bool,
) -> str:
    asked = ", ".join(f"{role}: {n}" for role, n in sizes.items())
    text = (
        f"the roles need {plural(sum(sizes.values()), 'worker')} ({asked}), one each, "
        f"and {len(able)} of {len(candidates)} can take one"
    )
    reasons = []
    other = [c for c in candidates if c.status != "running"]
    if other:
        kinds = names_text(sorted({c.status for c in other}))
        reasons.append(f"{workers_text([c.id for c in other])} not running ({kinds})")
    silent = [c for c in candidates if c.status == "running" and not c.answers]
    if silent:
        reasons.append(f"no answer from {workers_text([c.id for c in silent])}")
    lacking = [c for c in fit if c.lacks]
    if lacking:
        modules = names_text(sorted({m for c in lacking for m in c.lacks}))
        reasons.append(
            f"{modules} cannot be imported on {workers_text([c.id for c in lacking])}"
        )
    taken = [c for c in fit if alone and c.taken]
    if taken:
        reasons.append(
            f"another call's role is on {workers_text([c.id for c in taken])}"
        )
    left = [c for c in fit if not c.lacks and not (alone and c.taken)]
    if len(left) > len(able):
        reasons.append(
            f"{workers_text([c.id for c in left if c not in able])} in one process "
            "with others, where roles of a framework would share its environment"
        )
    why = f": {'; '.join(reasons)}" if reasons else ""
    return (
        f"{text}{why}. Ask for fewer, or start workers: "
        "clustertune.scale(client, n_workers)"
    )
