"""Write the page of the actions, made from their docstrings.

``python -m docs.make_actions``, in the project's folder; a test compares what this
makes with the file.
"""

from __future__ import annotations

import inspect
from pathlib import Path

from clustertune import actions
from clustertune.operations.playbooks import schema
from clustertune.planner.plan import PHASES

ROOT = Path(__file__).parents[1]

HEAD = """# Actions

<!-- made by docs/make_actions.py from the docstrings of the actions: edit those -->

What clustertune can do to a cluster. An action proposes steps, each with its price:
bytes that travel, seconds, memory, and what is at risk. Guards forbid what would not be
safe as things are now; that is asked when a step is planned, and again just before it
is carried out. A report has the name of the action for each step.

`prepare` takes the first phase that has anything to do, looks again, and goes on:
"""
TABLE = """
| action | what it does | taken by |
|---|---|---|
"""
#: by action what takes it besides ``prepare`` and playbooks
CALLS = {
    "drop": "`restart(drop_data=True)`",
    "release": "`release`",
    "restart": "`restart`, `resize`, `schedule_restart`",
    "retire": "`scale`",
    "scale": "`scale`",
    "adapt": "`scale`",
    "trim": "`trim`",
}


def page() -> str:
    """All actions, as a page of the documentation."""
    modules = actions.available()
    order = ", ".join(f"*{phase}*" for phase in PHASES)
    texts = {name: inspect.getdoc(module) or "" for name, module in modules.items()}
    rows = "\n".join(
        f"| [`{name}`](#{name}) | {_plain(text.splitlines()[0])} | {_takers(name)} |"
        for name, text in texts.items()
    )
    sections = [f"\n## {name}\n\n{_plain(text)}\n" for name, text in texts.items()]
    return f"{HEAD}{order}.\n{TABLE}{rows}\n{''.join(sections)}"


def _plain(text: str) -> str:
    return text.replace("``", "`")


def _takers(name: str) -> str:
    prepares = name in PHASES
    takers = ["`prepare`"] * prepares
    takers += [CALLS[name]] if name in CALLS else []
    known = schema.own_actions()
    return ", ".join(takers + [f"playbooks (`do: {name}`)"] * (name in known))


FILES = {"docs/actions.md": page}

if __name__ == "__main__":
    for name, make in FILES.items():
        (ROOT / name).write_text(make())
