"""dask-ml's ``KMeans``.

All data is read 10 to 300 times: to look for NaN, to choose the first centres, and once
in every step; so it is loaded before. Centres are summed over the pieces one after the
other, so there are few of them.
"""

from __future__ import annotations

from clustertune.estimators import isa
from clustertune.profiles import Profile

PROFILE = Profile(
    name="kmeans",
    title="dask-ml KMeans",
    memory_multiple={4: 2.3, 8: 1.5},
    base_bytes=290 * 2**20,
    pieces_per_thread=2,
    max_pieces_per_thread=16,
    random_order=False,
    packages=("dask-ml",),
    takes=(),
    source="measured with dask-ml 2025.1: 2.5 (float32) or 0.4 pieces beside the data "
    "for each thread, and the distances of k centres, at two pieces a thread",
)


def matches(estimator: object) -> bool:
    """Whether it is dask-ml's KMeans."""
    return isa(estimator, "dask_ml.cluster", "KMeans")
