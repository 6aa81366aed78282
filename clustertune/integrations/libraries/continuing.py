"""How a library continues a training from a checkpoint.

A :class:`Continuation` makes the attributes and arguments of one attempt, whose
callbacks report rounds and send checkpoints, and repairs the model after the last one.
Each library has one; without it a training begins again.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from os import PathLike
from typing import Any, Protocol


@dataclass(frozen=True, slots=True, kw_only=True)
class Checkpoint:
    """A model of the first rounds, and the scores of these rounds."""

    rounds: int  # of the whole training
    model: bytes = field(repr=False)
    history: Any = field(repr=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class Attempt:
    """One attempt to train: what to set on the model, and to give to its ``fit``."""

    attributes: Mapping[str, Any]  # set during the attempt only
    fit_kwargs: Mapping[str, Any]


class Callbacks(Protocol):
    """Makes callbacks for the training tasks of one attempt."""

    def rounds(self, history: Any) -> Any:
        """Return the callback that reports rounds, and sends checkpoints."""

    def continued(self, inner: Any, *arguments: Any) -> Any:
        """Return another callback, which gets the rounds of the whole training."""


class Continuation(ABC):
    """How one library reports rounds, and continues from a checkpoint."""

    #: the module in ``remote/worker`` with the callbacks of this library
    callbacks: str

    def refusal(self, model: Any, companions: Collection[str] = ()) -> str:
        """Return why a training of this model cannot be continued; or "".

        ``companions`` are names of data that the fit gets with X and y.
        """
        return ""

    @abstractmethod
    def rounds(self, model: Any, fit_kwargs: Mapping[str, Any]) -> int:
        """Return the number of rounds after the training, with those before it."""

    @abstractmethod
    def attempt(
        self,
        model: Any,
        fit_kwargs: Mapping[str, Any],
        callbacks: Callbacks,
        checkpoint: Checkpoint | None,
    ) -> Attempt:
        """Return one attempt, from the start or from a checkpoint."""

    @abstractmethod
    def finish(self, model: Any, checkpoint: Checkpoint) -> None:
        """Give a model that was continued the history of its whole training."""

    @abstractmethod
    def difference(self, model: Any, *, continued: bool = True) -> str:
        """Return why a model may differ with the same placement; or "".

        It was ``continued`` from a checkpoint, or its training began again.
        """


History = Mapping[str, Mapping[str, Sequence[Any]]]
"""Scores by data set and metric, in the order of rounds."""


def joined(before: History, after: History) -> dict[str, dict[str, list[Any]]]:
    """Return the history of a training from its parts before and after a break."""
    return {
        data: {
            metric: [*before.get(data, {}).get(metric, ()), *values]
            for metric, values in metrics.items()
        }
        for data, metrics in after.items()
    }


def rounds_before(model: Any, load: Callable[..., Any]) -> int:
    """Return the rounds of a model that the caller continues.

    ``load`` is the library's class of boosters, which reads a file.
    """
    if model is None:
        return 0
    booster = model
    if isinstance(model, str | PathLike):
        booster = load(model_file=model)
    elif hasattr(model, "get_booster"):
        booster = model.get_booster()
    elif hasattr(model, "booster_"):
        booster = model.booster_
    named = "num_boosted_rounds", "current_iteration"
    count = next(getattr(booster, name) for name in named if hasattr(booster, name))
    return int(count())
