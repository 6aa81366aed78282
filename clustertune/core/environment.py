"""Environment variables that a file or a command may set for workers.

Some variables make a process run commands (``BROWSER``), load code (``LD_PRELOAD``,
``OMP_TOOL_LIBRARIES``, ``DASK_DISTRIBUTED__WORKER__PRELOAD``) or write files
(``MALLOC_TRACE``, ``MALLOC_CONF``, ``MKL_VERBOSE_OUTPUT_FILE``). So a playbook
may set only the variables below, whose values are numbers or fixed words.
Allowing prefixes such as ``OMP_`` would not be safe.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from difflib import get_close_matches

from clustertune.core.wording import printable

#: threads of OpenMP (GNU, Intel), MKL, OpenBLAS, BLIS, numexpr, Accelerate; allocators
#: of glibc and Arrow. ``*_NUM_THREADS`` is allowed as well.
TUNING = (
    "ARROW_DEFAULT_MEMORY_POOL", "BLIS_IC_NT", "BLIS_IR_NT", "BLIS_JC_NT",
    "BLIS_JR_NT", "BLIS_PC_NT", "GOMP_CPU_AFFINITY", "GOMP_SPINCOUNT",
    "GOMP_STACKSIZE", "KMP_AFFINITY", "KMP_BLOCKTIME", "KMP_HW_SUBSET",
    "KMP_STACKSIZE", "MALLOC_ARENA_MAX", "MALLOC_ARENA_TEST", "MALLOC_MMAP_MAX_",
    "MALLOC_MMAP_THRESHOLD_", "MALLOC_TOP_PAD_", "MALLOC_TRIM_THRESHOLD_",
    "MKL_DYNAMIC", "MKL_THREADING_LAYER", "NUMEXPR_MAX_THREADS", "OMP_DYNAMIC",
    "OMP_MAX_ACTIVE_LEVELS", "OMP_NESTED", "OMP_PLACES", "OMP_PROC_BIND",
    "OMP_SCHEDULE", "OMP_STACKSIZE", "OMP_THREAD_LIMIT", "OMP_WAIT_POLICY",
    "VECLIB_MAXIMUM_THREADS",
)  # fmt: skip
_THREADS = re.compile(r"[A-Z][A-Z0-9]*(_[A-Z0-9]+)*_NUM_THREADS", re.ASCII)
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*", re.ASCII)
_VALUE = re.compile(r"[\w .,:;=+*%{}()\[\]-]{0,200}", re.ASCII)


def is_name(name: str) -> bool:
    """Whether a shell accepts the name of the variable."""
    return _NAME.fullmatch(name) is not None


def tunes(name: str) -> bool:
    """Whether a file may set the variable."""
    return name in TUNING or _THREADS.fullmatch(name) is not None


def objection(variables: Mapping[str, str]) -> str:
    """Return the reason why a file may not set these variables; "": it may."""
    for name, value in variables.items():
        shown = printable(name, longest=60)
        if not tunes(name):
            near = get_close_matches(name, TUNING, n=1)
            return (
                f"{shown} is not a variable of thread pools or allocators; others can "
                "make a worker run commands, load code or write files"
                f"{f' (did you mean {near[0]}?)' if near else ''}. Remove it, or call "
                "clustertune.resize_workers(client, env=..., allow_any_env=True) in "
                f"Python. Allowed: *_NUM_THREADS, {', '.join(TUNING)}"
            )
        if not _VALUE.fullmatch(value):
            return (
                f"{shown}={printable(repr(value), longest=60)} may contain only ASCII "
                "letters, digits, spaces and any of _.,:;=+*%{}()[]-"
            )
    return ""


def text(variables: Mapping[str, str]) -> list[str]:
    """Format variables; hide values that may be secret."""
    return [
        printable(f"{k}={v}" if tunes(k) else f"{k}=(hidden)", longest=80)
        for k, v in variables.items()
    ]
