"""A fitted model that is sent to each worker once, and not with each piece of data.

Dask puts arguments of a task into the task. What is a task of its own is sent to the
worker that runs it; the others have it from there, and if that worker is lost it runs
again. So a shared model is Dask's ``Delayed``, for a graph; and for whoever asks it in
this process, as dask-ml does for types and classes of the output, it is the model.
"""

from __future__ import annotations

from typing import Any

from dask.delayed import Delayed, delayed


class SharedModel(Delayed):
    """A ``Delayed`` of a model that has the model's attributes here and now."""

    __slots__ = ("_model",)

    def __init__(self, model: Any) -> None:
        # its containers, if it is one, are the model's affair
        task = delayed(model, traverse=False)
        super().__init__(task.key, task.dask)  # type: ignore[no-untyped-call]
        self._model = model

    def __getattr__(self, name: str) -> Any:
        return getattr(self._model, name)

    def __reduce__(self) -> Any:
        # other processes need no clustertune
        return Delayed, (self.key, self.dask)


def share(model: Any) -> Any:
    """Share a fitted model with workers.

    Parameters
    ----------
    model
        Anything that predicts or transforms, fitted.

    Returns
    -------
    SharedModel
        For use in place of the model, as in ``ParallelPostFit(share(model))`` or
        ``X.map_blocks(predict, model=share(model))``.
    """
    own: dict[str, Any] = {"__slots__": ()}
    if hasattr(type(model), "score"):
        own["score"] = _Score(model)
    return type("SharedModel", (SharedModel,), own)(model)


class _Score:
    """The model's ``score``, from which dask-ml learns on the class what it is."""

    def __init__(self, model: Any) -> None:
        self._model = model

    def __get__(self, shared: Any, owner: type) -> Any:
        return (type(self._model) if shared is None else self._model).score
