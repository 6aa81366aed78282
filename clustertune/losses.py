"""What would be lost with a cluster, and whether that was agreed to (pure)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from clustertune.wording import bytes_text, plural, printable

MOST = 3  # prefixes that are named of each loss, and losses of a refusal
NAMED = {"published": "the published data set", "variable": "the variable"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Loss:
    """What somebody has on the cluster that would be gone."""

    owner: str  # in words
    mine: bool
    prefixes: tuple[tuple[str, int, int], ...]  # name, keys, bytes; most bytes first
    coming: int  # tasks that are still to be done for it

    @property
    def nbytes(self) -> int:
        return sum(nbytes for _, _, nbytes in self.prefixes)

    def __str__(self) -> str:
        shown = [
            f"{printable(name, longest=60)} ({plural(n, 'key')}, {bytes_text(nbytes)})"
            for name, n, nbytes in self.prefixes[:MOST]
        ]
        more = len(self.prefixes) - MOST
        shown += [f"{plural(more, 'more prefix', 'more prefixes')}"] if more > 0 else []
        shown += [f"{plural(self.coming, 'task')} under way"] if self.coming else []
        whose = printable(self.owner, longest=80)
        what = f": {', '.join(shown)}" if shown else ""
        return f"{bytes_text(self.nbytes)} of {whose}{what}"


def losses(
    found: Mapping[str, Any], me: str, restored: Sequence[str]
) -> tuple[Loss, ...]:
    """Who would lose what, this client first, then by bytes.

    Parameters
    ----------
    found
        What :func:`clustertune.remote.belongings.belongings` has found.
    me
        Id of this client.
    restored
        Names of data sets that are saved, and published again.
    """
    # a shared name wants its keys as a client of that name
    shared = {f"{kind}-{name}": (kind, name) for kind, name in found["names"]}
    rows = {owner: (prefixes, n) for owner, prefixes, n in found["owners"]}
    rows = {key: ([], 0) for key in shared} | rows
    lost = []
    for owner, (prefixes, coming) in rows.items():
        kind, name = shared.get(owner, ("", ""))
        if kind == "published" and name in restored:
            continue
        text = f"{NAMED.get(kind, 'the queue')} {name!r}" if kind else f"client {owner}"
        lost.append(
            Loss(
                owner="this client" if owner == me else text,
                mine=owner == me,
                prefixes=tuple((p, n, b) for p, n, b in prefixes),
                coming=coming,
            )
        )
    return tuple(sorted(lost, key=lambda loss: (not loss.mine, -loss.nbytes)))


def objection(
    lost: Sequence[Loss], *, drop_data: bool, include_others: bool
) -> str | None:
    """Why so much may not be lost; None: all of it was agreed to."""
    mine = [str(loss) for loss in lost if loss.mine]
    others = [str(loss) for loss in lost if not loss.mine]
    reasons = []
    if mine and not drop_data:
        reasons.append(
            f"{mine[0]} would be lost: give these collections too, with save_to=PATH, "
            "or release them, or give drop_data=True"
        )
    if others and not include_others:
        more = f"; and {len(others) - MOST} more" if len(others) > MOST else ""
        reasons.append(
            f"others would lose {'; '.join(others[:MOST])}{more}: with their consent "
            "give include_other_clients=True"
        )
    return "; ".join(reasons) or None
