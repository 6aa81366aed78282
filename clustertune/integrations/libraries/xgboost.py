"""XGBoost's Dask estimators.

One training task runs on every worker that holds data, with as many threads as the
worker has.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace
from numbers import Integral
from typing import Any

from clustertune.core.profiles import NOT_NUMBERS, Profile
from clustertune.integrations.libraries.boosting import (
    Attempt,
    Callbacks,
    Checkpoint,
    Continuation,
    hist_memory,
    rounds_before,
    shifted_seed,
)
from clustertune.integrations.libraries.workload import (
    FitInputs,
    Workload,
    given,
    is_below_one,
    isa,
    parameter,
    parameters_of,
)

HIST = Profile(
    name="xgboost",
    title="XGBoost (hist)",
    memory_multiple={4: 1.8, 8: 1.4},
    base_bytes=300 * 2**20,
    random_order=False,
    categories=True,
    category_option="Create the model with `enable_categorical=True`.",
    refuses=NOT_NUMBERS,
    text_labels=False,
    eval_everywhere=True,
    packages=("xgboost", "xgboost-cpu"),
    threads="worker",
    takes=("sample_weight", "base_margin", "eval_set"),
    fit_memory=hist_memory({}),
    source="the source of xgboost 3.2; eval sets measured with 50 dense columns; "
    "a worker with pandas 3.1 and scikit-learn 1.9 after a fit of 1,000 rows: 297 MiB",
)
DMATRIX = replace(
    HIST,
    name="xgboost_dmatrix",
    title="XGBoost (approx, exact, DaskDMatrix)",
    memory_multiple={4: 4.1, 8: 3.1},
    fit_memory=None,
    source="measured with xgboost 3.2, 50 dense columns",
)
RANK = replace(
    HIST,
    name="xgboost_rank",
    title="XGBoost (ranking)",
    groups="together",
    takes=("qid", "base_margin", "eval_set"),
    source="the source of xgboost 3.2, groups in order",
)

SORTING = replace(
    RANK,
    groups="anywhere",
    refuses_arrays="with allow_group_split=False, its default, it takes frames only. "
    "Set allow_group_split=True, which takes Arrays, or give a DataFrame and Series",
)


def _makes_quantiles(estimator: object) -> bool:
    """Return whether the tree method is ``hist``, the default."""
    return parameter(estimator, "tree_method") in {None, "auto", "hist"}


def _for_parameters(profile: Profile, estimator: object) -> Profile:
    """Return the profile with what the class and parameters of the model change."""
    metric = parameter(estimator, "eval_metric")
    metrics = metric if isinstance(metric, list | tuple) else [metric]
    # XGBoost returns the mean of the workers' values, weighted by no rows
    profile = replace(profile, eval_copies=any(map(callable, metrics)))
    if isa(estimator, "xgboost.dask", "DaskXGBClassifier"):
        own = callable(parameter(estimator, "objective"))
        profile = replace(profile, numbered_classes=not own)
    if profile.fit_memory is not None:
        profile = replace(profile, fit_memory=hist_memory(parameters_of(estimator)))
    takes = parameter(estimator, "enable_categorical")
    if takes is None:
        return profile
    if takes:
        return replace(profile, category_option="")
    return replace(profile, refuses=(*profile.refuses, "category"))


#: shares of rows and features, and of trees that dart drops
SHARES = ("subsample", *(f"colsample_by{part}" for part in ("tree", "level", "node")))
DROPS = ("rate_drop", "one_drop")
#: values of gblinear's updater that update weights in any order; None: the default
SHOTGUN = (None, "shotgun")


def _drawing(model: Any, params: Mapping[str, Any]) -> list[str]:
    """Return the names of parameters with which a training draws at random."""
    booster = params.get("booster")
    if booster == "gblinear":  # it has no trees, and ignores their shares
        selector = params.get("feature_selector")
        names = ["feature_selector"] if selector in ("shuffle", "random") else []
    else:
        names = [name for name in SHARES if is_below_one(model, name)]
    if booster == "dart":
        names += [name for name in DROPS if params.get(name)]
    if params.get("lambdarank_pair_method") == "mean":
        names.append("lambdarank_pair_method")
    return names


class Boosting(Continuation):
    """XGBoost's estimators: ``xgb_model`` continues, callbacks see all rounds."""

    callbacks = "xgboost_rounds"

    def refusal(self, model: Any, companions: Collection[str] = ()) -> str:
        import xgboost

        saves = xgboost.callback.TrainingCheckPoint
        text = (
            "another attempt would give the files of its TrainingCheckPoint wrong "
            "rounds. Leave that out of callbacks=, and give checkpoint_path="
        )
        return text * any(isinstance(one, saves) for one in model.callbacks or ())

    def rounds(self, model: Any, fit_kwargs: Mapping[str, Any]) -> int:
        import xgboost

        total = int(model.get_num_boosting_rounds())  # as given: perhaps of NumPy
        return total + rounds_before(fit_kwargs.get("xgb_model"), xgboost.Booster)

    def attempt(
        self,
        model: Any,
        fit_kwargs: Mapping[str, Any],
        callbacks: Callbacks,
        checkpoint: Checkpoint | None,
    ) -> Attempt:
        import xgboost

        total = model.get_num_boosting_rounds()
        if total == 1:  # random forests take no callbacks
            return Attempt(attributes={}, fit_kwargs={})
        own = list(model.callbacks or ())
        if checkpoint is None:
            every = [callbacks.rounds({}), *own]
            return Attempt(attributes={"callbacks": every}, fit_kwargs={})
        history = checkpoint.history
        if rounds := model.early_stopping_rounds:
            own.append(xgboost.callback.EarlyStopping(rounds=rounds))
        before = rounds_before(fit_kwargs.get("xgb_model"), xgboost.Booster)
        done = checkpoint.rounds - before
        continued = [callbacks.continued(one, before, done, history) for one in own]
        booster = xgboost.Booster(model_file=bytearray(checkpoint.model))
        attributes = {
            "n_estimators": total - done,
            "early_stopping_rounds": None,
            "callbacks": [callbacks.rounds(history), *continued],
        }
        if self.difference(model):
            params = model.get_params()  # XGBoost takes its own name first
            name = "random_state" if params.get("seed") is None else "seed"
            attributes[name] = shifted_seed(params[name], done)
        return Attempt(attributes=attributes, fit_kwargs={"xgb_model": booster})

    def finish(self, model: Any, checkpoint: Checkpoint) -> None:
        for data, metrics in getattr(model, "evals_result_", {}).items():
            for metric, values in metrics.items():
                values[:0] = checkpoint.history.get(data, {}).get(metric, ())

    def difference(self, model: Any, *, continued: bool = True) -> str:
        params = model.get_params()
        if params.get("booster") == "gblinear" and params.get("updater") in SHOTGUN:
            return 'updater="shotgun" updates weights in an order that changes'
        names = _drawing(model, params)
        if names and not isinstance(model.random_state, Integral | None):
            return f"{names[0]}= draws at random, and random_state= has no fixed seed"
        if names and continued:
            return f"{names[0]}= draws at random, and its draws were continued"
        if continued and params.get("lambdarank_unbiased"):
            return "lambdarank_unbiased= begins to estimate again"
        return ""


