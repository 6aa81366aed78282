"""Actions: one remedy a file. Each proposes steps (pure) and enacts one of them.

``propose(findings, view) -> steps`` and ``enact(step, cluster, notify) -> Result``;
effects go through the port ``cluster`` alone. The file's name is the action's name.

Other packages add actions through the entry point group ``clustertune.actions``: the
entry's name is the action's, its value the module. Steps of playbooks can do them
(``do: NAME``); ``prepare`` takes only those that are here.
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Mapping
from functools import cache

from clustertune.core import plugins
from clustertune.core.model import Action


@cache
def available() -> Mapping[str, Action]:
    """Every action by name."""
    return dict(sorted({**others(), **_own()}.items()))


@cache
def others() -> Mapping[str, Action]:
    """Those of other packages by name; none takes the name of one that is here."""
    found = plugins.of("actions")
    return {name: found[name] for name in found.keys() - _own().keys()}


def _own() -> Mapping[str, Action]:
    return {
        info.name: importlib.import_module(f"{__name__}.{info.name}")
        for info in pkgutil.iter_modules(__path__)
        if not info.ispkg  # the cluster that actions change
    }
