"""LightGBM's ``DaskLGBMRanker``: rows belong to groups, which stay together.

It wants the sizes of the groups, in pieces like those of X; they are made from ``qid``.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from clustertune.core.profiles import Profile
from clustertune.integrations.libraries import Handed, lightgbm

PROFILE = replace(
    lightgbm.PROFILE,
    name="lightgbm_rank",
    title="LightGBM (ranking)",
    groups="together",
    group_sizes=True,
    needs_all_classes=False,
    takes=(*(lightgbm.PROFILE.takes or ()), "qid"),
)


def matches(estimator: object) -> bool:
    """Whether it is LightGBM's Dask ranker."""
    return lightgbm.is_ranker(estimator)


def profile_for(estimator: object) -> Profile:
    """Early stopping is a matter of parameters."""
    return replace(PROFILE, stops_early=lightgbm.stops_early(estimator))


def fit_kwargs(handed: Handed) -> dict[str, Any]:
    """Sizes of the groups, and all that the other estimators take."""
    found = {
        "group": handed.training.group_sizes,
        "eval_group": handed.of_all_eval_sets("group_sizes"),
    }
    given = {name: value for name, value in found.items() if value is not None}
    return lightgbm.fit_kwargs(handed) | given
