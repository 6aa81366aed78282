"""XGBoost's ``DaskXGBRanker``: rows belong to groups (``qid``), which stay together.

By default the ranker sorts all data by group across the cluster and makes a piece of
each group: of 400 groups 400 pieces. Where a worker has whole groups, in their order,
it can take the pieces as they are: ``estimator_params`` has ``allow_group_split=True``,
which says so, ``model.set_params(**prepared.estimator_params)``. XGBoost takes no
weights of rows beside groups.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from clustertune.core.estimators import parameter
from clustertune.core.profiles import Profile
from clustertune.integrations.libraries import Handed, xgboost, xgboost_dmatrix

PROFILE = replace(
    xgboost.PROFILE,
    name="xgboost_rank",
    title="XGBoost (ranking)",
    groups="sorted",
    sorts_groups=True,
    takes=("qid", "base_margin", "eval_set"),
    source="measured with xgboost 3.2, 50 dense columns, 256 bins, groups in order",
)


def matches(estimator: object) -> bool:
    """Whether it is XGBoost's Dask ranker."""
    return xgboost.is_ranker(estimator)


def profile_for(estimator: object) -> Profile:
    """The older tree methods need as much memory as they do without groups."""
    if xgboost.is_hist(estimator):
        return PROFILE
    plain = xgboost_dmatrix.PROFILE
    return replace(PROFILE, memory_multiple=plain.memory_multiple, source=plain.source)


def fit_kwargs(handed: Handed) -> dict[str, Any]:
    """Groups and margins, and eval sets with theirs."""
    found = {
        "qid": handed.training.qid,
        "eval_qid": handed.of_eval_sets("qid"),
    }
    given = {name: value for name, value in found.items() if value is not None}
    return xgboost.fit_kwargs(handed) | given


def estimator_params(handed: Handed) -> dict[str, Any]:
    """That pieces are taken as they are; older releases know no other way."""
    named = handed.estimator is None
    if named or parameter(handed.estimator, "allow_group_split") is not None:
        return {"allow_group_split": True}
    return {}
