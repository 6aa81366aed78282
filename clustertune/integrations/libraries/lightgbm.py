"""LightGBM's Dask estimators."""

from __future__ import annotations

import importlib
from collections.abc import Collection, Mapping
from dataclasses import replace
from importlib.util import find_spec
from numbers import Integral
from typing import Any

from clustertune.core.profiles import NOT_NUMBERS, Profile
from clustertune.integrations.libraries.boosting import (
    Attempt,
    Callbacks,
    Checkpoint,
    Continuation,
    pool_memory,
    rounds_before,
)
from clustertune.integrations.libraries.workload import (
    FitInputs,
    Workload,
    given,
    isa,
    parameters,
    parameters_of,
)

BOOSTING = Profile(
    name="lightgbm",
    title="LightGBM",
    memory_multiple={4: 2.7, 8: 2.4},
    base_bytes=270 * 2**20,
    max_partitions_per_thread=64,
    min_rows=2,  # scikit-learn's validation on each worker refuses a single row
    needs_all_classes=None,  # the name does not distinguish classifiers
    eval_copies=True,
    random_order=True,
    refuses=NOT_NUMBERS,
    categories=True,
    packages=("lightgbm",),
    threads="worker",
    takes=("sample_weight", "init_score", "eval_set"),
    fit_memory=pool_memory({}),
    source="the source of lightgbm 4.6; eval sets measured with 50 columns; a worker "
    "after a fit of 2,000 rows: 233 MiB with arrays, 305 MiB with pandas 3.1",
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


def _stops_early(estimator: Any) -> bool:
    """Return whether a parameter enables it; a callback is not known before the fit."""
    given = {} if isinstance(estimator, type) else estimator.get_params()
    return any(given.get(name) or 0 for name in STOPPING)


#: names of the parameter of LightGBM that stops early
STOPPING = (
    *("early_stopping_round", "early_stopping_rounds", "early_stopping"),
    "n_iter_no_change",
)
#: other names of ``n_estimators``, which LightGBM takes first
ROUNDS = (
    *("num_iterations", "num_iteration", "n_iter", "num_tree", "num_trees"),
    *("num_round", "num_rounds", "nrounds", "num_boost_round", "max_iter"),
)
BOOSTING_TYPES = ("boosting_type", "boosting", "boost")
#: other names of ``random_state``, which LightGBM takes first
SEEDS = ("seed", "random_seed")
#: classes of LightGBM's own callbacks that depend on the first round
COUNTING = ("_EarlyStoppingCallback", "_ResetParameterCallback")


class Boosting(Continuation):
    """LightGBM's estimators: ``init_model`` continues; early stopping is replayed."""

    callbacks = "lightgbm_rounds"

    def refusal(self, model: Any, companions: Collection[str] = ()) -> str:
        if "init_score" in companions:
            return (
                "LightGBM cannot continue from a checkpoint with init_score=, which "
                "the checkpoint would replace. Use max_failures=0 without "
                "checkpoint_path"
            )
        kinds = {model.get_params().get(name) for name in BOOSTING_TYPES}
        for kind in sorted(kinds & {"dart", "rf", "random_forest"}):
            why = "changes earlier trees" if kind == "dart" else "averages its trees"
            return (
                f'boosting_type="{kind}" {why}, so LightGBM cannot continue from a '
                'checkpoint. Use "gbdt" or "goss", or max_failures=0'
            )
        return ""

    def rounds(self, model: Any, fit_kwargs: Mapping[str, Any]) -> int:
        import lightgbm

        params = model.get_params()
        given = [params[name] for name in ROUNDS if params.get(name) is not None]
        total = int([*given, params["n_estimators"]][0])
        return total + rounds_before(fit_kwargs.get("init_model"), lightgbm.Booster)

    def attempt(
        self,
        model: Any,
        fit_kwargs: Mapping[str, Any],
        callbacks: Callbacks,
        checkpoint: Checkpoint | None,
    ) -> Attempt:
        import lightgbm

        last = self.rounds(model, fit_kwargs)
        own = list(fit_kwargs.get("callbacks") or ())
        if checkpoint is None:
            every = [*own, callbacks.rounds([])]
            return Attempt(attributes={}, fit_kwargs={"callbacks": every})
        params = model.get_params()
        stops = [n for n in STOPPING if params.get(n)]
        if stops:
            stopping = lightgbm.early_stopping(
                params[stops[0]],
                first_metric_only=bool(params.get("first_metric_only")),
                verbose=False,
                min_delta=params.get("early_stopping_min_delta", 0.0),
            )
            own.append(stopping)
        history = checkpoint.history
        before = rounds_before(fit_kwargs.get("init_model"), lightgbm.Booster)
        every = [
            callbacks.continued(one, before, history)
            if type(one).__name__ in COUNTING
            else one
            for one in own
        ]
        every.append(callbacks.rounds(history))
        booster = lightgbm.Booster(model_str=checkpoint.model.decode())
        attributes = dict.fromkeys(stops, None)
        names = ["n_estimators", *(n for n in ROUNDS if params.get(n) is not None)]
        attributes |= dict.fromkeys(names, last - checkpoint.rounds)
        # with the same seed it would draw the rows of the first rounds again
        given = (n for n in SEEDS if params.get(n) is not None)
        name = next(given, "random_state")
        own_seed = int(params[name]) if isinstance(params[name], Integral) else 0
        attributes[name] = own_seed + checkpoint.rounds
        return Attempt(
            attributes=attributes,
            fit_kwargs={"callbacks": every, "init_model": booster},
        )

    def finish(self, model: Any, checkpoint: Checkpoint) -> None:
        for scores in reversed(checkpoint.history):
            for data, metric, value, _ in scores:
                known = model.evals_result_.get(data, {}).get(metric)
                if known is not None:
                    known.insert(0, value)

    def difference(self, model: Any, *, continued: bool = True) -> str:
        text = "LightGBM adds in the order of its workers, which restarts may change"
        return f"{text}, and it has another seed" if continued else text


class LightGBM(Workload):
    """LightGBM's Dask estimators.

    One training task runs on every worker that holds data, with as many threads as the
    worker has. It copies the worker's partitions into one. Each worker counts classes
    by itself, so a classifier needs rows of every class on every worker. Each worker
    decides about early stopping by its own rows of the eval sets. The fit hangs if
    workers decide differently, so each worker gets all rows of the eval sets.
    """

    kinds: tuple[tuple[str, ...], ...] = (
        ("lightgbm.dask", "DaskLGBMClassifier", "DaskLGBMRegressor"),
    )
    profile = BOOSTING
    continuation = Boosting()

    def profile_for(self, estimator: object) -> Profile:
        """Require all classes on each worker for classifiers only."""
        return replace(
            self.profile,
            needs_all_classes=isa(estimator, "lightgbm.dask", "DaskLGBMClassifier"),
            stops_early=_stops_early(estimator),
            fit_memory=pool_memory(parameters_of(estimator)),
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

    kinds = (("lightgbm.dask", "DaskLGBMRanker"),)
    profile = RANK

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
