"""dask-ml's searches by ``partial_fit``: ``HyperbandSearchCV`` and its relatives.

They fail with every Dask that clustertune supports (dask/dask-ml#1016): in the
cluster's event loop they call what may only be called outside of it.
"""

from __future__ import annotations

from clustertune.core.estimators import isa
from clustertune.core.profiles import Profile

PROFILE = Profile(
    name="incremental_search",
    title="dask-ml incremental searches",
    memory_multiple={4: 2.0, 8: 2.0},
    persist=False,
    max_piece_bytes=50 * 2**20,
    random_order=True,
    packages=("dask-ml",),
    refused="dask-ml's incremental searches fail with Dask 2025.3 and later "
    "(dask/dask-ml#1016); search with scikit-learn under joblib's Dask backend, or "
    "train one model with dask_ml.wrappers.Incremental",
    takes=(),
    source="read in dask-ml 2025.1, which runs with no Dask of today",
)


def matches(estimator: object) -> bool:
    """Whether it is one of the searches that are made of partial fits."""
    return isa(estimator, "dask_ml.model_selection", "BaseIncrementalSearchCV")
