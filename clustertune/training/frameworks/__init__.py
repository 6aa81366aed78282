"""Deep-learning frameworks whose roles ``run_roles`` sets up, one a file.

A file has ``FRAMEWORK = Framework(...)``, or, where that depends on which roles there
are, ``framework(roles)``; its name is the framework's.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from contextlib import nullcontext
from dataclasses import dataclass
from importlib import import_module
from pkgutil import iter_modules
from typing import Any

Spec = Mapping[str, list[str]]  # of every role its addresses, host:port, by rank


def _no_variables(spec: Spec, role: str, rank: int) -> dict[str, str]:
    return {}


def _no_target(spec: Spec, role: str, rank: int) -> str | None:
    return None


@dataclass(frozen=True, slots=True, kw_only=True)
class Framework:
    """What a framework needs of its roles.

    Attributes
    ----------
    name
        As it is called in ``framework=``.
    modules
        What must be importable on the workers.
    workload
        As what :func:`clustertune.prepare` lays the data out.
    equal
        Whether ranks work in step: every one gets as many batches in an epoch.
    environment
        Variables of a role, of the spec, its name and its rank; empty: none.
    target
        The address that a role's function is given, of the same.
    around
        A context manager around a role's function: a function of
        ``clustertune.remote``, which is given the role's context.
    bare
        The function of roles that are given as a number: one of
        ``clustertune.remote``; None: there are none.
    """

    name: str | None
    modules: tuple[str, ...] = ()
    workload: str = "generic"
    equal: bool = False
    environment: Callable[[Spec, str, int], dict[str, str]] = _no_variables
    target: Callable[[Spec, str, int], str | None] = _no_target
    around: Callable[[Any], Any] = nullcontext
    bare: Callable[[Any], Any] | None = None
    #: whether a process can have one role only
    alone: bool = True


NONE = Framework(name=None, alone=False)


def names() -> list[str]:
    """Of all frameworks that there are."""
    return sorted(module.name for module in iter_modules(__path__))


def choose(name: object, roles: Collection[str] = ()) -> Framework:
    """The framework of that name, for these roles; of None the mechanism alone.

    Raises
    ------
    ValueError
        There is none of that name, or it needs other roles.
    """
    if name is None:
        return NONE
    if name not in names():
        allowed = ", ".join(f'"{n}"' for n in names())
        raise ValueError(f"framework={name!r} must be one of {allowed}, or None")
    module = import_module(f"{__name__}.{name}")
    chosen = getattr(module, "framework", None)
    found: Framework = module.FRAMEWORK if chosen is None else chosen(roles)
    return found
