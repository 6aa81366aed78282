"""What an estimator is, told from its class: no training library is imported for it.

An estimator is an instance or a class; a class counts with its default parameters. Of a
scikit-learn ``Pipeline`` the last step decides.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any


def last_step(estimator: object) -> tuple[str, object]:
    """What trains, and the prefix that its arguments have in a pipeline.

    Of anything but a pipeline it is the estimator itself, without a prefix.
    """
    prefix = ""
    while isa(estimator, "sklearn.pipeline", "Pipeline"):
        steps = getattr(estimator, "steps", None)
        if not steps:
            break  # the class, which has none
        name, estimator = steps[-1]
        prefix += f"{name}__"
    return prefix, estimator


def classes(estimator: object) -> tuple[type, ...]:
    """Its class and all that this is made of."""
    kind = estimator if isinstance(estimator, type) else type(estimator)
    return inspect.getmro(kind)


def isa(estimator: object, module: str, *names: str) -> bool:
    """Whether it is of a class from this module or one below it, with such a name.

    A user's own subclass counts. Without names any class of the module does.
    """
    return any(
        f"{c.__module__}.".startswith(f"{module}.")
        and (not names or c.__name__ in names)
        for c in classes(estimator)
    )


def parameter(estimator: object, name: str) -> Any:
    """A parameter of it; of a class the default; None where it has none."""
    if not isinstance(estimator, type):
        return getattr(estimator, name, None)
    for kind in classes(estimator):
        made = vars(kind).get("__init__")
        own = parameters(made).get(name) if made is not None else None
        if own is not None:
            return None if own.default is own.empty else own.default
    return None


def parameters(function: Callable[..., Any]) -> Mapping[str, inspect.Parameter]:
    """What a function takes by name."""
    return inspect.signature(function).parameters


def is_fitted(model: object) -> bool:
    """Whether it was fitted, by scikit-learn's convention."""
    told = getattr(model, "__sklearn_is_fitted__", None)
    if told is not None and not isinstance(model, type):
        return bool(told())
    return any(n.endswith("_") and not n.startswith("_") for n in vars(model))


def uses_dask(estimator: object) -> bool:
    """Whether it is of dask-ml or dask-glm, which fit Dask collections.

    Its module decides: the class may have the name of one of scikit-learn's.
    """
    modules = ("dask_ml", "dask_glm")
    return hasattr(estimator, "fit") and any(isa(estimator, m) for m in modules)


def counterpart(estimator: object) -> str:
    """Where Dask has what a single-machine estimator does; or ""."""
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
    "XGBClassifier",
    "XGBRegressor",
    "XGBRanker",
    "XGBRFClassifier",
    "XGBRFRegressor",
)
_LIGHTGBM = ("LGBMClassifier", "LGBMRegressor", "LGBMRanker")
_DASK_ML = {
    "KMeans": "dask_ml.cluster.KMeans",
    "LogisticRegression": "dask_ml.linear_model.LogisticRegression",
    "LinearRegression": "dask_ml.linear_model.LinearRegression",
    "PoissonRegressor": "dask_ml.linear_model.PoissonRegression",
}
