"""Write the files that are made from the checks: their page, defaults and schema.

Run ``python -m docs.make_checks`` in the project's folder. A test compares the files
with the output.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml
from tabulate import tabulate

from clustertune import checks
from tests import recordings

ROOT = Path(__file__).parents[1]

PAGE = ROOT / "docs" / "checks.md"
MARK = "<!-- made by docs/make_checks.py from the docstrings of the checks -->\n\n"
MADE = "# made by docs/make_checks.py from the checks and from OTHERS in it\n"
# settings that belong to no check: by name, the default and its schema
OTHERS: Mapping[str, tuple[Any, Mapping[str, Any]]] = {
    "prepare": (
        {"tolerance": 0.05, "memory_fraction": 0.7},
        {
            "type": "object",
            "properties": {
                "tolerance": {
                    "type": "number",
                    "minimum": 0,
                    "maximum": 1,
                    "description": "Fraction by which the rows of the fullest worker "
                    "may exceed its share.",
                },
                "memory_fraction": {
                    "type": "number",
                    "exclusiveMinimum": 0,
                    "maximum": 1,
                    "description": "Fraction of a worker's memory limit that the fit "
                    "may fill.",
                },
            },
            "additionalProperties": False,
        },
    ),
    "schedules": (
        None,
        {
            "type": ["array", "null"],
            "items": {"type": "object", "required": ["cron"]},
            "description": "Restarts that the preload module schedules: arguments of "
            "schedule_restart, with cron.",
        },
    ),
    "audit": (
        None,
        {
            "type": ["string", "null"],
            "description": "File for the audit trail of the preload module.",
        },
    ),
    "reason": (
        None,
        {
            "type": ["string", "null"],
            "description": "Reason of changes, which the event log has with each.",
        },
    ),
    "history": (
        {"enabled": True, "path": None, "label": None},
        {
            "type": "object",
            "properties": {
                "enabled": {
                    "type": "boolean",
                    "description": "Whether records of calls and fits are kept.",
                },
                "path": {
                    "type": ["string", "null"],
                    "description": "Path of the history file; null is "
                    "clustertune/history.jsonl in the user's data folder.",
                },
                "label": {
                    "type": ["string", "null"],
                    "description": "Label of the records; null is that of the hold.",
                },
            },
            "additionalProperties": False,
        },
    ),
}


def page() -> str:
    """Return a page of the documentation with all checks, by symptom."""
    known = checks.CHECKS.items()
    rows = [
        [symptom, ", ".join(f"[{c.__name__}](#{c.__name__})" for c in group)]
        for symptom, group in known
    ]
    table = "".join(f"| {symptom} | {links} |\n" for symptom, links in rows)
    parts = [
        f"## {symptom}\n\n" + "\n".join(map(_section, group))
        for symptom, group in known
    ]
    text, mark, _ = PAGE.read_text().partition(MARK)
    return f"{text}{mark}| symptom | checks |\n|---|---|\n{table}\n" + "\n".join(parts)


def _section(check: checks.Check) -> str:
    """Return the section of one check, with a table of its settings."""
    text = checks.text(check).replace("``", "`")
    settings, meaning = checks.settings_of(check), checks.settings_help(check)
    if settings:
        rows = "\n".join(
            f"| `{k}` | `{v!r}` | {meaning[k].replace('``', '`')} |"
            for k, v in settings.items()
        )
        text += f"\n\n| setting | default | description |\n|---|---|---|\n{rows}"
    return f"### {check.__name__}\n\n{text}\n"


def _settings() -> Mapping[str, Mapping[str, Any]]:
    found = {n: checks.settings_of(m) for n, m in checks.available().items()}
    return {name: dict(settings) for name, settings in found.items() if settings}


def defaults() -> str:
    """Return the defaults, as a file of Dask's configuration."""
    others = {name: default for name, (default, _) in OTHERS.items()}
    data = {"clustertune": {"checks": _settings(), **others}}
    return MADE + yaml.safe_dump(data, sort_keys=False)


def schema() -> str:
    """Return the JSON schema of the settings."""
    every = {
        name: _object(
            {
                setting: {
                    **_kind(default),
                    "description": checks.settings_help(checks.available()[name])[
                        setting
                    ],
                }
                for setting, default in settings.items()
            }
        )
        for name, settings in _settings().items()
    }
    # other packages add checks
    settings = _object(every) | {"additionalProperties": {"type": "object"}}
    whole = _object(
        {
            "clustertune": _object(
                {
                    "checks": settings,
                    **{name: kind for name, (_, kind) in OTHERS.items()},
                }
            )
        }
    )
    return MADE + yaml.safe_dump(whole, sort_keys=False, width=88)


def _object(properties: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "type": "object",
        "properties": dict(properties),
        "additionalProperties": False,
    }


def _kind(default: Any) -> dict[str, Any]:
    if isinstance(default, bool):
        return {"type": "boolean"}
    return {"type": "number", "minimum": 0}


DESIGN = ROOT / "docs" / "design.md"
TESTED_MARK = "<!-- made by docs/make_checks.py -->\n"
TESTED_END = "<!-- end of what is made -->\n"
HEALTHY = """
Recordings of real, healthy clusters (`python -m tests.recordings`). The checks give no
warning for them.

"""
SEEDED = """
Each fault below is a change of one of these recordings.
`tests/checks/test_remedies_of_workers.py` puts faults into live clusters.

"""


def tested() -> str:
    """The page of the design, with tables of false alarms and seeded faults."""
    from tests.checks import test_recordings as tests

    healthy = []
    for name in recordings.NAMES:
        view = recordings.view(name)
        found = Counter(str(f.severity) for f in checks.run(view))
        alarms = found["warning"] + found["critical"]
        healthy.append(
            [
                name.replace("_", " "),
                len(view.now.workers),
                alarms,
                found["info"],
                found["unknown"],
            ]
        )
    seeded = []
    for what, cluster, change, name, *_ in tests.FAULTS:
        found_now = checks.run(change(recordings.view(cluster)))
        worst = max(f.severity for f in found_now if f.check == name)
        seeded.append([what, cluster.replace("_", " "), f"`{name}`", str(worst)])
    columns = ["cluster", "workers", "warnings", "info", "unknown"]
    text, mark, made = DESIGN.read_text().partition(TESTED_MARK)
    _, end, rest = made.partition(TESTED_END)
    return (
        text
        + mark
        + HEALTHY
        + tabulate(healthy, headers=columns, tablefmt="github")
        + "\n"
        + SEEDED
        + tabulate(seeded, headers=["fault", "in", "found by", "as"], tablefmt="github")
        + "\n\n"
        + end
        + rest
    )


FILES = {
    "docs/design.md": tested,
    "docs/checks.md": page,
    "clustertune/clustertune.yaml": defaults,
    "clustertune/clustertune-schema.yaml": schema,
}

if __name__ == "__main__":
    for name, make in FILES.items():
        (ROOT / name).write_text(make())
