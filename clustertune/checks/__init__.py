"""Checks: one condition a file, found in a view; this module runs them.

A check is a module with a function ``find(view, *, settings...) -> findings`` and a
docstring that is its page for users, with a paragraph that begins ``Remedy:``. The
file's name is the check's name in configuration, output and documentation; the
keyword-only arguments of ``find`` are its settings, under
``clustertune.checks.<name>`` in Dask's configuration. ``ERROR``, where a check has it,
is the error with which its critical findings stop :func:`clustertune.prepare`.

Other packages add checks through the entry point group ``clustertune.checks``: the
entry's name is the check's, its value the module.
"""

from __future__ import annotations

import importlib
import inspect
import pkgutil
import sys
from collections.abc import Iterable, Mapping
from dataclasses import replace
from functools import cache
from types import ModuleType
from typing import Any

from clustertune.core import plugins, settings
from clustertune.core.model import Finding, Severity, View
from clustertune.core.wording import printable


@cache
def available() -> Mapping[str, ModuleType]:
    """Every check by name, in alphabetical order."""
    own = {
        info.name: importlib.import_module(f"{__name__}.{info.name}")
        for info in pkgutil.iter_modules(__path__)
    }
    return dict(sorted({**plugins.of("checks"), **own}.items()))


def remedy(check: ModuleType) -> str:
    """The paragraph of the check's page that begins with ``Remedy:``, on one line."""
    page = inspect.getdoc(check) or ""
    for paragraph in page.split("\n\n"):
        if paragraph.startswith("Remedy:"):
            return " ".join(paragraph.removeprefix("Remedy:").split())
    return ""


def title(check: ModuleType) -> str:
    """The first line of the check's page."""
    return (inspect.getdoc(check) or "").partition("\n")[0]


def page(name: str) -> str:
    """The check's page: what it finds, why, what to do, and its settings."""
    module = available()[name]
    text = (inspect.getdoc(module) or "").replace("``", "`")
    settings, meaning = settings_of(module), settings_help(module)
    if settings:
        lines = [
            f"    clustertune.checks.{name}.{k}: {v!r}\n        {meaning[k]}"
            for k, v in settings.items()
        ]
        text += "\n\nSettings, with their defaults:\n\n" + "\n".join(lines)
    return f"{name}\n{'=' * len(name)}\n\n{text}"


def settings_of(check: ModuleType) -> Mapping[str, Any]:
    """The settings of a check with their defaults."""
    parameters = inspect.signature(check.find).parameters.values()
    return {p.name: p.default for p in parameters if p.kind is p.KEYWORD_ONLY}


def settings_help(check: ModuleType) -> Mapping[str, str]:
    """What each setting means, from the docstring of ``find``."""
    _, _, text = (inspect.getdoc(check.find) or "").partition(
        "Parameters\n----------\n"
    )
    found: dict[str, str] = {}
    names: list[str] = []
    for line in text.splitlines():
        if line and not line.startswith(" "):
            names = line.split(", ")
        for name in names if line.startswith(" ") else ():
            found[name] = f"{found.get(name, '')} {line.strip()}".strip()
    return {name: found[name] for name in settings_of(check) if name in found}


def all_settings() -> Mapping[str, Mapping[str, Any]]:
    """By name of each check, its settings with their defaults."""
    return {name: settings_of(module) for name, module in available().items()}


def configured() -> Mapping[str, Mapping[str, Any]]:
    """Return the settings of checks in Dask's configuration, by name of check.

    Raises
    ------
    ValueError
        Something is set that does not exist, or that is not what it must be.
    """
    found = {
        name: settings.section(f"clustertune.checks.{name}", values)
        for name, values in settings.section("clustertune.checks").items()
    }
    refuse_wrong(found)
    return found


def setting(name: str, setting: str) -> Any:
    """One setting of a check: what is set, else its default.

    Raises
    ------
    ValueError
        As :func:`configured`.
    """
    default = settings_of(available()[name])[setting]
    return configured().get(name, {}).get(setting, default)


def run(
    view: View, settings: Mapping[str, Mapping[str, Any]] | None = None
) -> tuple[Finding, ...]:
    """Run every check; worst findings first.

    Parameters
    ----------
    view
        What the checks see.
    settings
        By name of check, its settings where they differ from the defaults.

    Raises
    ------
    ValueError
        A setting is for a check, or has a name, that does not exist.
    """
    settings = settings or {}
    refuse_wrong(settings)
    found: list[Finding] = []
    for name, check in available().items():
        findings = _find(check, view, settings.get(name, {}))
        text = remedy(check)
        # remedies are written as documentation; people read them in a terminal as well
        found += [
            replace(f, check=name, remedy=(f.remedy or text).replace("``", "`"))
            for f in findings
        ]
    return tuple(sorted(found, key=lambda f: -_order(f.severity)))


def _find(
    check: ModuleType, view: View, settings: Mapping[str, Any]
) -> Iterable[Finding]:
    """What a check finds; one of another package that fails hides no other's."""
    if check.__name__.startswith(f"{__name__}."):
        findings: Iterable[Finding] = check.find(view, **settings)
        return findings
    try:
        return list(check.find(view, **settings))
    except Exception as error:  # noqa: BLE001, it is said where findings are
        text = printable(repr(error), longest=200)
        return [Finding(severity=Severity.unknown, message=f"the check failed: {text}")]


def error_of(finding: Finding) -> type[Exception] | None:
    """The error with which this finding stops ``prepare``, if it does."""
    if finding.severity is not Severity.critical:
        return None
    error: type[Exception] | None = getattr(available()[finding.check], "ERROR", None)
    return error


def _order(severity: Severity) -> float:
    """Unknown ranks between info and warning: it may hide either."""
    return 1.5 if severity is Severity.unknown else float(severity)


def refuse_wrong(settings: Mapping[str, Mapping[str, Any]]) -> None:
    """See that settings are of checks that exist, and of the type of their defaults.

    Raises
    ------
    ValueError
        One is not; the text says what is allowed.
    """
    for name, values in settings.items():
        if name not in available():
            raise ValueError(
                f"there is no check {name!r}; checks are {', '.join(available())}"
            )
        known = settings_of(available()[name])
        for setting, value in values.items():
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
        # a whole number that is too large for a float is none to reckon with
        most = float("inf") if isinstance(value, float) else sys.float_info.max
        right, kind = number and 0 <= value <= most, "a number of at least 0"
    if not right:
        raise ValueError(f"{setting}={value!r} must be {kind}, like {default!r}")
