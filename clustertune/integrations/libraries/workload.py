"""Define workloads: the needs of a training library and the arguments of its fit.

An estimator is an instance or a class. A class has its default parameters. For a
scikit-learn ``Pipeline`` the last step decides. Estimators are inspected by their
classes, without importing training libraries.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from numbers import Real
from typing import TYPE_CHECKING, Any

from clustertune.core.profiles import Profile

if TYPE_CHECKING:
    from clustertune.integrations.libraries.boosting import Continuation


@dataclass(frozen=True, kw_only=True)
class Rows:
    """Row-aligned collections that ``prepare`` returns; None means not given."""

    X: Any
    y: Any = None
    sample_weight: Any = None
    qid: Any = None
    base_margin: Any = None
    init_score: Any = None
    #: sizes of the groups of qid, with the same partitions
    group_sizes: Any = None


@dataclass(frozen=True, kw_only=True)
class FitInputs:
    """The prepared data, as workloads see it."""

    training: Rows
    eval_sets: tuple[Rows, ...] = ()
    estimator: object = None  # None: the workload was chosen by name
    #: threads of a training task that uses a whole host; None: those of its worker
    n_threads: int | None = None

    def eval_companion(self, name: str) -> list[Any] | None:
        """Return this companion of every eval set; None if no eval set has it."""
        every = [getattr(rows, name) for rows in self.eval_sets]
        return None if all(x is None for x in every) else every


class Workload:
    """One way to train. The docstring of a subclass is its page in the docs."""

    profile: Profile
    #: classes of its estimators: the module, and names in it or none for any
    kinds: tuple[tuple[str, ...], ...] = ()
    #: why ``clustertune.fit`` refuses its estimators, and what to do; "": it fits them
    unfit: str = ""
    #: names of the parameter with the threads of a training task; ``fit`` sets the
    #: first if none is set. Empty: a task can use the threads of its worker only
    thread_parameters: tuple[str, ...] = ()
    #: how its training continues from a checkpoint; None: it begins again
    continuation: Continuation | None = None

    def matches(self, estimator: object) -> bool:
        """Return whether an estimator, an instance or a class, is of this workload."""
        return any(isa(estimator, *kind) for kind in self.kinds)

    def profile_for(self, estimator: object) -> Profile:
        """Return the profile; parameters of the estimator may change it."""
        return self.profile

    def fit_kwargs(self, fit_inputs: FitInputs) -> dict[str, Any]:
        """Return arguments for the estimator's ``fit`` beyond X and y."""
        return {}

    def can_use_host(self, params: Mapping[str, Any]) -> bool:
        """Return whether a training task may use all threads of its host.

        ``params`` are the parameters of the estimator. Only for workloads with
        ``thread_parameters``.
        """
        return all(params.get(name) is None for name in self.thread_parameters)

    def estimator_params(self, fit_inputs: FitInputs) -> dict[str, Any]:
        """Return parameters that the estimator needs for this data."""
        n_threads = fit_inputs.n_threads
        return {} if n_threads is None else {self.thread_parameters[0]: n_threads}


def given(**arguments: Any) -> dict[str, Any]:
    """Return the arguments that are not None."""
    return {name: value for name, value in arguments.items() if value is not None}


# --- estimators -----------------------------------------------------------------------


def last_step(estimator: object) -> tuple[str, object]:
    """Return the prefix of the arguments of a pipeline's last step, and that step.

    For other estimators the prefix is empty.
    """
    prefix = ""
    while isa(estimator, "sklearn.pipeline", "Pipeline"):
        steps = getattr(estimator, "steps", None)
        if not steps:
            break  # the class of pipelines has no steps
        name, estimator = steps[-1]
        prefix += f"{name}__"
    return prefix, estimator


def transforms(estimator: object) -> bool:
    """Return whether steps of a pipeline come before the last one."""
    prefix, _ = last_step(estimator)
    return bool(prefix) and len(getattr(estimator, "steps", ())) > 1


def classes(estimator: object) -> tuple[type, ...]:
    """Return the class of an estimator and its base classes."""
    kind = estimator if isinstance(estimator, type) else type(estimator)
    return inspect.getmro(kind)


