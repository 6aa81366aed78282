"""How a library continues a training from a checkpoint.

A :class:`Continuation` makes the attributes and arguments of one attempt, whose
callbacks report rounds and send checkpoints, and repairs the model after the last one.
Each library has one; without it a training begins again.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from clustertune.remote import ship


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


class Continuation(ABC):
    """How one library reports rounds, and continues from a checkpoint."""

    def refusal(self, model: Any) -> str:
        """Return why a training of this model cannot be continued; or ""."""
        return ""

    @abstractmethod
    def rounds(self, model: Any, fit_kwargs: Mapping[str, Any]) -> int:
        """Return the number of rounds after the training, with those before it."""

    @abstractmethod
    def attempt(
        self,
        model: Any,
        fit_kwargs: Mapping[str, Any],
        name: str,
        every: float | None,
        checkpoint: Checkpoint | None,
        *,
        remote: bool,
    ) -> Attempt:
        """Return one attempt; ``remote`` means that callbacks are pickled."""

    @abstractmethod
    def finish(self, model: Any, checkpoint: Checkpoint) -> None:
        """Give a model that was continued the history of its whole training."""

    @abstractmethod
    def difference(self, model: Any) -> str:
        """Return why a continued model differs with the same placement; or ""."""


def sent(callback: Any, *, remote: bool) -> Any:
    """Return a callback of ours for a training task, which may lack clustertune."""
    return ship.function(callback) if remote else callback


def rounds_before(model: Any) -> int:
    """Return the rounds of a model that the caller continues."""
    if model is None:
        return 0
    booster = model
    for method in ("get_booster", "booster_"):
        found = getattr(model, method, None)
        if found is not None:
            booster = found() if callable(found) else found
    for method in ("num_boosted_rounds", "current_iteration"):
        count = getattr(booster, method, None)
        if count is not None:
            return int(count())
    raise ValueError(
        "a fit that continues a model from a file reports no rounds; load the model, "
        "and give it instead of its path"
    )
