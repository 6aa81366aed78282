"""Checks: functions that find conditions in a view; this module runs them.

A check is a function ``check(view, *, settings...) -> findings`` in the module of its
topic, and has an entry in :data:`CHECKS`. Its docstring is its page for users, with a
paragraph that begins ``Remedy:``. Its keyword-only arguments are its settings, under
``clustertune.checks.<name>`` in Dask's configuration.

Other packages add such functions through the entry point group ``clustertune.checks``.
An attribute ``ERROR`` is the error with which a critical finding stops ``prepare``.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from functools import cache
from typing import Any

from clustertune.checks import (
    labels,
    memory,
    partitions,
    placement,
    scheduler,
    threads,
    values,
    workers,
)
from clustertune.core import settings
from clustertune.core.model import Finding, Severity, View
from clustertune.core.wording import printable
from clustertune.errors import AlignmentError, CapacityError
from clustertune.planner import plan

Check = Callable[..., Iterable[Finding]]

#: the checks of this package by the symptom that they explain
CHECKS: Mapping[str, tuple[Check, ...]] = {
    "Training runs on only some workers": (
        workers.missing_workers,
        workers.paused_workers,
        placement.empty_workers,
        placement.uneven_rows,
        partitions.too_few_partitions,
    ),
    "Memory grows, or workers spill or are killed": (
        memory.memory_pressure,
        memory.memory_settings,
        memory.unmanaged_memory,
        memory.memory_growth,
        memory.spill_space,
        memory.fit_memory,
        partitions.large_partitions,
    ),
    "Labels do not match the rows, or the model is wrong": (
        partitions.misaligned_partitions,
        labels.missing_classes,
        labels.unshuffled_rows,
        labels.query_groups,
        labels.differing_index,
        values.nonfinite_values,
        values.unreadable_values,
        values.differing_categories,
        values.differing_columns,
        labels.missing_estimator,
        partitions.changed_partitions,
    ),
    "Training is slow": (
        threads.thread_count,
        threads.thread_pools,
        threads.several_workers_per_host,
        threads.blocked_event_loops,
        partitions.too_many_partitions,
        placement.separated_pairs,
        scheduler.data_from_client,
    ),
    "Workers or their data disappear": (
        workers.unresponsive_workers,
        workers.adaptive_scaling,
        workers.worker_lifetime,
        workers.no_nanny,
        workers.unfinished_restarts,
    ),
    "The fit raises an error or hangs": (
        workers.software_versions,
        partitions.no_rows,
        partitions.column_chunks,
        values.non_numeric_columns,
        labels.class_labels,
        placement.eval_sets,
        scheduler.stuck_tasks,
        scheduler.unrunnable_tasks,
    ),
}
_OWN = {check.__name__: check for group in CHECKS.values() for check in group}

#: the errors with which critical findings stop ``prepare``, by check or goal
ERRORS: Mapping[str, type[Exception]] = {
    "class_labels": ValueError,
    "column_chunks": AlignmentError,
    "differing_categories": ValueError,
    "differing_columns": ValueError,
    "differing_index": AlignmentError,
    "misaligned_partitions": AlignmentError,
    "fit_memory": CapacityError,
    "missing_classes": AlignmentError,
    "no_rows": ValueError,
    "non_numeric_columns": ValueError,
    "nonfinite_values": ValueError,
    "query_groups": AlignmentError,
    "too_many_partitions": AlignmentError,
}
_PARAMETERS = "Parameters\n----------\n"
#: unknown ranks between info and warning: it may hide either
_WORST_FIRST = (Severity.critical, Severity.warning, Severity.unknown, Severity.info)


# --- the checks -----------------------------------------------------------------------


@cache
def available() -> Mapping[str, Check]:
    """Every check by name, in alphabetical order."""
    others = settings.entry_points_of("checks", "a function", callable)
    return dict(sorted({**others, **_OWN}.items()))


def by_symptom() -> Mapping[str, tuple[str, ...]]:
    """Names of all checks by symptom; those of other packages come last."""
    found = {s: tuple(c.__name__ for c in group) for s, group in CHECKS.items()}
    others = tuple(name for name in available() if name not in _OWN)
    return found | ({"Checks of other packages": others} if others else {})


def explained() -> Mapping[str, Check]:
    """Every name in findings that has a page: checks, and goals of ``prepare``."""
    return {**plan.GOALS, **available()}


def text(check: Check) -> str:
    """The check's page without its settings."""
    return (inspect.getdoc(check) or "").partition(_PARAMETERS)[0].rstrip()


def title(check: Check) -> str:
    """The first line of the check's page."""
    return text(check).partition("\n")[0]


