"""Actions: one remedy a file. Each proposes steps (pure) and enacts one of them.

``propose(findings, view) -> steps`` and ``enact(step, cluster, notify) -> Result``;
effects go through the port ``cluster`` alone. The file's name is the action's name.
Other packages add actions through the entry point group ``clustertune.actions``.
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Mapping
from functools import cache
from importlib.metadata import entry_points

from clustertune.model import Action


@cache
def available() -> Mapping[str, Action]:
    """Every action by name."""
    own = {
        info.name: importlib.import_module(f"{__name__}.{info.name}")
        for info in pkgutil.iter_modules(__path__)
    }
    others = {e.name: e.load() for e in entry_points(group="clustertune.actions")}
    return dict(sorted({**others, **own}.items()))
