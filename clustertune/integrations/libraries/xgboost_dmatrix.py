"""XGBoost with a plain matrix: ``tree_method`` ``"approx"`` or ``"exact"``.

So trains core ``train`` with a ``DaskDMatrix`` too, whatever its tree method is: then
name ``workload="xgboost_dmatrix"``. All pieces of a worker are joined in a copy before
the matrix is made. Where the model allows it, ``hist`` needs half of the memory: the
estimators' default, or ``DaskQuantileDMatrix`` in place of ``DaskDMatrix``.
"""

from __future__ import annotations

from dataclasses import replace

from clustertune.integrations.libraries import xgboost

PROFILE = replace(
    xgboost.PROFILE,
    name="xgboost_dmatrix",
    title="XGBoost (approx, exact, DaskDMatrix)",
    memory_multiple={4: 4.1, 8: 3.1},
    frugal=xgboost.PROFILE,
    frugal_parameters='tree_method="hist", or DaskQuantileDMatrix for DaskDMatrix',
    source="measured with xgboost 3.2, 50 dense columns",
)

fit_kwargs = xgboost.fit_kwargs


def matches(estimator: object) -> bool:
    """Whether it is one of the Dask estimators, with one of the older tree methods."""
    return (
        xgboost.is_dask(estimator)
        and not xgboost.is_ranker(estimator)
        and not xgboost.is_hist(estimator)
    )
