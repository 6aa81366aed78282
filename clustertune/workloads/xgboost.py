"""XGBoost's Dask interface with ``tree_method="hist"`` or the scikit-learn classes.

One training task runs on every worker that holds data, with as many threads as the
worker has; it makes a quantile matrix of its pieces. ``DaskDMatrix`` with core
``train`` and the tree methods ``approx`` and ``exact`` need 4.0 (float32) and 3.0
(float64) times the data instead.
"""

from __future__ import annotations

from clustertune.model import Profile

PROFILE = Profile(
    name="xgboost",
    title="XGBoost (hist)",
    memory_multiple={4: 1.8, 8: 1.4},
    base_bytes=300 * 2**20,
    max_pieces_per_thread=256,
    feature_bytes=4,
    random_order=False,
    categories=True,
    threads="worker",
    packages=("xgboost", "xgboost-cpu"),
    source="measured with xgboost 3.2, 50 dense columns, 256 bins; a worker with "
    "pandas 3.1 and scikit-learn 1.9 after a fit of 1,000 rows: 297 MiB",
)


def matches(estimator: object) -> bool:
    """Whether it is one of XGBoost's Dask estimators."""
    return any(
        (t.__module__ or "").split(".")[:2] == ["xgboost", "dask"]
        for t in type(estimator).__mro__
    )