def page(name: str) -> str:
    """The check's page with its settings, for a terminal."""
    check = explained()[name]
    whole = text(check).replace("``", "`")
    meaning = settings_help(check)
    lines = [
        f"    clustertune.checks.{name}.{k}: {v!r}\n        {meaning[k]}"
        for k, v in settings_of(check).items()
    ]
    if lines:
        whole += "\n\nSettings, with their defaults:\n\n" + "\n".join(lines)
    return f"{name}\n{'=' * len(name)}\n\n{whole}"


# --- their settings -------------------------------------------------------------------


def settings_of(check: Check) -> Mapping[str, Any]:
    """The settings of a check with their defaults."""
    parameters = inspect.signature(check).parameters.values()
    return {p.name: p.default for p in parameters if p.kind is p.KEYWORD_ONLY}


def settings_help(check: Check) -> Mapping[str, str]:
    """The description of each setting, from the docstring."""
    _, _, section = (inspect.getdoc(check) or "").partition(_PARAMETERS)
    found: dict[str, str] = {}
    names: list[str] = []
    for line in section.splitlines():
        if line and not line.startswith(" "):
            names = line.split(", ")
        for name in names if line.startswith(" ") else ():
            found[name] = f"{found.get(name, '')} {line.strip()}".strip()
    return {name: found[name] for name in settings_of(check) if name in found}


def stuck(view: View, seconds: float) -> tuple[Finding, ...]:
    """Return findings about workers that a call of so many seconds may wait for."""
    return (
        *scheduler.stuck_tasks(view, min_seconds=min(60.0, seconds)),
        *workers.unresponsive_workers(view, max_seconds=min(30.0, seconds)),
    )


def configured() -> Mapping[str, Mapping[str, Any]]:
    """Return the settings of checks in Dask's configuration, by name of check.

    Raises ``ValueError`` if a setting does not exist, or its value has the wrong type.
    """
    found = {
        name: settings.section(f"clustertune.checks.{name}", given)
        for name, given in settings.section("clustertune.checks").items()
    }
    refuse_wrong(found)
    return found


def refuse_wrong(settings: Mapping[str, Mapping[str, Any]]) -> None:
    """Raise an error unless all checks and settings exist and have the right type.

    Raises ``ValueError`` if one is wrong. The message names the allowed ones.
    """
    for name, given in settings.items():
        if name not in available():
            raise ValueError(
                f"there is no check {name!r}; checks are {', '.join(available())}"
            )
        known = settings_of(available()[name])
        for setting, value in given.items():
            if setting not in known:
                raise ValueError(
                    f"the check {name!r} has no setting {setting!r}; "
                    f"it has {', '.join(known) or 'none'}"
                )
            _refuse_type(f"clustertune.checks.{name}.{setting}", value, known[setting])


def _refuse_type(setting: str, value: Any, default: Any) -> None:
    if isinstance(default, bool):
        right, kind = isinstance(value, bool), "True or False"
    else:
        number = isinstance(value, int | float) and not isinstance(value, bool)
        # an integer above the largest float would fail in arithmetic with floats
        most = float("inf") if isinstance(value, float) else sys.float_info.max
        right, kind = number and 0 <= value <= most, "a number of at least 0"
    if not right:
        raise ValueError(f"{setting}={value!r} must be {kind}, like {default!r}")


# --- findings -------------------------------------------------------------------------


def run(
    view: View, settings: Mapping[str, Mapping[str, Any]] | None = None
) -> tuple[Finding, ...]:
    """Run every check; worst findings first. ``settings`` differ from the defaults.

    Raises ``ValueError`` if a check or a setting does not exist, or has the wrong type.
    """
    settings = settings or {}
    refuse_wrong(settings)
    found: list[Finding] = []
    for name, check in available().items():
        given = _find(name, check, view, settings.get(name, {}))
        found += (replace(finding, check=name) for finding in given)
    return tuple(sorted(found, key=lambda f: _WORST_FIRST.index(f.severity)))


def _find(
    name: str, check: Check, view: View, settings: Mapping[str, Any]
) -> Iterable[Finding]:
    """Findings of a check; the failure of another package's check is a finding."""
    if name in _OWN:
        return check(view, **settings)
    try:
        return list(check(view, **settings))
    except Exception as error:  # noqa: BLE001, the finding reports it
        text = printable(repr(error), longest=200)
        return [Finding(severity=Severity.unknown, message=f"the check failed: {text}")]


def error_of(finding: Finding) -> type[Exception] | None:
    """The error with which this finding stops ``prepare``, if it does."""
    if finding.severity is not Severity.critical:
        return None
    own = ERRORS.get(finding.check)
    if own is not None or finding.check in plan.GOALS:
        return own
    error: type[Exception] | None = getattr(available()[finding.check], "ERROR", None)
    return error
