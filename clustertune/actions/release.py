"""Release keys by their prefix.

Memory fills with forgotten data: old versions of a collection, results in the history
of a notebook. Released data is lost, so the step lists it first, by prefix, with its
bytes. Published keys and keys of other clients stay.
"""

from __future__ import annotations

from collections.abc import Iterator

from clustertune.actions import by_port
from clustertune.core.model import Finding, Key, KeyGroup, Price, Release, Step, View
from clustertune.core.wording import plural, printable
from clustertune.planner.guards import key_bytes_text, owners_text


def propose(findings: tuple[Finding, ...], view: View) -> Iterator[Step]:
    """Propose nothing: only the caller knows which data is not needed."""
    yield from ()


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
    keys = f"{count} named {printable(args.prefix)}"
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
        gain=f"{key_bytes_text(shown)} of memory",
        args=args,
    )


enact = by_port("release")
