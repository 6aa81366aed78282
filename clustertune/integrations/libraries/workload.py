"""Define workloads: the needs of a training library and the arguments of its fit."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from clustertune.core.estimators import isa
from clustertune.core.profiles import Profile


@dataclass(frozen=True, kw_only=True)
class Rows:
    """Row-aligned collections that ``prepare`` returns; None means not given."""

    X: Any
    y: Any = None
    sample_weight: Any = None
    qid: Any = None
    base_margin: Any = None
    init_score: Any = None
    #: sizes of the groups of qid, with the same partitions
    group_sizes: Any = None


@dataclass(frozen=True, kw_only=True)
class FitInputs:
    """The prepared data, as workloads see it."""

    training: Rows
    eval_sets: tuple[Rows, ...] = ()
    estimator: object = None  # None: the workload was chosen by name
    #: threads of a training task that uses a whole host; None: those of its worker
    n_threads: int | None = None

    def eval_companion(self, name: str) -> list[Any] | None:
        """Return this companion of every eval set; None if no eval set has it."""
        every = [getattr(rows, name) for rows in self.eval_sets]
        return None if all(x is None for x in every) else every


class Workload:
    """One way to train. The docstring of a subclass is its page in the docs."""

    profile: Profile
    #: classes of its estimators: the module, and names in it or none for any
    kinds: tuple[tuple[str, ...], ...] = ()
    #: why ``clustertune.fit`` refuses its estimators, and what to do; "": it fits them
    unfit: str = ""
    #: names of the parameter with the threads of a training task; ``fit`` sets the
    #: first if none is set. Empty: a task can use the threads of its worker only
    thread_parameters: tuple[str, ...] = ()
    #: whether ``fit`` is awaitable if the client is asynchronous
    awaitable_fit: bool = False
    #: arguments of ``fit`` with one companion per eval set, and the companion's name
    eval_arguments: tuple[tuple[str, str], ...] = ()

    def matches(self, estimator: object) -> bool:
        """Return whether an estimator, an instance or a class, is of this workload."""
        return any(isa(estimator, *kind) for kind in self.kinds)

    def profile_for(self, estimator: object) -> Profile:
        """Return the profile; parameters of the estimator may change it."""
        return self.profile

    def fit_kwargs(self, fit_inputs: FitInputs) -> dict[str, Any]:
        """Return arguments for the estimator's ``fit`` beyond X and y."""
        return {}

    def can_use_host(self, params: Mapping[str, Any]) -> bool:
        """Return whether a training task may use all threads of its host.

        ``params`` are the parameters of the estimator. Only for workloads with
        ``thread_parameters``.
        """
        return all(params.get(name) is None for name in self.thread_parameters)

    def estimator_params(self, fit_inputs: FitInputs) -> dict[str, Any]:
        """Return parameters that the estimator needs for this data."""
        n_threads = fit_inputs.n_threads
        return {} if n_threads is None else {self.thread_parameters[0]: n_threads}


def given(**arguments: Any) -> dict[str, Any]:
    """Return the arguments that are not None."""
    return {name: value for name, value in arguments.items() if value is not None}
