"""Whether pieces of a layout are too few, too many or too large to train on (pure).

The checks of the same names report it, and the planner asks it of pieces that it could
make.
"""

from __future__ import annotations

import math

from clustertune.core.model import Layout, Unknown, View
from clustertune.planner.evenness import attainable
from clustertune.planner.forecast import expected_workers
from clustertune.planner.sizes import largest_piece, layout_bytes
from clustertune.planner.trainers import units

LARGE = 0.25  # of the smallest memory limit
SMALL = 2**20  # bytes of a mean piece
_ROUNDING = 1e-9


def smallest_limit(view: View) -> int:
    """Bytes of the smallest memory limit among eligible workers; 0: none has one."""
    limits = [w.memory_limit for w in view.eligible_workers if w.memory_limit]
    return min(limits, default=0)


def too_large(layout: Layout, view: View, fraction: float = LARGE) -> bool | Unknown:
    """Whether one piece is larger than a fraction of the smallest memory limit."""
    limit = smallest_limit(view)
    if not limit:
        return False
    largest = largest_piece(layout)
    return largest if isinstance(largest, Unknown) else largest > fraction * limit


def too_many(layout: Layout, view: View, small: int = SMALL) -> bool | Unknown:
    """Whether each thread has too many pieces, and their mean is small."""
    threads = sum(w.nthreads for w in view.eligible_workers)
    n_pieces = max(m.n_pieces for m in layout.members)
    if not threads or n_pieces <= view.goal.workload.max_pieces_per_thread * threads:
        return False
    size = layout_bytes(layout)
    return size if isinstance(size, Unknown) else size / n_pieces < small


def n_training(view: View) -> int:
    """Workers that are to have a share of the training data."""
    n_workers, found = expected_workers(view), units(view)
    return n_workers if found is None else min(n_workers, found.workers)


def fullest_share(layout: Layout, view: View) -> float:
    """Rows of the fullest worker over its share at best, of an aligned layout.

    Infinity where fewer pieces have rows than workers are to train; 0 where no worker
    is to train.
    """
    n_workers = n_training(view)
    if not n_workers:
        return 0.0
    if int((layout.rows > 0).sum()) < n_workers:
        return math.inf
    return attainable(layout, view)


def is_uneven(share: float, view: View) -> bool:
    """Whether the fullest worker's share is above the goal's tolerance."""
    return share > 1 + view.goal.tolerance + _ROUNDING


def too_few(layout: Layout, view: View) -> bool:
    """Whether the pieces of an aligned layout give some worker too small a share."""
    return is_uneven(fullest_share(layout, view), view)
