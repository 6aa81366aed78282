"""Let go of data in memory that nobody needs any more, by the prefix of its keys.

Memory fills with what was persisted once and forgotten: old versions of a collection,
the results that a notebook keeps in its history. What is let go is gone: it is shown
first, by prefix, with its bytes. What other clients want kept, or is published, stays,
unless the caller says that it may go, too.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator

from clustertune.core.model import (
    Cluster,
    Finding,
    Holding,
    Key,
    Notify,
    Price,
    Release,
    Result,
    Step,
    View,
)
from clustertune.core.wording import names_text, plural
from clustertune.planner.guards import nbytes_text, whose


def propose(findings: tuple[Finding, ...], view: View) -> Iterator[Step]:
    """None: what is needed no more is for the caller to say."""
    yield from ()


def steps(
    view: View,
    prefixes: Collection[str],
    kept: tuple[Key, ...] = (),
    *,
    include_other_clients: bool = False,
) -> Iterator[Step]:
    """A step for each prefix, the one with most bytes first.

    Without prefixes: for all that the caller alone wants, but for what is ``kept``.
    """
    holdings = [h for h in view.now.holdings or () if h.keys]
    by_prefix: dict[str, list[Holding]] = {}
    for holding in holdings:
        by_prefix.setdefault(holding.prefix, []).append(holding)
    order = sorted(by_prefix, key=lambda p: -sum(h.nbytes for h in by_prefix[p]))
    for prefix in order:
        own = [h for h in by_prefix[prefix] if h.alone]
        others = [h for h in by_prefix[prefix] if not h.alone]
        if prefix in prefixes or (not prefixes and own):
            args = Release(
                prefix=prefix,
                kept=kept,
                include_other_clients=include_other_clients,
                together=tuple(prefixes),
            )
            yield _step(args, own, others)


def _step(args: Release, own: list[Holding], others: list[Holding]) -> Step:
    prefix = args.prefix
    going = [*own, *others] if args.include_other_clients else own
    shown = going or others  # which the guard will refuse
    count = sum(h.keys for h in shown)
    summary = f"let go of {plural(count, 'key')} named {prefix} ({nbytes_text(shown)})"
    if others and going == own and own:
        summary += f"; {sum(h.keys for h in others):,} more stay, which {whose(others)}"
    elif others:
        summary += (
            f", some of which {whose(others)}" if own else f", which {whose(others)}"
        )
    names = sorted({n for h in going for n in h.published})
    summary += f"; unpublish {names_text(names)}" if names else ""
    scattered = sum(h.scattered for h in shown)
    never = (
        f"; {scattered:,} were scattered: they are gone for good" if scattered else ""
    )
    return Step(
        action="release",
        summary=summary,
        price=Price(
            nbytes=0,
            seconds=None,
            at_risk=f"{plural(count, 'key')} named {prefix}{never}",
        ),
        gain=f"{nbytes_text(shown)} of memory",
        args=args,
    )


async def enact(step: Step, cluster: Cluster, notify: Notify) -> Result:
    """Let go of them, as the resident carries it out."""
    assert isinstance(step.args, Release)
    return await cluster.release(step.args, notify)