class XGBoost(Workload):
    """XGBoost's Dask estimators with ``tree_method="hist"``, their default.

    One training task runs on every worker that holds data, with as many threads as the
    worker has. It makes a quantile matrix of the worker's partitions. Core ``train``
    with a ``DaskQuantileDMatrix`` works in the same way: use ``estimator="xgboost"``.
    The score of a custom metric (``eval_metric=`` is a function) is the mean of the
    workers' scores, so each worker gets all rows of the eval sets. The bounds of
    labels for ``survival:aft`` are two collections:
    ``X, lower, upper = clustertune.prepare(client, X, lower, upper)``.
    """

    profile = HIST
    makes_quantiles = True
    continuation = Boosting()
    thread_parameters = ("n_jobs", "nthread")
    #: arguments of ``fit`` with one companion per eval set, and the companion's name
    eval_arguments: tuple[tuple[str, str], ...] = (
        ("sample_weight_eval_set", "sample_weight"),
        ("base_margin_eval_set", "base_margin"),
    )

    def matches(self, estimator: object) -> bool:
        plain = isa(estimator, "xgboost.dask", "DaskScikitLearnBase")
        plain &= not isa(estimator, "xgboost.dask", "DaskXGBRanker")
        return plain and _makes_quantiles(estimator) is self.makes_quantiles

    def profile_for(self, estimator: object) -> Profile:
        """Know its memory, and whether it takes categories (``enable_categorical``)."""
        return _for_parameters(self.profile, estimator)

    def can_use_host(self, params: Mapping[str, Any]) -> bool:
        """Return whether it trains on CPUs, and no number of threads is given."""
        on_cpu = params.get("device") in {None, "cpu"}
        on_cpu &= not str(params.get("tree_method")).startswith("gpu")
        return on_cpu and super().can_use_host(params)

    def fit_kwargs(self, fit_inputs: FitInputs) -> dict[str, Any]:
        return given(
            sample_weight=fit_inputs.training.sample_weight,
            base_margin=fit_inputs.training.base_margin,
            eval_set=[(e.X, e.y) for e in fit_inputs.eval_sets] or None,
            **{
                name: fit_inputs.eval_companion(companion)
                for name, companion in self.eval_arguments
            },
        )


