"""Release keys by their prefix.

Memory fills with forgotten data: old versions of a collection, results in the history
of a notebook. Released data is lost, so the step lists it first, by prefix, with its
bytes. Published keys and keys of other clients stay, unless the caller includes them.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator

from clustertune.actions import by_port
from clustertune.core.model import Finding, Key, KeyGroup, Price, Release, Step, View
from clustertune.core.wording import names_text, plural
from clustertune.planner.guards import key_bytes_text, owners_text


def propose(findings: tuple[Finding, ...], view: View) -> Iterator[Step]:
    """Propose nothing: only the caller knows which data is not needed."""
    yield from ()


def steps(
    view: View,
    prefixes: Collection[str],
    kept: tuple[Key, ...] = (),
    *,
    include_other_clients: bool = False,
) -> Iterator[Step]:
    """Return a step for each prefix, most bytes first.

    Without prefixes: all keys that only the caller holds, except those in ``kept``.
    """
    by_prefix: dict[str, list[KeyGroup]] = {}
    for group in view.now.key_groups or ():
        if group.keys:
            by_prefix.setdefault(group.prefix, []).append(group)
    for prefix in sorted(by_prefix, key=lambda p: -sum(g.nbytes for g in by_prefix[p])):
        groups = by_prefix[prefix]
        if prefix in prefixes or (not prefixes and any(g.alone for g in groups)):
            args = Release(
                prefix=prefix,
                excluded=kept,
                include_other_clients=include_other_clients,
                all_prefixes=tuple(prefixes),
            )
            yield _step(args, groups)


def row_step(view: View, rows: Collection[str]) -> Step:
    """Return one step that releases the keys of these rows, all or none."""
    groups = [g for g in view.now.key_groups or () if g.row in rows]
    args = Release(rows=tuple(rows), include_other_clients=True)
    return _step(args, groups)


def _step(args: Release, groups: list[KeyGroup]) -> Step:
    own = [g for g in groups if g.alone]
    others = [g for g in groups if not g.alone]
    going = [*own, *others] if args.include_other_clients else own
    shown = going or others  # the guard refuses these
    prefixes = sorted({g.prefix for g in shown})
    keys = f"{plural(sum(g.keys for g in shown), 'key')} named {names_text(prefixes)}"
    summary = f"release {keys} ({key_bytes_text(shown)})"
    if others and going == own and own:
        staying = sum(g.keys for g in others)
        summary += f"; {staying:,} more stay, which {owners_text(others)}"
    elif others and going:  # a guard refuses the others, and names them
        summary += f", {'some of which' if own else 'which'} {owners_text(others)}"
    names = sorted({n for g in going for n in g.published})
    summary += f"; unpublish {names_text(names)}" if names else ""
    risk = keys
    if scattered := sum(g.scattered for g in shown):
        risk += f"; {scattered:,} of them were scattered and cannot be computed again"
    return Step(
        action="release",
        summary=summary,
        price=Price(nbytes=0, at_risk=risk),
        gain=f"{key_bytes_text(shown)} of memory",
        args=args,
    )


enact = by_port("release")
