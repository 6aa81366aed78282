"""Release keys, or all data of workers, on request only.

Memory fills with forgotten data: old versions of a collection, results in the history
of a notebook. Released data is lost, so the step lists it first, by prefix, with its
bytes. Published keys and keys of other clients stay.

A drop restarts workers at once. This is the fastest way to clean processes, and ends
tasks that never end by themselves. With all workers all clients lose their data on the
cluster, and published names are removed. The step lists both first. With some workers
Dask computes their keys again, except scattered ones. Data of other clients needs the
caller's consent.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator

from clustertune.core.model import Drop, Key, KeyGroup, Price, Release, Step, View
from clustertune.core.wording import plural, printable, workers_text
from clustertune.planner.guards import at_risk, key_bytes_text, owners_text


def steps(view: View, kept: tuple[Key, ...] = (), *, named: bool) -> Iterator[Step]:
    """Return a step for each prefix, most bytes first; ``kept`` keys stay.

    ``named``: the caller has named the other keys. Without a key that only the caller
    holds, a prefix has a step, too, which a guard refuses.
    """
    by_prefix: dict[str, list[KeyGroup]] = {}
    for group in view.now.key_groups or ():
        if group.keys and (not named or group.mine):
            by_prefix.setdefault(group.prefix, []).append(group)
    for prefix in sorted(by_prefix, key=lambda p: -sum(g.nbytes for g in by_prefix[p])):
        groups = by_prefix[prefix]
        if named or any(g.alone for g in groups):
            yield _step(Release(prefix=prefix, excluded=kept), groups)


def _step(args: Release, groups: list[KeyGroup]) -> Step:
    going = [g for g in groups if g.alone]
    others = [g for g in groups if not g.alone]
    shown = going or others  # a guard refuses these
    count = plural(sum(g.keys for g in shown), "key")
    named = f"named {printable(args.prefix)}" if args.prefix else "with other names"
    keys = f"{count} {named}"
    summary = f"release {keys} ({key_bytes_text(shown)})"
    if others and going:
        staying = sum(g.keys for g in others)
        summary += f"; {staying:,} more stay, which {owners_text(others)}"
    risk = keys
    if scattered := sum(g.scattered for g in shown):
        risk += f"; {scattered:,} of them were scattered and cannot be computed again"
    return Step(
        action="release",
        summary=summary,
        price=Price(nbytes=0, at_risk=risk),
        args=args,
    )


# --- drops ----------------------------------------------------------------------------


def drops(
    view: View,
    ids: Collection[str | int],
    *,
    wait: float = 0.0,
    include_other_clients: bool = False,
    whole: bool = True,
) -> Iterator[Step]:
    """Return one step for these workers.

    With all workers it also ends the parking workers that earlier restarts left, and
    Dask forgets all data, unless ``whole`` is False.
    """
    real = [w for w in view.now.workers if not w.parking]
    workers = {w.address: w.id for w in view.now.workers if w.id in ids}
    every = whole and all(w.address in workers for w in real)
    if every:
        workers = {w.address: w.id for w in real}
    if not workers:
        return
    args = Drop(
        workers=workers,
        all=every,
        wait=wait,
        include_other_clients=include_other_clients,
    )
    which = f"all {plural(len(workers), 'worker')}"
    if every:
        risk = at_risk(view.now.key_groups or ())
    else:
        which = workers_text(list(workers.values()))
        held = [view.now.by_address[a].held_data for a in workers]
        scattered = sum(data.scattered for data in held if data is not None)
        risk = (
            f"{plural(scattered, 'scattered key')}; Dask computes other keys again, "
            "and running tasks are cancelled"
        )
    yield Step(
        action="drop",
        summary=f"restart {which} at once",
        price=Price(nbytes=0, at_risk=risk),
        args=args,
    )
