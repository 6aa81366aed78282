"""clustertune gets a Dask cluster ready for machine-learning training.

The public names are loaded when they are used: Dask loads this package for its own
command line, where a second more would be felt at every ``dask --help``.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from clustertune import errors as errors
    from clustertune import training as training
    from clustertune.core.report import Report as Report
    from clustertune.dashboard.show import dashboard_page as dashboard_page
    from clustertune.operations.check import check as check
    from clustertune.operations.fit import fit as fit
    from clustertune.operations.history import history as history
    from clustertune.operations.hold import hold as hold
    from clustertune.operations.playbooks.running import run_playbook as run_playbook
    from clustertune.operations.prepare import last_report as last_report
    from clustertune.operations.prepare import prepare as prepare
    from clustertune.operations.prepared import Prepared as Prepared
    from clustertune.operations.schedules import (
        schedule_restart as schedule_restart,
    )
    from clustertune.operations.schedules import schedules as schedules
    from clustertune.operations.sizing import recommend_size as recommend_size
    from clustertune.operations.watch import Monitor as Monitor
    from clustertune.operations.workers import merge_workers as merge_workers
    from clustertune.operations.workers import release_data as release_data
    from clustertune.operations.workers import resize_workers as resize_workers
    from clustertune.operations.workers import restart_workers as restart_workers
    from clustertune.operations.workers import scale as scale
    from clustertune.operations.workers import trim_memory as trim_memory

__version__ = "0.1.0"

# By public name, the module that has it; a module that is public has its own name.
_PUBLIC = {
    "errors": "errors",
    "check": "operations.check",
    "fit": "operations.fit",
    "history": "operations.history",
    "hold": "operations.hold",
    "last_report": "operations.prepare",
    "Monitor": "operations.watch",
    "dashboard_page": "dashboard.show",
    "merge_workers": "operations.workers",
    "prepare": "operations.prepare",
    "Prepared": "operations.prepared",
    "release_data": "operations.workers",
    "Report": "core.report",
    "resize_workers": "operations.workers",
    "restart_workers": "operations.workers",
    "run_playbook": "operations.playbooks.running",
    "scale": "operations.workers",
    "schedule_restart": "operations.schedules",
    "schedules": "operations.schedules",
    "recommend_size": "operations.sizing",
    "training": "training",
    "trim_memory": "operations.workers",
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
    return sorted({*_PUBLIC, *(name for name in globals() if name.startswith("__"))})
