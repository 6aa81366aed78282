"""Searches for parameters: scikit-learn's, and ``GridSearchCV`` of dask-ml.

A search fits many models, each on most of the data: every worker needs all of it, in
one object. So there are no pieces to be placed, and ``prepare`` refuses it.
"""

from __future__ import annotations

from clustertune.core.estimators import isa
from clustertune.core.profiles import Profile

PROFILE = Profile(
    name="gridsearch",
    title="searches for parameters",
    memory_multiple={4: 2.2, 8: 2.2},
    base_bytes=260 * 2**20,
    persist=False,
    refused="a search needs its whole data in one object on each worker; fit it with "
    "NumPy or pandas data in a block of "
    "clustertune.training.joblib_backend(client, X, y)",
    takes=(),
    source="measured with joblib 1.6, cv=4, one thread a worker; of all data, not of "
    "a share of it",
)


def matches(estimator: object) -> bool:
    """Whether it is a search, but for dask-ml's incremental ones."""
    return isa(estimator, "sklearn.model_selection", "BaseSearchCV") or isa(
        estimator, "dask_ml.model_selection", "DaskBaseSearchCV"
    )