def isa(estimator: object, module: str, *names: str) -> bool:
    """Whether its class, or a base class, is from this module or a submodule.

    The class must have one of the names, if there are any.
    """
    return any(
        f"{c.__module__}.".startswith(f"{module}.")
        and (not names or c.__name__ in names)
        for c in classes(estimator)
    )


def parameter(estimator: object, name: str) -> Any:
    """Return a parameter of an instance, or the default of a class; else None."""
    if not isinstance(estimator, type):
        return getattr(estimator, name, None)
    for kind in classes(estimator):
        made = vars(kind).get("__init__")
        own = parameters(made).get(name) if made is not None else None
        if own is not None:
            return None if own.default is own.empty else own.default
    return None


def is_below_one(estimator: object, name: str) -> bool:
    """Return whether a parameter is a share below 1, such as ``subsample=0.5``."""
    value = parameter(estimator, name)
    return isinstance(value, Real) and value < 1


def parameters(function: Callable[..., Any]) -> Mapping[str, inspect.Parameter]:
    """Return the parameters of a function by name."""
    return inspect.signature(function).parameters


def parameters_of(estimator: Any) -> dict[str, Any]:
    """Return the parameters of an instance by name; empty for a class."""
    if isinstance(estimator, type) or not hasattr(estimator, "get_params"):
        return {}
    return dict(estimator.get_params(deep=False))


def assign(estimator: Any, values: Mapping[str, Any]) -> dict[str, Any]:
    """Set parameters of an estimator without changing a model that it has fitted.

    XGBoost's ``set_params`` writes all parameters into a fitted booster, among them
    lists that it cannot read again. XGBoost and LightGBM keep some parameters in a
    dictionary, and take them instead of attributes. Returns the former values.
    """
    is_xgboost = isa(estimator, "xgboost")
    kept = getattr(estimator, "kwargs" if is_xgboost else "_other_params", None) or {}
    # XGBoost's ``get_params`` replaces a generator by a number that it draws
    former = {n: kept.get(n, getattr(estimator, n, None)) for n in values}
    own = parameters(type(estimator).__init__).keys() - kept
    for name, value in values.items():
        if is_xgboost and name in kept:
            kept[name] = value
        elif is_xgboost or name in own:
            setattr(estimator, name, value)
        else:
            estimator.set_params(**{name: value})
    return former


def uses_dask(estimator: object) -> bool:
    """Whether an estimator is from dask-ml or dask-glm, which fit Dask collections.

    The module decides, since names of classes may be those of scikit-learn.
    """
    modules = ("dask_ml", "dask_glm")
    return hasattr(estimator, "fit") and any(isa(estimator, m) for m in modules)


def counterpart(estimator: object) -> str:
    """Return the Dask class that replaces a single-machine estimator; or ""."""
    for kind in classes(estimator):
        root = (kind.__module__ or "").partition(".")[0]
        if root == "xgboost" and kind.__name__ in _XGBOOST:
            return f"xgboost.dask.Dask{kind.__name__}"
        if root == "lightgbm" and kind.__name__ in _LIGHTGBM:
            return f"lightgbm.Dask{kind.__name__}"
        if root == "sklearn" and kind.__name__ in _DASK_ML:
            return _DASK_ML[kind.__name__]
    if not isa(estimator, "sklearn.base", "BaseEstimator"):
        return ""
    if hasattr(estimator, "partial_fit"):
        return "dask_ml.wrappers.Incremental"
    return "dask_ml.wrappers.ParallelPostFit, which predicts with Dask what was fitted"


_XGBOOST = (
    *("XGBClassifier", "XGBRegressor", "XGBRanker"),
    *("XGBRFClassifier", "XGBRFRegressor"),
)
_LIGHTGBM = ("LGBMClassifier", "LGBMRegressor", "LGBMRanker")
_DASK_ML = {
    "KMeans": "dask_ml.cluster.KMeans",
    "LogisticRegression": "dask_ml.linear_model.LogisticRegression",
    "LinearRegression": "dask_ml.linear_model.LinearRegression",
    "PoissonRegressor": "dask_ml.linear_model.PoissonRegression",
}