class DMatrix(XGBoost):
    """XGBoost with a plain matrix: ``tree_method`` ``"approx"`` or ``"exact"``.

    Core ``train`` with a ``DaskDMatrix`` works in the same way, with any tree method:
    use ``estimator="xgboost_dmatrix"``. A worker copies all its partitions into one
    before it makes the matrix. ``hist`` needs half of the memory, if the model allows
    it: use the estimators' default, or ``DaskQuantileDMatrix`` instead of
    ``DaskDMatrix``.
    """

    profile = DMATRIX
    makes_quantiles = False


class Rank(XGBoost):
    """XGBoost's ``DaskXGBRanker``.

    By default the ranker sorts all data by group (``qid``) across the cluster, in every
    fit, and makes one partition of each group. It takes frames then, and ``prepare``
    only places them; rows without a group are an error. With ``allow_group_split=True``
    each worker sorts the rows that it holds, so ``prepare`` keeps the rows of a group
    on one worker, and groups that come back after another one are an error. That fit
    copies less, and takes Arrays too.
    XGBoost does not take weights of rows together with groups.
    """

    profile = RANK
    eval_arguments = (*XGBoost.eval_arguments, ("eval_qid", "qid"))

    def matches(self, estimator: object) -> bool:
        return isa(estimator, "xgboost.dask", "DaskXGBRanker")

    def profile_for(self, estimator: object) -> Profile:
        """Choose by ``allow_group_split`` and by the tree method."""
        sorts = parameter(estimator, "allow_group_split") is False
        found = SORTING if sorts else RANK
        found = _for_parameters(found, estimator)
        if _makes_quantiles(estimator):
            return found
        return replace(
            found,
            memory_multiple=DMATRIX.memory_multiple,
            fit_memory=None,
            source=DMATRIX.source,
        )

    def fit_kwargs(self, fit_inputs: FitInputs) -> dict[str, Any]:
        return super().fit_kwargs(fit_inputs) | given(qid=fit_inputs.training.qid)


WORKLOADS: tuple[Workload, ...] = (XGBoost(), DMatrix(), Rank())
