"""Workloads: what each training library needs of the data's layout.

Each library has a file with its ``WORKLOADS``; a :class:`~.workload.Workload` has a
profile and the arguments of ``fit``.

Other packages add workloads through the entry point group ``clustertune.workloads``.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace
from functools import cache
from typing import Any

from clustertune.core import settings
from clustertune.core.model import Profile
from clustertune.integrations.libraries import (
    dask_ml,
    lightgbm,
    neural_networks,
    xgboost,
)
from clustertune.integrations.libraries.boosting import (
    Continuation as Continuation,
)
from clustertune.integrations.libraries.workload import FitInputs as FitInputs
from clustertune.integrations.libraries.workload import Rows as Rows
from clustertune.integrations.libraries.workload import (
    Workload,
    counterpart,
    isa,
    last_step,
    transforms,
    uses_dask,
)


class Generic(Workload):
    """Any library that trains on partitions and copies its data once.

    It is used if no estimator is given, and for estimators of dask-ml that have no
    workload: scalers, encoders, ``PCA``, ``GaussianNB``, ``BlockwiseVotingClassifier``
    and others.
    """

    profile = Profile(
        name="generic",
        title="any training library",
        memory_multiple={4: 2.0, 8: 2.0},
        needs_labels=False,
        source="the data and one copy of it",
    )

    def profile_for(self, estimator: object) -> Profile:
        """Blockwise voting fits one model to each partition, so their number counts."""
        voting = isa(estimator, "dask_ml.ensemble", "BlockwiseBase")
        return replace(self.profile, keeps_partitions=voting)


GENERIC = Generic()
OWN: tuple[Workload, ...] = (
    GENERIC,
    *dask_ml.WORKLOADS,
    *lightgbm.WORKLOADS,
    *neural_networks.WORKLOADS,
    *xgboost.WORKLOADS,
)


def _is_workload(found: object) -> bool:
    profile = getattr(found, "profile", None)
    return isinstance(found, Workload) and isinstance(profile, Profile)


@cache
def available() -> Mapping[str, Workload]:
    """Return every workload by name, in alphabetical order."""
    takes = "a Workload with a profile"
    others = settings.entry_points_of("workloads", takes, _is_workload).values()
    every = {workload.profile.name: workload for workload in (*others, *OWN)}
    return dict(sorted(every.items()))


def choose(estimator: object = None) -> Profile:
    """Return the profile of an estimator or of the name of a workload.

    None means ``generic``. So does an estimator that fits Dask collections and has no
    profile. Raise ValueError if the workload or the estimator is unknown, or if no
    layout helps it.
    """
    if estimator is None:
        return GENERIC.profile
    if isinstance(estimator, str):
        return _named(estimator)
    _, trains = last_step(estimator)
    text = f"estimator={_name(estimator)}"
    if trains is not estimator:
        text += f", which ends with {_name(trains)},"
    for module, kind, reason in dask_ml.REFUSED:
        if isa(trains, module, kind):
            raise ValueError(f"{text}: {reason}")
    # a workload of another package cannot take the estimators of ours
    for known in (*OWN, *available().values()):
        if known.matches(trains):
            profile = known.profile_for(trains)
            return replace(profile, transforms=transforms(estimator))
    if uses_dask(trains):
        return GENERIC.profile_for(trains)
    if there := counterpart(trains):
        raise ValueError(
            f"{text} trains in one process, without Dask; use its counterpart: {there}"
        )
    raise ValueError(
        f"{text} is not one that clustertune knows; "
        f"name its workload instead: {_names()}"
    )


def _named(name: str) -> Profile:
    if name not in available():
        raise ValueError(
            f"estimator={name!r} is no known workload; choose from {_names()}, or give "
            "the model"
        )
    return available()[name].profile


def _names() -> str:
    return ", ".join(available())


def refuse(profile: Profile, given: Collection[str]) -> None:
    """Refuse companions that the library does not take, and require those it needs.

    ``given`` has the names of the given companions, and ``eval_set``. Raise ValueError.
    """
    if profile.takes is not None:
        wrong = [f"{name}=" for name in given if name not in profile.takes]
        if wrong:
            allowed = ", ".join(f"{name}=" for name in profile.takes)
            raise ValueError(
                f"{profile.title} takes no {' and no '.join(wrong)}, only "
                f"{allowed or 'X and y'}; leave it out, or name another workload"
            )
    if profile.groups and "qid" not in given:
        raise ValueError(
            f"{profile.title} learns from groups of rows; give qid=, the group of "
            "each row"
        )


def refuse_fit(model: object, *, asynchronous: bool) -> None:
    """Refuse a model whose ``fit`` cannot train on Dask collections with this client.

    Raises
    ------
    TypeError
        It is no instance of an estimator.
    ValueError
        No workload knows it, or its library cannot do it.
    """
    if model is None or isinstance(model, str | type):
        kind = model.__name__ if isinstance(model, type) else repr(model)
        raise TypeError(
            f"estimator={kind} is no estimator that can be fitted; give an instance, "
            "such as xgboost.dask.DaskXGBClassifier()"
        )
    profile = choose(model)
    workload = available()[profile.name]
    if workload.unfit:
        raise ValueError(f"estimator={_name(last_step(model)[1])}: {workload.unfit}")
    if asynchronous:
        raise ValueError(
            "fit is synchronous, and this client is asynchronous; give a synchronous "
            "client of the same cluster: Client(client.scheduler.address)"
        )


def can_use_host(model: object) -> bool:
    """Return whether a training task of this model may use all threads of its host."""
    workload = available()[choose(model).name]
    trains: Any = last_step(model)[1]
    return bool(workload.thread_parameters) and workload.can_use_host(
        trains.get_params(deep=False)
    )


def continuation(model: object) -> Continuation | None:
    """Return how a training of this model continues; None: it begins again."""
    return available()[choose(model).name].continuation


def fit_kwargs(profile: Profile, fit_inputs: FitInputs) -> dict[str, Any]:
    """Return arguments for the estimator's ``fit`` beyond X and y."""
    return _of_last_step("fit_kwargs", profile, fit_inputs)


def estimator_params(profile: Profile, fit_inputs: FitInputs) -> dict[str, Any]:
    """Return parameters for the estimator: ``estimator.set_params(**these)``."""
    return _of_last_step("estimator_params", profile, fit_inputs)


def _of_last_step(
    method: str, profile: Profile, fit_inputs: FitInputs
) -> dict[str, Any]:
    """Call a method of the workload, and name the last step of a pipeline."""
    prefix, trains = last_step(fit_inputs.estimator)
    make = getattr(available()[profile.name], method)
    found = make(replace(fit_inputs, estimator=trains)) or {}
    return {f"{prefix}{name}": value for name, value in found.items()}


def _name(estimator: object) -> str:
    kind = estimator if isinstance(estimator, type) else type(estimator)
    return kind.__name__
