"""clustertune gets a Dask cluster ready for machine-learning training.

The public names are loaded when they are used: Dask loads this package for its own
command line, where a second more would be felt at every ``dask --help``.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from clustertune import errors as errors
    from clustertune import training as training
    from clustertune.diagnosis import check as check
    from clustertune.histories import History as History
    from clustertune.histories import history as history
    from clustertune.holding import hold as hold
    from clustertune.operations import release as release
    from clustertune.operations import resize as resize
    from clustertune.operations import restart as restart
    from clustertune.operations import scale as scale
    from clustertune.operations import trim as trim
    from clustertune.planfile import StoredPlan as StoredPlan
    from clustertune.planning import apply as apply
    from clustertune.planning import plan as plan
    from clustertune.played import Played as Played
    from clustertune.playing import run as run
    from clustertune.preparation import last_report as last_report
    from clustertune.preparation import prepare as prepare
    from clustertune.prepared import Prepared as Prepared
    from clustertune.report import Report as Report
    from clustertune.resetting import Recreated as Recreated
    from clustertune.resetting import reset as reset
    from clustertune.saving import load as load
    from clustertune.saving import save as save
    from clustertune.scheduled import Schedule as Schedule
    from clustertune.scheduling import schedule_restart as schedule_restart
    from clustertune.scheduling import schedules as schedules
    from clustertune.showing import Panel as Panel
    from clustertune.showing import panel as panel
    from clustertune.sizing import Sizing as Sizing
    from clustertune.sizing import size as size
    from clustertune.watcher import Monitor as Monitor

__version__ = "0.1.0"

# By public name, the module that has it; a module that is public has its own name.
_PUBLIC = {
    "apply": "planning",
    "errors": "errors",
    "check": "diagnosis",
    "history": "histories",
    "History": "histories",
    "hold": "holding",
    "last_report": "preparation",
    "load": "saving",
    "Monitor": "watcher",
    "panel": "showing",
    "Panel": "showing",
    "plan": "planning",
    "Played": "played",
    "prepare": "preparation",
    "Prepared": "prepared",
    "Recreated": "resetting",
    "release": "operations",
    "Report": "report",
    "reset": "resetting",
    "resize": "operations",
    "restart": "operations",
    "run": "playing",
    "save": "saving",
    "scale": "operations",
    "Schedule": "scheduled",
    "schedule_restart": "scheduling",
    "schedules": "scheduling",
    "size": "sizing",
    "StoredPlan": "planfile",
    "Sizing": "sizing",
    "training": "training",
    "trim": "operations",
}


def __getattr__(name: str) -> Any:
    """Load the module that has a public name."""
    if name not in _PUBLIC:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    module = import_module(f"{__name__}.{_PUBLIC[name]}")
    found = module if _PUBLIC[name] == name else getattr(module, name)
    globals()[name] = found  # the next time it is there
    return found


def __dir__() -> list[str]:
    return sorted({*globals(), *_PUBLIC})
