"""Private names of Dask that the package needs, and the modules that use each.

The scheduler plugin checks its names at installation (``remote/ship.py``). Here the
tables are compared with live objects and with the code. ``docs/design.md`` names the
tests of what the names do.
"""

from __future__ import annotations

import ast
import inspect
import pkgutil
import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import distributed
import pytest
from distributed import LocalCluster, Nanny, active_memory_manager, wait
from distributed.deploy.spec import SpecCluster

import clustertune
from clustertune.remote.ship import REQUIRED
from tests.in_process import gen_cluster

PACKAGE = Path(clustertune.__path__[0])
TABLE = (
    (PACKAGE.parent / "docs" / "design.md").read_text().partition("## Private names")[2]
)

#: names in the processes of workers and nannies, by object
WORKERS = {
    "worker": (
        "_deque_handler",
        "_send_worker_status_change",
        "data",
        "executors",
        "heartbeat",
        "lifetime",
        "local_directory",
        "memory_manager",
        "nanny",
        "plugin_add",
        "state",
        "transfer_incoming_log",
    ),
    "worker's memory manager": (
        "memory_pause_fraction",
        "memory_spill_fraction",
        "memory_target_fraction",
    ),
    "worker's data": ("_slow_uncached", "memory", "slow"),
    "nanny": (
        "local_directory",
        "memory_manager",
        "nthreads",
        "plugins",
        "process",
        "scheduler_addr",
        "security",
        "worker_kwargs",
    ),
    "nanny's process": (
        "Worker",
        "config",
        "env",
        "kill",
        "on_exit",
        "pre_spawn_env",
        "process",
        "silence_logs",
        "start",
        "status",
        "worker_kwargs",
    ),
    "nanny's memory manager": (
        "memory_limit",
        "memory_terminate_fraction",
    ),
}
CLIENT = {
    "client": (
        "_send_to_scheduler",
        "futures",
        "refcount",
    ),
    "cluster": (
        "_lock",
        "_supports_scaling",
        "new_spec",
        "worker_spec",
        "workers",
    ),
}

#: what is called with arguments by name, and these
CALLED = {
    "distributed.Scheduler.handle_worker_status_change": (
        "status",
        "worker",
        "stimulus_id",
    ),
    "distributed.Scheduler.gather_on_worker": ("worker_address", "who_has"),
    "distributed.Scheduler.identity": ("n_workers",),
    "distributed.Scheduler.remove_replica": ("ts", "ws"),
    "distributed.Scheduler.remove_worker": ("stimulus_id", "expected"),
    "distributed.Scheduler.request_acquire_replicas": ("keys", "stimulus_id"),
    "distributed.Scheduler.restart_workers": (
        "timeout",
        "wait_for_workers",
        "on_error",
        "stimulus_id",
    ),
    "distributed.Scheduler.retire_workers": (
        "workers",
        "close_workers",
        "remove",
        "stimulus_id",
    ),
    "distributed.Scheduler.client_releases_keys": ("keys", "client", "stimulus_id"),
    "distributed.active_memory_manager.ActiveMemoryManagerExtension": (
        "scheduler",
        "policies",
        "register",
        "start",
    ),
    "distributed.active_memory_manager.Suggestion": ("op", "ts", "candidates"),
    "distributed.active_memory_manager.ReduceReplicas.run": ("self",),
    "distributed.Worker": (
        "data",
        "executor",
        "lifetime",
        "preload",
        "preload_argv",
        "security",
    ),
    "distributed.nanny.Nanny.instantiate": (),
    "distributed.nanny.WorkerProcess": (
        "worker_kwargs",
        "silence_logs",
        "on_exit",
        "worker",
        "env",
        "pre_spawn_env",
        "config",
    ),
    "distributed.spill.SpillBuffer": ("spill_directory", "target"),
    "distributed.dashboard.core.BokehApplication": (
        "applications",
        "server",
        "prefix",
        "template_variables",
    ),
    "distributed.dashboard.scheduler.template_variables": ("scheduler",),
    "dask._task_spec.Task": ("key", "func"),
    "dask._task_spec.Alias": ("key", "target"),
    "dask._task_spec.List": (),
    "dask._task_spec.TaskRef": ("key",),
    "dask._task_spec.DataNode": ("key", "value"),
    "dask._task_spec.convert_legacy_graph": ("dsk",),
    "dask.base.collections_to_expr": ("collections",),
    "dask.array.core._concatenate2": ("arrays", "axes"),
    "dask.array.core.concatenate3": ("arrays",),
    "dask.dataframe.dask_expr.from_graph": ("layer", "_meta", "divisions", "keys"),
    "dask.dataframe.dask_expr._expr.Lengths": (),
    "dask.dataframe.dask_expr._expr.Literal": (),
    "dask.dataframe.dask_expr._expr.Partitions": (),
    "dask.dataframe.dask_expr.io.ReadParquet": (),
    "dask.dataframe.dask_expr.io.parquet.ReadParquetPyarrowFS": (),
    "dask.sizeof.sizeof": (),
    "dask.delayed.Delayed": ("key", "dsk"),
}


