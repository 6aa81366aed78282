"""How even rows can lie without cutting a piece (pure)."""

from __future__ import annotations

import numpy as np

from clustertune.core.model import Layout, View
from clustertune.planner import layouts
from clustertune.planner.placement import place


def attainable(layout: Layout, view: View) -> float:
    """Rows of the fullest worker over its share, for the best place of all pieces.

    The layout is aligned; it need not be loaded. Of places that are even within the
    goal's tolerance it is the one that moves least, so the answer is at most
    ``1 + tolerance`` if that can be had, else as low as pieces allow.
    """
    claim = layouts.weights(view)
    rows = layout.rows
    claimed = claim[claim > 0]
    if not len(claimed) or not rows.sum():
        return 1.0
    # Filling the neediest worker next never exceeds a share by more than one piece.
    smallest_share = rows.sum() * claimed.min() / claimed.sum()
    spare = view.goal.tolerance * smallest_share
    if rows.max() <= spare:
        return 1.0 + float(rows.max() / smallest_share)
    there = layouts.held(layout, len(claim))
    found = place(
        rows,
        (there.piece, there.worker, np.zeros_like(there.nbytes)),
        claim,
        nbytes=np.zeros_like(rows),
        tolerance=view.goal.tolerance,
    )
    return found.imbalance
