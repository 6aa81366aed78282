"""Callbacks in XGBoost's training tasks: reports, and the continuation of a training.

A continued training counts its rounds from 0 again, and its history is empty. The
callbacks here give other callbacks the rounds and the history of the whole training.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import xgboost
from xgboost.callback import EarlyStopping, LearningRateScheduler, TrainingCallback

from clustertune.remote.worker.rounds import Reports

History = Mapping[str, Mapping[str, list[Any]]]


def joined(before: History, after: History) -> dict[str, dict[str, list[Any]]]:
    """Return the history of a training from its parts before and after a break.

    ``after`` is empty until the first round after the break has ended.
    """
    return {
        data: {
            metric: [
                *before.get(data, {}).get(metric, ()),
                *after.get(data, {}).get(metric, ()),
            ]
            for metric in metrics
        }
        for data, metrics in (after or before).items()
    }


class Rounds(TrainingCallback):
    """Report rounds and send checkpoints.

    A round is reported when the next one begins. So no checkpoint is of the round
    after which early stopping ends the training, since that attempt has no next one.
    """

    def __init__(self, reports: Reports, history: History):
        super().__init__()
        self.reports = reports
        self.history = history  # before this attempt

    def before_iteration(self, model: Any, epoch: int, evals_log: Any) -> bool:
        with self.reports.guarded():
            if epoch and xgboost.collective.get_rank() == 0:
                self.reports.note(
                    model.num_boosted_rounds(),
                    lambda: _metric(evals_log),
                    lambda: self._saved(model, evals_log),
                )
        return False

    def _saved(self, model: Any, evals_log: Any) -> tuple[bytes, Any]:
        return bytes(model.save_raw("ubj")), joined(self.history, evals_log)


class Continued(TrainingCallback):
    """Another callback, which gets the rounds and the history of the whole training.

    ``before`` are the rounds of the user's ``xgb_model``; ``done`` are those after it.
    """

    def __init__(self, inner: Any, before: int, done: int, history: History):
        super().__init__()
        self.inner, self.history = inner, history
        self.before, self.done = before, done

    def before_training(self, model: Any) -> Any:
        model = self.inner.before_training(model)
        if isinstance(self.inner, EarlyStopping):
            self._replay(model)
        elif isinstance(self.inner, LearningRateScheduler) and self.done:
            # it sets the rate of the next round at the end of each round
            self.inner.after_iteration(model, self.done - 1, joined({}, self.history))
        return model

    def _replay(self, model: Any) -> None:
        """Give early stopping the scores before the break, for its best round."""
        self.inner.starting_round = self.before
        scores = [values for m in self.history.values() for values in m.values()]
        for i in range(max(map(len, scores), default=0)):
            until = {
                data: {metric: values[: i + 1] for metric, values in metrics.items()}
                for data, metrics in self.history.items()
            }
            self.inner.after_iteration(model, i, until)

    def after_training(self, model: Any) -> Any:
        return self.inner.after_training(model)

    def before_iteration(self, model: Any, epoch: int, evals_log: Any) -> bool:
        log = joined(self.history, evals_log)
        return bool(self.inner.before_iteration(model, epoch + self.done, log))

    def after_iteration(self, model: Any, epoch: int, evals_log: Any) -> bool:
        log = joined(self.history, evals_log)
        return bool(self.inner.after_iteration(model, epoch + self.done, log))


def _metric(evals_log: Any) -> str:
    """Return the last value of the last metric, as early stopping takes it."""
    for data, metrics in reversed(list(evals_log.items())):
        for name, values in reversed(list(metrics.items())):
            return f"{data} {name} {float(values[-1]):.5g}"
    return ""
