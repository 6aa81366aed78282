"""dask-ml's prediction with a fitted model, which is sent to each worker once.

Dask embeds the arguments of a task in the task. A separate task for the model is sent
to one worker; other workers fetch its result, and Dask recomputes it if that worker is
lost. So a shared model is a ``Delayed`` in graphs. In this process it has the
attributes of the model: dask-ml reads types and classes of the output from them.
"""

from __future__ import annotations

from typing import Any

from dask.delayed import Delayed, delayed

from clustertune.core.profiles import Profile
from clustertune.integrations.libraries.dask_ml import Incremental
from clustertune.integrations.libraries.workload import FitInputs, Workload, is_fitted


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


WORKLOADS: tuple[Workload, ...] = (Predict(),)
