"""What each training library needs of the layout: one file each, a ``PROFILE``.

A workload is a module. Besides ``PROFILE``, its file's name being the profile's, it may
have functions:

``matches(estimator)``
    Whether it is the workload of that estimator, an instance or a class; no two
    workloads say so of the same one. Of a pipeline they see the last step.
``profile_for(estimator)``
    The profile, where parameters of the estimator change it.
``fit_kwargs(handed)``
    Arguments of the estimator's ``fit`` beyond X and y, for what ``prepare`` has made.
``estimator_params(handed)``
    Parameters that the estimator is to have with it.

Other packages add workloads through the entry point group ``clustertune.workloads``:
the entry's value is the module, its name the profile's.
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from functools import cache
from types import ModuleType
from typing import Any

from clustertune.core import estimators, plugins
from clustertune.core.model import Profile


@dataclass(frozen=True, kw_only=True)
class Rows:
    """Row-aligned collections as they are handed over; None: none was given."""

    X: Any
    y: Any = None
    sample_weight: Any = None
    qid: Any = None
    base_margin: Any = None
    init_score: Any = None
    #: sizes of the groups of qid, pieced like it; for workloads that want them
    group_sizes: Any = None


@dataclass(frozen=True, kw_only=True)
class Handed:
    """What ``prepare`` hands over, as workloads see it."""

    training: Rows
    eval_sets: tuple[Rows, ...] = ()
    estimator: object = None  # None: the workload was named

    def of_eval_sets(self, name: str) -> list[Any] | None:
        """That member of every eval set; None where no eval set has it."""
        every = [getattr(rows, name) for rows in self.eval_sets]
        return None if all(x is None for x in every) else every

    def of_all_eval_sets(self, name: str) -> list[Any] | None:
        """The same, for a library that takes it for all eval sets or for none.

        Raises
        ------
        ValueError
            Some eval sets have one and others have none.
        """
        every = self.of_eval_sets(name) or []
        without = [i for i, x in enumerate(every) if x is None]
        if without:
            has = next(i for i, x in enumerate(every) if x is not None)
            raise ValueError(
                f"LightGBM takes {name} for all eval sets or for none; "
                f"eval_set[{has}] has one and eval_set[{without[0]}] has none; give it "
                "for all"
            )
        return every or None


@cache
def available() -> Mapping[str, ModuleType]:
    """Every workload by name, in alphabetical order."""
    own = [
        importlib.import_module(f"{__name__}.{info.name}")
        for info in pkgutil.iter_modules(__path__)
    ]
    others = plugins.of("workloads").values()
    every = {module.PROFILE.name: module for module in (*others, *own)}
    return dict(sorted(every.items()))


def choose(workload: str | None, estimator: object = None) -> Profile:
    """The profile that the user named, else the estimator's, else ``generic``.

    An estimator of a library that fits Dask collections, and has no profile of its own
    here, is ``generic`` too.

    Raises
    ------
    ValueError
        There is no workload of that name, or none for that estimator, or it is one
        that no layout helps.
    """
    known = ", ".join(n for n, m in available().items() if not m.PROFILE.refused)
    if workload is not None:
        if not isinstance(workload, str) or workload not in available():
            raise ValueError(f"workload={workload!r} is not known; known are: {known}")
        module = available()[workload]
        # the estimator may still tell what the name leaves open
        _, trains = estimators.last_step(estimator)
        told = estimator is not None and _hook(module, "matches", trains)
        profile = _hook(module, "profile_for", trains) if told else None
        return _taken(profile or module.PROFILE, f"workload={workload!r}")
    if estimator is None:
        return choose("generic")
    what = f"estimator={_name(estimator)}"
    _, trains = estimators.last_step(estimator)
    if trains is not estimator:
        what += f", which ends with {_name(trains)},"
    for module in _own_first():
        if _hook(module, "matches", trains):
            profile = _hook(module, "profile_for", trains) or module.PROFILE
            return _taken(profile, what)
    if estimators.uses_dask(trains):
        found: Profile = available()["generic"].profile_for(trains)
        return found
    if there := estimators.counterpart(trains):
        raise ValueError(
            f"{what} trains in one process, without Dask; give its counterpart: {there}"
        )
    raise ValueError(
        f"{what} is not one that clustertune knows; "
        f"name the workload instead: workload= one of {known}"
    )


def refuse(profile: Profile, given: Collection[str]) -> None:
    """See that the library takes what was given beside X and y, before all else.

    Parameters
    ----------
    profile
        The chosen profile.
    given
        Names of companions, and ``eval_set``.

    Raises
    ------
    ValueError
        It does not, or needs a companion that is not there.
    """
    if profile.takes is not None:
        wrong = [f"{name}=" for name in given if name not in profile.takes]
        if wrong:
            allowed = ", ".join(f"{name}=" for name in profile.takes)
            raise ValueError(
                f"{profile.title} takes no {' and no '.join(wrong)}, only "
                f"{allowed or 'X and y'}; leave it out, or name another workload"
            )
    if profile.exact_rows and "qid" in given:
        raise ValueError(
            f"{profile.title} needs exactly as many rows on every worker, which cuts "
            "through groups of rows (qid=); leave qid out, or give it as a column of X "
            "if groups may be cut"
        )
    if profile.groups and "qid" not in given:
        raise ValueError(
            f"{profile.title} learns from groups of rows; give qid=, the group of "
            "each row"
        )


def fit_kwargs(profile: Profile, handed: Handed) -> dict[str, Any]:
    """Arguments for the estimator's ``fit`` beyond X and y."""
    return _arguments("fit_kwargs", profile, handed)


def estimator_params(profile: Profile, handed: Handed) -> dict[str, Any]:
    """Parameters for the estimator: ``estimator.set_params(**these)``."""
    return _arguments("estimator_params", profile, handed)


def _arguments(function: str, profile: Profile, handed: Handed) -> dict[str, Any]:
    prefix, trains = estimators.last_step(handed.estimator)
    module = available()[profile.name]
    found = _hook(module, function, replace(handed, estimator=trains)) or {}
    return {f"{prefix}{name}": value for name, value in found.items()}


def _own_first() -> list[ModuleType]:
    """Every workload; what another package says of an estimator counts last."""
    every = available().values()
    return sorted(every, key=lambda m: not m.__name__.startswith(f"{__name__}."))


def _hook(module: ModuleType, name: str, argument: object) -> Any:
    """What a function says that a workload may have; None if it has none."""
    function = getattr(module, name, None)
    return function(argument) if function is not None else None


def _taken(profile: Profile, what: str) -> Profile:
    if profile.refused:
        raise ValueError(f"{what}: {profile.refused}")
    return profile


def _name(estimator: object) -> str:
    kind = estimator if isinstance(estimator, type) else type(estimator)
    return kind.__name__
