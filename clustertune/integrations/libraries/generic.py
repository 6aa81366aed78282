"""Any library that trains piece by piece and copies its data once.

It is taken where neither an estimator nor a workload is named, and for estimators of
dask-ml that have no workload of their own: scalers, encoders, ``PCA``,
``GaussianNB``, ``BlockwiseVotingClassifier`` and others.
"""

from __future__ import annotations

from dataclasses import replace

from clustertune.core.estimators import isa
from clustertune.core.profiles import Profile

PROFILE = Profile(
    name="generic",
    title="any training library",
    memory_multiple={4: 2.0, 8: 2.0},
    source="the data and one copy of it",
)


def profile_for(estimator: object) -> Profile:
    """Blockwise voting fits a model to each partition, so their number is kept."""
    voting = isa(estimator, "dask_ml.ensemble", "BlockwiseBase")
    return replace(PROFILE, keeps_pieces=voting)
