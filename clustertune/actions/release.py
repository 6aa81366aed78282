"""Release keys by their prefix.

Memory fills with forgotten data: old versions of a collection, results in the history
of a notebook. Released data is lost, so the step lists it first, by prefix, with its
bytes. Published keys and keys of other clients stay, unless the caller includes them.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator

from clustertune.core.model import (
    Cluster,
    Finding,
    Key,
    KeyGroup,
    Notify,
    Price,
    Release,
    Result,
    Step,
    View,
)
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
    holdings = [h for h in view.now.key_groups or () if h.keys]
    by_prefix: dict[str, list[KeyGroup]] = {}
    for holding in holdings:
        by_prefix.setdefault(holding.prefix, []).append(holding)
    order = sorted(by_prefix, key=lambda p: -sum(h.nbytes for h in by_prefix[p]))
    for prefix in order:
        own = [h for h in by_prefix[prefix] if h.alone]
        others = [h for h in by_prefix[prefix] if not h.alone]
        if prefix in prefixes or (not prefixes and own):
            args = Release(
                prefix=prefix,
                excluded=kept,
                include_other_clients=include_other_clients,
                all_prefixes=tuple(prefixes),
            )
            yield _step(args, own, others)


def _step(args: Release, own: list[KeyGroup], others: list[KeyGroup]) -> Step:
    prefix = args.prefix
    going = [*own, *others] if args.include_other_clients else own
    shown = going or others  # the guard refuses these
    count = sum(h.keys for h in shown)
    summary = f"release {plural(count, 'key')} named {prefix} ({key_bytes_text(shown)})"
    if others and going == own and own:
        summary += (
            f"; {sum(h.keys for h in others):,} more stay, which {owners_text(others)}"
        )
    elif others and going:  # a guard refuses the others, and names them
        summary += (
            f", some of which {owners_text(others)}"
            if own
            else f", which {owners_text(others)}"
        )
    names = sorted({n for h in going for n in h.published})
    summary += f"; unpublish {names_text(names)}" if names else ""
    scattered = sum(h.scattered for h in shown)
    never = (
        f"; {scattered:,} of them were scattered and cannot be computed again"
        if scattered
        else ""
    )
    return Step(
        action="release",
        summary=summary,
        price=Price(
            nbytes=0,
            seconds=None,
            at_risk=f"{plural(count, 'key')} named {prefix}{never}",
        ),
        gain=f"{key_bytes_text(shown)} of memory",
        args=args,
    )


async def enact(step: Step, cluster: Cluster, notify: Notify) -> Result:
    """Release the keys."""
    assert isinstance(step.args, Release)
    return await cluster.release(step.args, notify)
