"""Write the page of the actions from their docstrings.

Run ``python -m docs.make_actions`` in the project's folder. A test compares the file
with the output.
"""

from __future__ import annotations

import inspect
from pathlib import Path

from clustertune.actions import registry
from clustertune.operations.playbooks.reading import ACTIONS
from clustertune.planner.plan import PHASES

ROOT = Path(__file__).parents[1]

HEAD = """# Actions

<!-- made by docs/make_actions.py from the docstrings of the actions: edit those -->

An action is one kind of change to a cluster. It proposes steps, with their predicted
bytes, memory and risk. Guards refuse unsafe steps, when a step is planned and
again just before it is carried out. Reports have the name of the action for each step.

`prepare` carries out the first phase with steps, reads the cluster again, and goes on:
"""
TABLE = """
| action | effect | used by |
|---|---|---|
"""
#: public calls by action, except ``prepare`` and playbooks
CALLS = {
    "drop": "`restart_workers(drop_data=True)`",
    "merge": "`merge_workers`",
    "release": "`release_data`",
    "restart": "`restart_workers`, `resize_workers`, `schedule_restart`",
    "retire": "`scale`",
    "scale": "`scale`",
    "adapt": "`scale`",
    "trim": "`trim_memory`, `restart_workers(if_needed=True)`",
}


def page() -> str:
    """Return the page of the documentation."""
    modules = registry.ACTIONS
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
    return ", ".join(takers + [f"playbooks (`do: {name}`)"] * (name in ACTIONS))


FILES = {"docs/actions.md": page}

if __name__ == "__main__":
    for name, make in FILES.items():
        (ROOT / name).write_text(make())
