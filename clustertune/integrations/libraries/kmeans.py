"""dask-ml's ``KMeans``.

All data is read 10 to 300 times: to look for NaN, to choose the first centres, and once
in every step; so it is loaded before. Centres are summed over the pieces one after the
other, so there are few of them.
"""

from __future__ import annotations

from clustertune.core.estimators import isa
from clustertune.core.profiles import Profile

PROFILE = Profile(
    name="kmeans",
    title="dask-ml KMeans",
    memory_multiple={4: 2.1, 8: 1.1},
    piece_multiple={4: 2.1, 8: 0.1},
    base_bytes=382 * 2**20,
    pieces_per_thread=2,
    max_pieces_per_thread=16,
    random_order=False,
    packages=("dask-ml",),
    takes=(),
    source="measured with dask-ml 2025.1, 8 centres, 1, 2 and 8 pieces a thread",
)


def matches(estimator: object) -> bool:
    """Whether it is dask-ml's KMeans."""
    return isa(estimator, "dask_ml.cluster", "KMeans")
