"""LightGBM's Dask estimators."""

from __future__ import annotations

import importlib
from collections.abc import Collection
from dataclasses import replace
from importlib.util import find_spec
from typing import Any

from clustertune.core.profiles import NOT_NUMBERS, Profile
from clustertune.integrations.libraries.workload import (
    FitInputs,
    Workload,
    given,
    isa,
    parameters,
)

BOOSTING = Profile(
    name="lightgbm",
    title="LightGBM",
    memory_multiple={4: 2.7, 8: 2.4},
    base_bytes=380 * 2**20,
    feature_bytes=4,
    max_partitions_per_thread=64,
    min_rows=2,  # scikit-learn's validation on each worker refuses a single row
    needs_all_classes=None,  # the name does not distinguish classifiers
    eval_copies=True,
    random_order=True,
    one_number_type=True,
    refuses=NOT_NUMBERS,
    categories=True,
    packages=("lightgbm",),
    threads="worker",
    takes=("sample_weight", "init_score", "eval_set"),
    source="measured with lightgbm 4.7, 50 columns, base with 100; eval sets the same",
)
RANK = replace(
    BOOSTING,
    name="lightgbm_rank",
    title="LightGBM (ranking)",
    groups="together",
    group_sizes=True,
    needs_all_classes=False,
    takes=(*(BOOSTING.takes or ()), "qid"),
)

_STOPPING = "early_stopping"
_ROUNDS = (_STOPPING, f"{_STOPPING}_round", f"{_STOPPING}_rounds", "n_iter_no_change")


def _stops_early(estimator: Any) -> bool:
    """Return whether a parameter enables it; a callback is not known before the fit."""
    given = {} if isinstance(estimator, type) else estimator.get_params()
    return any(given.get(name) or 0 for name in _ROUNDS)


def _is_ranker(estimator: object) -> bool:
    return isa(estimator, "lightgbm.dask", "DaskLGBMRanker")


class LightGBM(Workload):
    """LightGBM's Dask estimators.

    One training task runs on every worker that holds data, with as many threads as the
    worker has. It copies the worker's partitions into one. Each worker counts classes
    by itself, so a classifier needs rows of every class on every worker. Each worker
    decides about early stopping by its own rows of the eval sets. The fit hangs if
    workers decide differently, so each worker gets all rows of the eval sets.
    """

    profile = BOOSTING
    eval_arguments: tuple[tuple[str, str], ...] = (
        ("eval_sample_weight", "sample_weight"),
        ("eval_init_score", "init_score"),
    )

    def matches(self, estimator: object) -> bool:
        return isa(estimator, "lightgbm.dask") and not _is_ranker(estimator)

    def profile_for(self, estimator: object) -> Profile:
        """Require all classes on each worker for classifiers only."""
        return replace(
            self.profile,
            needs_all_classes=isa(estimator, "lightgbm.dask", "DaskLGBMClassifier"),
            stops_early=_stops_early(estimator),
        )

    def fit_kwargs(self, fit_inputs: FitInputs) -> dict[str, Any]:
        found = given(
            sample_weight=fit_inputs.training.sample_weight,
            init_score=fit_inputs.training.init_score,
            eval_sample_weight=_for_all(fit_inputs, "sample_weight"),
            eval_init_score=_for_all(fit_inputs, "init_score"),
        )
        return found | _eval_sets(fit_inputs)


class Rank(LightGBM):
    """LightGBM's ``DaskLGBMRanker``: rows of a group stay together.

    It takes the sizes of the groups, in the same partitions as X. ``prepare`` makes
    them from ``qid``.
    """

    profile = RANK
    eval_arguments = (*LightGBM.eval_arguments, ("eval_group", "group"))

    def matches(self, estimator: object) -> bool:
        return _is_ranker(estimator)

    def profile_for(self, estimator: object) -> Profile:
        return replace(RANK, stops_early=_stops_early(estimator))

    def fit_kwargs(self, fit_inputs: FitInputs) -> dict[str, Any]:
        groups = given(
            group=fit_inputs.training.group_sizes,
            eval_group=_for_all(fit_inputs, "group_sizes"),
        )
        return super().fit_kwargs(fit_inputs) | groups


def _for_all(fit_inputs: FitInputs, name: str) -> list[Any] | None:
    """Return a companion of every eval set; LightGBM takes it for all sets or none."""
    every = fit_inputs.eval_companion(name) or []
    without = [i for i, x in enumerate(every) if x is None]
    if without:
        has = next(i for i, x in enumerate(every) if x is not None)
        raise ValueError(
            f"LightGBM takes {name} for all eval sets or for none; eval_set[{has}] has "
            f"one and eval_set[{without[0]}] has none; give it for all"
        )
    return every or None


def _eval_sets(fit_inputs: FitInputs) -> dict[str, Any]:
    """Return eval sets; LightGBM 4.7 separates X and y, and deprecates pairs."""
    if not fit_inputs.eval_sets:
        return {}
    if "eval_X" in _fit_parameters(fit_inputs.estimator):
        return {
            "eval_X": tuple(e.X for e in fit_inputs.eval_sets),
            "eval_y": tuple(e.y for e in fit_inputs.eval_sets),
        }
    return {"eval_set": [(e.X, e.y) for e in fit_inputs.eval_sets]}


def _fit_parameters(estimator: Any) -> Collection[str]:
    """Return the parameters of ``fit``, of the installed release if none is given."""
    if estimator is None:
        if find_spec("lightgbm") is None:
            return ()
        estimator = importlib.import_module("lightgbm").DaskLGBMRegressor
    return parameters(estimator.fit)


WORKLOADS: tuple[Workload, ...] = (LightGBM(), Rank())
