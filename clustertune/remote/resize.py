"""Changes with what threads, memory limit and environment a nanny starts its worker.

Runs on the nanny. What it has takes effect when the worker is started the next time,
and holds for every start after that, also after a crash.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from typing import Any

from clustertune.remote.details import pools


def resize(
    dask_worker: Any,
    nthreads: int | None = None,
    memory_limit: int | None = None,
    env: Mapping[str, str | None] | None = None,
) -> dict[str, Any]:
    """Set what is not None; answers with what was, in the form of the arguments.

    ``dask_worker`` is the nanny: distributed calls it so. A variable that is None is
    not set. ``outer`` of the answer are the same variables of the nanny's own process,
    into which distributed copies them when it starts the worker.
    """
    nanny, process = dask_worker, dask_worker.process
    if process is None:
        raise RuntimeError("the nanny has no worker process now")
    was: dict[str, Any] = {}
    if nthreads is not None:
        was["nthreads"] = nanny.nthreads
        nanny.nthreads = nthreads
        process.worker_kwargs["nthreads"] = nthreads
    if memory_limit is not None:
        was["memory_limit"] = nanny.memory_manager.memory_limit
        # the nanny's own: it kills a worker that comes close to it
        nanny.memory_manager.memory_limit = memory_limit
        process.worker_kwargs["memory_limit"] = memory_limit
    if env is not None:
        was["env"] = {name: nanny.pre_spawn_env.get(name) for name in env}
        was["outer"] = {name: os.environ.get(name) for name in env}
        # bound anew: changed in place they would change for others that share them
        both = (_with(nanny.pre_spawn_env, env), _with(nanny.env, env))
        nanny.pre_spawn_env = process.pre_spawn_env = both[0]
        nanny.env = process.env = both[1]
    return was


def _with(
    variables: Mapping[str, str], changes: Mapping[str, str | None]
) -> dict[str, str]:
    merged = {**variables, **changes}
    return {name: value for name, value in merged.items() if value is not None}


def put_back(dask_worker: Any, outer: Mapping[str, str | None]) -> None:
    """Make the nanny's own process have these variables again: it may be a user's."""
    for name, value in outer.items():
        if value is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = value


def started_with(dask_worker: Any, names: Iterable[str]) -> dict[str, Any]:
    """What a worker has: threads, memory limit, variables, native pools."""
    return {
        "nthreads": dask_worker.state.nthreads,
        "memory_limit": dask_worker.memory_manager.memory_limit,
        "env": {name: os.environ.get(name) for name in names},
        "pools": pools(),
    }
