"""All actions by name."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from clustertune.actions import (
    adapt,
    drop,
    load,
    merge,
    rebalance,
    rechunk,
    release,
    replicate,
    restart,
    retire,
    scale,
    trim,
)
from clustertune.core.model import Action, Step, View

_MODULES: dict[str, Any] = {
    "adapt": adapt,
    "drop": drop,
    "load": load,
    "merge": merge,
    "rebalance": rebalance,
    "rechunk": rechunk,
    "release": release,
    "replicate": replicate,
    "restart": restart,
    "retire": retire,
    "scale": scale,
    "trim": trim,
}
ACTIONS: Mapping[str, Action] = _MODULES


def needless(step: Step, view: View) -> str:
    """Why a step is not needed any more; empty if it is or may be."""
    decide = getattr(ACTIONS.get(step.action), "needless", None)
    return decide(step, view) if decide else ""
