"""LightGBM's Dask estimators.

One training task runs on every worker that holds data, with as many threads as the
worker has; it joins its pieces in a copy. Each worker counts classes by itself, so a
classifier needs rows of every class on every worker. Each worker stops early by its
own rows of the eval sets, and where they disagree the fit hangs: each gets all of them.
"""

from __future__ import annotations

import importlib
from collections.abc import Collection
from dataclasses import replace
from importlib.util import find_spec
from typing import Any

from clustertune.core.estimators import isa, parameters
from clustertune.core.profiles import Profile
from clustertune.integrations.libraries import Handed

PROFILE = Profile(
    name="lightgbm",
    title="LightGBM",
    memory_multiple={4: 2.7, 8: 2.4},
    base_bytes=380 * 2**20,
    feature_bytes=4,
    max_pieces_per_thread=64,
    min_rows=2,  # scikit-learn's validation, on each worker, refuses a single row
    needs_all_classes=None,  # a name does not tell a classifier from a regressor
    eval_copies=True,
    random_order=True,
    one_number_type=True,
    categories=True,
    packages=("lightgbm",),
    threads="worker",
    takes=("sample_weight", "init_score", "eval_set"),
    source="measured with lightgbm 4.7, 50 columns, base with 100; eval sets the same",
)

_STOPPING = "early_stopping"
_ROUNDS = (_STOPPING, f"{_STOPPING}_round", f"{_STOPPING}_rounds", "n_iter_no_change")


def matches(estimator: object) -> bool:
    """Whether it is one of LightGBM's Dask estimators that learns from single rows."""
    return isa(estimator, "lightgbm.dask") and not is_ranker(estimator)


def profile_for(estimator: object) -> Profile:
    """A classifier needs rows of every class on every worker; a regressor has none."""
    return replace(
        PROFILE,
        needs_all_classes=isa(estimator, "lightgbm.dask", "DaskLGBMClassifier"),
        stops_early=stops_early(estimator),
    )


def stops_early(estimator: Any) -> bool:
    """Whether a parameter says so; a callback of ``fit`` is not known before."""
    given = {} if isinstance(estimator, type) else estimator.get_params()
    return any(given.get(name) or 0 for name in _ROUNDS)


def fit_kwargs(handed: Handed) -> dict[str, Any]:
    """Weights and scores, and eval sets with theirs."""
    rows = handed.training
    found = {
        "sample_weight": rows.sample_weight,
        "init_score": rows.init_score,
        "eval_sample_weight": handed.of_all_eval_sets("sample_weight"),
        "eval_init_score": handed.of_all_eval_sets("init_score"),
    }
    given = {name: value for name, value in found.items() if value is not None}
    return given | _eval_sets(handed)


def is_ranker(estimator: object) -> bool:
    """Whether it learns from groups of rows."""
    return isa(estimator, "lightgbm.dask", "DaskLGBMRanker")


def _eval_sets(handed: Handed) -> dict[str, Any]:
    """From 4.7 on X and y are apart, and a list of pairs is deprecated."""
    if not handed.eval_sets:
        return {}
    if "eval_X" in _fit_parameters(handed.estimator):
        return {
            "eval_X": tuple(e.X for e in handed.eval_sets),
            "eval_y": tuple(e.y for e in handed.eval_sets),
        }
    return {"eval_set": [(e.X, e.y) for e in handed.eval_sets]}


def _fit_parameters(estimator: Any) -> Collection[str]:
    """What ``fit`` takes; if the workload was named, of what is installed here."""
    if estimator is None:
        if find_spec("lightgbm") is None:
            return ()
        estimator = importlib.import_module("lightgbm").DaskLGBMRegressor
    return parameters(estimator.fit)