def lacking(thing: Any, what: str, names: Iterable[str]) -> list[str]:
    """Return the missing names of an object."""
    return [f"{what}: {name}" for name in names if not hasattr(thing, name)]


@gen_cluster(client=True, nthreads=[("127.0.0.1", 1)])
async def test_names_in_a_scheduler(c: Any, s: Any, a: Any) -> None:
    future = c.submit(abs, -1)
    await wait(future)
    task, worker = s.tasks[future.key], s.workers[a.address]
    things = {
        "Scheduler": s,
        "WorkerState": worker,
        "MemoryState": worker.memory,
        "TaskState": task,
        "ClientState": s.clients[c.id],
        "TaskPrefix": task.prefix,
        "active_memory_manager": active_memory_manager,
        "memory manager": s.extensions["amm"],
        "work stealing": s.extensions["stealing"],
        "publish extension": s.extensions["publish"],
    }
    assert things.keys() == REQUIRED.keys()
    assert [m for k, t in things.items() for m in lacking(t, k, REQUIRED[k])] == []


@gen_cluster(
    client=True,
    nthreads=[("127.0.0.1", 1)],
    worker_kwargs={"memory_limit": "8 GiB"},
)
async def test_names_in_workers_and_nannies(c: Any, s: Any, a: Any) -> None:
    """Names missing in workers and nannies are found for clients too."""
    async with Nanny(s.address, nthreads=1, memory_limit="1 GiB") as nanny:
        things = {
            "worker": a,
            "worker's memory manager": a.memory_manager,
            "worker's data": a.data,
            "nanny": nanny,
            "nanny's process": nanny.process,
            "nanny's memory manager": nanny.memory_manager,
        }
        assert [m for k, t in things.items() for m in lacking(t, k, WORKERS[k])] == []
        assert lacking(c, "client", CLIENT["client"]) == []
    assert lacking(SpecCluster, "cluster", ["_supports_scaling"]) == []
    async with LocalCluster(
        0, processes=False, asynchronous=True, dashboard_address="127.0.0.1:0"
    ) as cluster:
        assert lacking(cluster, "cluster", CLIENT["cluster"]) == []


@gen_cluster(client=True, nthreads=[("127.0.0.1", 1)])
async def test_what_is_lost_is_in_the_events(c: Any, s: Any, a: Any) -> None:
    """Losses of a restart are read from these events."""
    computed = c.submit(abs, -1, key="computed")
    (scattered,) = await c.scatter([1], hash=False)
    await wait([computed, scattered])
    await s.remove_worker(a.address, stimulus_id="test")
    (event,) = [
        e for _, e in s.get_events("all")
        if isinstance(e, dict) and e.get("action") == "remove-worker"
    ]  # fmt: skip
    assert event["worker"] == a.address
    assert list(event["lost-computed-tasks"]) == ["computed"]
    assert list(event["lost-scattered-tasks"]) == [scattered.key]


