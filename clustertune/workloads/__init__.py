"""What each training library needs of the layout: one file each, a ``PROFILE``.

``matches(estimator)`` says whether a workload is that estimator's; no two say so of the
same one. Where a library wants more than X and y, ``fit_kwargs(handed)`` are arguments
of its ``fit`` and ``estimator_params(handed)`` parameters of the estimator, for what
``prepare`` has made.
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from types import ModuleType
from typing import Any

from clustertune.model import Profile


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


@cache
def available() -> Mapping[str, ModuleType]:
    """Every workload by name."""
    modules = [
        importlib.import_module(f"{__name__}.{info.name}")
        for info in pkgutil.iter_modules(__path__)
    ]
    return {m.PROFILE.name: m for m in sorted(modules, key=lambda m: m.PROFILE.name)}


def fit_kwargs(workload: str, handed: Handed) -> dict[str, Any]:
    """Arguments of ``fit`` beside X and y."""
    own = getattr(available()[workload], "fit_kwargs", None)
    return {} if own is None else own(handed)


def estimator_params(workload: str, handed: Handed) -> dict[str, Any]:
    """Parameters of the estimator that what was prepared needs, or allows."""
    own = getattr(available()[workload], "estimator_params", None)
    return {} if own is None else own(handed)


def choose(workload: str | None, estimator: object = None) -> Profile:
    """The profile that the user named, else the estimator's, else ``generic``.

    Raises
    ------
    ValueError
        There is no workload of that name, or none for that estimator.
    """
    known = ", ".join(available())
    if workload is not None:
        if not isinstance(workload, str) or workload not in available():
            raise ValueError(f"workload={workload!r} is not known; known are: {known}")
        profile: Profile = available()[workload].PROFILE
        return profile
    if estimator is None:
        return choose("generic")
    for module in available().values():
        if module.matches(estimator):
            found: Profile = module.PROFILE
            return found
    given = estimator if isinstance(estimator, type) else type(estimator)
    raise ValueError(
        f"estimator={given.__name__} is not one that clustertune knows; "
        f"name the workload instead: workload= one of {known}"
    )
