"""Send a fitted model to each worker once, instead of once per partition.

Dask embeds the arguments of a task in the task. A separate task for the model is sent
to one worker; other workers fetch its result, and Dask recomputes it if that worker is
lost. So a shared model is a ``Delayed`` in graphs. In this process it has the
attributes of the model: dask-ml reads types and classes of the output from them.
"""

from __future__ import annotations

from typing import Any

from dask.delayed import Delayed, delayed


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
