"""Inspect estimators by their classes, without importing training libraries.

An estimator is an instance or a class. A class has its default parameters. For a
scikit-learn ``Pipeline`` the last step decides.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any


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


def parameters(function: Callable[..., Any]) -> Mapping[str, inspect.Parameter]:
    """Return the parameters of a function by name."""
    return inspect.signature(function).parameters


def is_fitted(model: object) -> bool:
    """Whether a model is fitted, by the conventions of scikit-learn."""
    told = getattr(model, "__sklearn_is_fitted__", None)
    if told is not None and not isinstance(model, type):
        return bool(told())
    return any(n.endswith("_") and not n.startswith("_") for n in vars(model))


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