@pytest.mark.parametrize("path", CALLED)
def test_what_is_called_takes_what_it_is_given(path: str) -> None:
    """Functions have the arguments with which they are called."""
    function = pkgutil.resolve_name(path)
    parameters = inspect.signature(function).parameters
    takes_any = any(p.kind is p.VAR_KEYWORD for p in parameters.values())
    missing = [n for n in CALLED[path] if n not in parameters and not takes_any]
    assert missing == [], f"{path} of {distributed.__version__} takes {parameters}"


# --- that nothing is left out ---------------------------------------------------------


def private(tree: ast.AST) -> Iterator[str]:
    """Return the private names in a module, except those of ``self``."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute):
            holder = node.value.id if isinstance(node.value, ast.Name) else ""
            names = [] if holder in ("self", "cls") else [node.attr]
        elif isinstance(node, ast.ImportFrom) and node.module != "__future__":
            names = [*str(node.module).split("."), *(a.name for a in node.names)]
        else:
            names = []
        yield from (n for n in names if n.startswith("_") and not n.startswith("__"))


def defined(tree: ast.AST) -> Iterator[str]:
    """Return the names of functions and classes."""
    kinds = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
    yield from (node.name for node in ast.walk(tree) if isinstance(node, kinds))


def test_every_private_name_is_in_the_table() -> None:
    """The table in the design has it, with its test."""
    trees = {p: ast.parse(p.read_text()) for p in PACKAGE.rglob("*.py")}
    ours = {name for tree in trees.values() for name in defined(tree)}
    known = ours | set(re.findall(r"\w+", TABLE))
    # of frames: its public name is that of a property; what notebooks ask for; and a
    # public method of named tuples
    known |= {"_meta", "_repr_html_", "_asdict"}
    found = {(p.name, n) for p, tree in trees.items() for n in private(tree)}
    assert {(file, name) for file, name in found if name not in known} == set()


def test_what_the_table_names_is_there() -> None:
    """The modules and tests of the table exist."""
    tests = PACKAGE.parent / "tests"
    text = "".join(p.read_text() for p in tests.rglob("test_*.py"))
    rows = [line.split(" | ") for line in TABLE.splitlines() if line.startswith("| `")]
    assert len(rows) > 30
    for _, used, pinned in rows:
        for module in re.findall(r"`([\w/]+\.py)`", used):
            where = PACKAGE.parent if module.startswith("tests/") else PACKAGE
            assert (where / module).is_file(), module
        for name in re.findall(r"`([\w/.]+)`", pinned):
            if name.startswith("tests/"):
                assert (PACKAGE.parent / name).exists(), name
            else:
                assert f"def {name}(" in text, name


def of_scheduler(tree: ast.AST) -> Iterator[str]:
    """Return the attributes of a scheduler that a module reads or calls."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute):
            holder = getattr(node.value, "attr", getattr(node.value, "id", ""))
            if holder in ("scheduler", "dask_scheduler"):
                yield node.attr


def test_all_attributes_of_the_scheduler_are_checked_at_installation() -> None:
    files = (PACKAGE / "remote" / "scheduler").glob("*.py")
    used = {n for p in files for n in of_scheduler(ast.parse(p.read_text()))}
    assert len(used) > 30
    assert used == {*REQUIRED["Scheduler"]}


def test_names_are_used() -> None:
    """Each name in the tables is used by the package."""
    used = {n for p in PACKAGE.rglob("*.py") for n in re.findall(r"\w+", p.read_text())}
    for kinds in (REQUIRED, WORKERS, CLIENT):
        assert {n for names in kinds.values() for n in names} - used == set()
