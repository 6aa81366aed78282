"""XGBoost's Dask estimators with ``tree_method="hist"``, which is their default.

One training task runs on every worker that holds data, with as many threads as the
worker has; it makes a quantile matrix of its pieces. The same holds for core ``train``
with a ``DaskQuantileDMatrix``: then name ``workload="xgboost"``.
"""

from __future__ import annotations

from typing import Any

from clustertune.core.estimators import isa, parameter
from clustertune.core.profiles import Profile
from clustertune.integrations.libraries import Handed

PROFILE = Profile(
    name="xgboost",
    title="XGBoost (hist)",
    memory_multiple={4: 1.8, 8: 1.4},
    base_bytes=300 * 2**20,
    feature_bytes=4,
    random_order=False,
    categories=True,
    eval_everywhere=True,
    packages=("xgboost", "xgboost-cpu"),
    threads="worker",
    takes=("sample_weight", "base_margin", "eval_set"),
    source="measured with xgboost 3.2, 50 dense columns, 256 bins; eval sets the same; "
    "a worker with pandas 3.1 and scikit-learn 1.9 after a fit of 1,000 rows: 297 MiB",
)


def matches(estimator: object) -> bool:
    """Whether it is one of the Dask estimators that make a quantile matrix."""
    return is_dask(estimator) and not is_ranker(estimator) and is_hist(estimator)


def fit_kwargs(handed: Handed) -> dict[str, Any]:
    """Weights and margins, and eval sets with theirs."""
    rows = handed.training
    found = {
        "sample_weight": rows.sample_weight,
        "base_margin": rows.base_margin,
        "eval_set": [(e.X, e.y) for e in handed.eval_sets] or None,
        "sample_weight_eval_set": handed.of_eval_sets("sample_weight"),
        "base_margin_eval_set": handed.of_eval_sets("base_margin"),
    }
    return {name: value for name, value in found.items() if value is not None}


def is_dask(estimator: object) -> bool:
    """Whether it is one of XGBoost's Dask estimators."""
    return isa(estimator, "xgboost.dask", "DaskScikitLearnBase")


def is_ranker(estimator: object) -> bool:
    """Whether it learns from groups of rows."""
    return isa(estimator, "xgboost.dask", "DaskXGBRanker")


def is_hist(estimator: object) -> bool:
    """Whether it makes a quantile matrix, as all but the older tree methods do."""
    return parameter(estimator, "tree_method") in {None, "auto", "hist"}
