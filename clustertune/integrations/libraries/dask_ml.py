"""dask-ml's and dask-glm's estimators and wrappers, and searches for parameters."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from dask.delayed import Delayed, delayed

from clustertune.core.profiles import NOT_NUMBERS, Profile
from clustertune.integrations.libraries.workload import (
    FitInputs,
    Workload,
    is_fitted,
    parameter,
)

SEARCH = (
    "a search needs its whole data in one object on each worker; fit it with NumPy or "
    "pandas data in a block of clustertune.training.joblib_backend(client, X, y)"
)
INCREMENTAL_SEARCH = (
    "dask-ml's incremental searches fail with Dask 2025.3 and later "
    "(dask/dask-ml#1016); search with scikit-learn under joblib's Dask backend, or "
    "train one model with dask_ml.wrappers.Incremental"
)
#: modules and classes of searches, and why no layout of the data helps them
REFUSED: tuple[tuple[str, str, str], ...] = (
    ("sklearn.model_selection", "BaseSearchCV", SEARCH),
    ("dask_ml.model_selection", "DaskBaseSearchCV", SEARCH),
    ("dask_ml.model_selection", "BaseIncrementalSearchCV", INCREMENTAL_SEARCH),
)


class Incremental(Workload):
    """dask-ml's ``Incremental``: ``partial_fit`` of one partition after another.

    Only one core of the cluster works. The model moves to the worker of the next
    partition, and other workers only hold data. So partitions are mini-batches in
    random order, and more workers do not make the fit faster. Each partition is read
    once.
    """

    kinds = (("dask_ml.wrappers", "Incremental"),)
    profile = Profile(
        name="incremental",
        title="dask-ml Incremental",
        memory_multiple={4: 1.3, 8: 1.3},
        base_bytes=290 * 2**20,
        persist=False,
        keeps_partitions=True,  # each is a mini-batch
        max_partition_bytes=100 * 2**20,
        random_order=True,
        packages=("dask-ml",),
        takes=(),
        source="the data and a copy of one partition of four; "
        "measured with dask-ml 2025.1",
    )


class KMeans(Workload):
    """dask-ml's ``KMeans``.

    All data is read 10 to 300 times: to find NaN, to choose the first centers, and once
    in every step. So it is loaded before. Centers are summed over one partition after
    another, so there are few partitions.
    """

    kinds = (("dask_ml.cluster", "KMeans"),)
    profile = Profile(
        name="kmeans",
        title="dask-ml KMeans",
        memory_multiple={4: 2.1, 8: 1.1},
        partition_multiple={4: 2.1, 8: 0.1},
        base_bytes=382 * 2**20,
        partitions_per_thread=2,
        max_partitions_per_thread=16,
        random_order=False,
        kinds=("array",),
        refuses=(*NOT_NUMBERS, "category"),
        packages=("dask-ml",),
        takes=(),
        source="measured with dask-ml 2025.1, 8 centres, 1, 2, 8 partitions per thread",
    )


class Gradients(Workload):
    """Linear models of dask-ml and dask-glm, with any solver except ``admm``.

    The solvers ``"lbfgs"``, ``"newton"``, ``"gradient_descent"`` and
    ``"proximal_grad"`` read all data in every iteration, in many short tasks, and
    normalize it each time. So the data is loaded before, and there are as few
    partitions as threads. ``"lbfgs"`` of dask-glm 0.4.0 fails with SciPy 1.18: it
    passes an argument that SciPy removed.
    """

    kinds = (("dask_ml.linear_model", "_GLM"), ("dask_glm.estimators", "_GLM"))
    uses_admm = False
    profile = Profile(
        name="glm",
        title="linear models (dask-ml, dask-glm)",
        memory_multiple={4: 5.0, 8: 3.0},
        partition_multiple={4: 2.0, 8: 1.0},
        base_bytes=152 * 2**20,
        partitions_per_thread=1,
        max_partitions_per_thread=4,
        max_partition_bytes=2**30,
        random_order=False,
        kinds=("array",),
        refuses=(*NOT_NUMBERS, "category"),
        packages=("dask-glm",),
        takes=(),
        source="measured with dask-glm 0.4, newton, 1 and 4 partitions per thread; "
        "others between 17 % less (proximal gradient) and 8 % more (gradient descent)",
    )

    def matches(self, estimator: object) -> bool:
        uses_admm = bool(parameter(estimator, "solver") == "admm")
        return super().matches(estimator) and uses_admm is self.uses_admm


class Admm(Gradients):
    """Linear models of dask-ml and dask-glm with ``admm``, their default solver.

    A long task runs for every partition in every iteration. The penalty is divided by
    the number of partitions, so the coefficients depend on it. That number is kept
    between runs.
    """

    uses_admm = True
    profile = replace(
        Gradients.profile,
        name="glm_admm",
        title="linear models by admm (dask-ml, dask-glm)",
        keeps_partitions=True,
        memory_multiple={4: 4.8, 8: 2.9},
        partition_multiple={4: 2.8, 8: 1.35},
        base_bytes=172 * 2**20,
        source="measured with dask-glm 0.4, 1, 4 and 16 partitions a thread",
    )


# --- prediction -----------------------------------------------------------------------
# Dask embeds the arguments of a task in the task. A separate task for the model is sent
# to one worker; other workers fetch its result, and Dask recomputes it if that worker
# is lost. So a shared model is a ``Delayed`` in graphs. In this process it has the
# attributes of the model: dask-ml reads types and classes of the output from them.


class Predict(Workload):
    """dask-ml's ``ParallelPostFit``: a fitted model predicts or transforms partitions.

    The wrapper puts the model into the task of every partition: 64 partitions and a
    model of 20 MB caused 1.3 GB of traffic. ``estimator_params`` has the model in a
    form that travels to each worker once:
    ``model.set_params(**prepared.estimator_params)``.
    """

    kinds = (("dask_ml.wrappers", "ParallelPostFit"),)
    unfit = (
        "it fits its estimator in this process, which would fetch all data. Fit it "
        "with a sample, as a NumPy array or pandas frame: model.fit(X_sample, "
        "y_sample). Then prepare the data to predict: clustertune.prepare(client, X, "
        "estimator=model)"
    )
    profile = Profile(
        name="predict",
        title="dask-ml ParallelPostFit",
        memory_multiple={4: 1.45, 8: 1.4},
        partition_multiple={4: 1.7, 8: 1.6},
        base_bytes=300 * 2**20,
        persist=False,
        max_partitions_per_thread=32,
        max_partition_bytes=2**28,
        random_order=False,
        packages=("dask-ml",),
        takes=(),
        source="measured with dask-ml 2025.1 and a forest, 1, 4 and 16 partitions "
        "a thread; the model is extra",
    )

    def matches(self, estimator: object) -> bool:
        """Exclude the subclass that has another workload."""
        return super().matches(estimator) and not Incremental().matches(estimator)

    def estimator_params(self, fit_inputs: FitInputs) -> dict[str, Any]:
        """Return the shared model, if it is fitted."""
        wrapper: Any = fit_inputs.estimator
        model = getattr(wrapper, "estimator", None)
        if isinstance(wrapper, type) or model is None or not is_fitted(model):
            return {}
        metas = _output_metas(wrapper, model, fit_inputs.training.X)
        return {"estimator": share(model), **metas}


def _output_metas(wrapper: Any, model: Any, X: Any) -> dict[str, Any]:
    """Return the metadata of results for a frame; Dask infers it from plain models."""
    import dask.dataframe as dd
    from dask.dataframe.dispatch import make_meta, meta_nonempty

    if not isinstance(X, dd.DataFrame):
        return {}
    some = meta_nonempty(make_meta(X))
    return {
        f"{method}_meta": getattr(model, method)(some)
        for method in ("predict", "predict_proba", "transform")
        if hasattr(model, method) and getattr(wrapper, f"{method}_meta", None) is None
    }


class SharedModel(Delayed):
    """A ``Delayed`` of a model that has the attributes of the model."""

    __slots__ = ("_model",)

    def __init__(self, model: Any) -> None:
        # Dask must not replace containers in the model
        task = delayed(model, traverse=False)
        super().__init__(task.key, task.dask)  # type: ignore[no-untyped-call]
        self._model = model

    def __getattr__(self, name: str) -> Any:
        return getattr(self._model, name)

    def __reduce__(self) -> Any:
        # unpickling must not need clustertune
        return Delayed, (self.key, self.dask)


def share(model: Any) -> Any:
    """Share a fitted model with workers.

    Parameters
    ----------
    model
        A fitted model that predicts or transforms.

    Returns
    -------
    SharedModel
        Replaces the model, as in ``ParallelPostFit(share(model))`` or
        ``X.map_blocks(predict, model=share(model))``.
    """
    own: dict[str, Any] = {"__slots__": ()}
    if hasattr(type(model), "score"):
        own["score"] = _Score(model)
    return type("SharedModel", (SharedModel,), own)(model)


class _Score:
    """The model's ``score``; dask-ml inspects it on the class."""

    def __init__(self, model: Any) -> None:
        self._model = model

    def __get__(self, shared: Any, owner: type) -> Any:
        return (type(self._model) if shared is None else self._model).score


WORKLOADS: tuple[Workload, ...] = (
    Admm(),
    Gradients(),
    Incremental(),
    KMeans(),
    Predict(),
)
