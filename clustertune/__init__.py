"""clustertune gets a Dask cluster ready for machine-learning training.

The public names are loaded when they are used: Dask loads this package for its own
command line, where a second more would be felt at every ``dask --help``.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from clustertune import errors as errors
    from clustertune import training as training
    from clustertune.past.histories import History as History
    from clustertune.past.histories import history as history
    from clustertune.play.played import Played as Played
    from clustertune.play.playing import run as run
    from clustertune.report import Report as Report
    from clustertune.show.showing import Panel as Panel
    from clustertune.show.showing import panel as panel
    from clustertune.sizing import Sizing as Sizing
    from clustertune.sizing import size as size
    from clustertune.storage.resetting import Recreated as Recreated
    from clustertune.storage.resetting import reset as reset
    from clustertune.storage.saving import load as load
    from clustertune.storage.saving import save as save
    from clustertune.timetable.scheduled import Schedule as Schedule
    from clustertune.timetable.scheduling import schedule_restart as schedule_restart
    from clustertune.timetable.scheduling import schedules as schedules
    from clustertune.tuning.operations import release as release
    from clustertune.tuning.operations import resize as resize
    from clustertune.tuning.operations import restart as restart
    from clustertune.tuning.operations import scale as scale
    from clustertune.tuning.operations import trim as trim
    from clustertune.tuning.planfile import StoredPlan as StoredPlan
    from clustertune.tuning.planning import apply as apply
    from clustertune.tuning.planning import plan as plan
    from clustertune.tuning.preparation import last_report as last_report
    from clustertune.tuning.preparation import prepare as prepare
    from clustertune.tuning.prepared import Prepared as Prepared
    from clustertune.watch.diagnosis import check as check
    from clustertune.watch.holding import hold as hold
    from clustertune.watch.watcher import Monitor as Monitor

__version__ = "0.1.0"

# By public name, the module that has it; a module that is public has its own name.
_PUBLIC = {
    "apply": "tuning.planning",
    "errors": "errors",
    "check": "watch.diagnosis",
    "history": "past.histories",
    "History": "past.histories",
    "hold": "watch.holding",
    "last_report": "tuning.preparation",
    "load": "storage.saving",
    "Monitor": "watch.watcher",
    "panel": "show.showing",
    "Panel": "show.showing",
    "plan": "tuning.planning",
    "Played": "play.played",
    "prepare": "tuning.preparation",
    "Prepared": "tuning.prepared",
    "Recreated": "storage.resetting",
    "release": "tuning.operations",
    "Report": "report",
    "reset": "storage.resetting",
    "resize": "tuning.operations",
    "restart": "tuning.operations",
    "run": "play.playing",
    "save": "storage.saving",
    "scale": "tuning.operations",
    "Schedule": "timetable.scheduled",
    "schedule_restart": "timetable.scheduling",
    "schedules": "timetable.scheduling",
    "size": "sizing",
    "StoredPlan": "tuning.planfile",
    "Sizing": "sizing",
    "training": "training",
    "trim": "tuning.operations",
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
