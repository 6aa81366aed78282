"""Callbacks in LightGBM's training tasks: reports, and the continuation of a training.

LightGBM continues the numbers of rounds after ``init_model``, but callbacks take the
first round of this attempt for the first of the training.
"""

from __future__ import annotations

from dataclasses import is_dataclass, replace
from typing import Any
from urllib.parse import urlparse

from clustertune.remote.worker.rounds import Reports

#: of each round: data set, metric, value, whether higher is better
History = list[list[list[Any]]]


class Rounds:
    """Report rounds and send checkpoints; the last callback of a round."""

    before_iteration = False

    def __init__(self, reports: Reports, history: History):
        self.order = 1000  # LightGBM does not see an attribute of the class
        self.reports = reports
        self.history = list(history)  # of all rounds so far

    def __call__(self, env: Any) -> None:
        with self.reports.guarded():
            self._report(env)

    def _report(self, env: Any) -> None:
        found = [list(one[:4]) for one in env.evaluation_result_list or ()]
        self.history.append(
            [[str(d), str(m), float(v), bool(h)] for d, m, v, h in found]
        )
        if _is_first(env.params):
            self.reports.note(
                env.iteration + 1, lambda: _metric(found), lambda: self._saved(env)
            )

    def _saved(self, env: Any) -> tuple[bytes, Any]:
        text = env.model.model_to_string(num_iteration=-1)
        return text.encode(), list(self.history)


class Continued:
    """Another callback that depends on the first round of the whole training.

    ``before`` are the rounds of the user's ``init_model``.
    """

    def __init__(self, inner: Any, before: int, history: History):
        self.inner = inner
        self.before = before
        self.history = history
        self.order = inner.order
        self.before_iteration = inner.before_iteration
        self.replays = not inner.before_iteration  # early stopping

    def __call__(self, env: Any) -> None:
        if self.replays and env.iteration == env.begin_iteration:
            for i, scores in enumerate(self.history):
                found = _results(env, scores)
                round_ = self.before + i
                then = _changed(env, iteration=round_, evaluation_result_list=found)
                self.inner(_changed(then, begin_iteration=self.before))
        self.inner(_changed(env, begin_iteration=self.before))


def _changed(env: Any, **values: Any) -> Any:
    """Return a changed environment: a named tuple before LightGBM 4.7."""
    change = replace if is_dataclass(env) else type(env)._replace
    return change(env, **values)


def _results(env: Any, scores: list[list[Any]]) -> list[Any]:
    """Return results of a round in the type of this release."""
    kind = type(env.evaluation_result_list[0])
    named = hasattr(kind, "_fields")
    return [kind(*one) if named else tuple(one) for one in scores]


def _is_first(params: Any) -> bool:
    """Whether this is the first of the machines; LightGBM shows no rank in Python."""
    first = str(params.get("machines", "")).partition(",")[0]
    if not first:
        return True
    from distributed import get_worker

    host, _, port = first.rpartition(":")
    worker: Any = get_worker()
    here = urlparse(worker.address).hostname
    return host == here and port == str(params.get("local_listen_port"))


def _metric(found: list[list[Any]]) -> str:
    if not found:
        return ""
    data, metric, value, _ = found[-1]
    return f"{data} {metric} {value:.5g}"
