"""Steps that actions propose, with keys and bytes; and the imports of actions."""

from __future__ import annotations

import ast
import asyncio
import re
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import clustertune
from clustertune import checks
from clustertune.actions import ACTIONS
from clustertune.core.model import (
    Layout,
    Load,
    Moves,
    OtherVersions,
    Step,
    Unknown,
    View,
)
from clustertune.errors import CapacityError, NoWorkersError
from tests.builders import collection, layout, view, worker
from tests.memory_cluster import MemoryCluster

MB = 2**20


def propose(action: str, seen: View) -> list[Step]:
    return list(ACTIONS[action].propose(checks.run(seen), seen))


def targets(step: Step) -> dict[str, dict[Any, str]]:
    """Return by label of a collection the target address of each moved key."""
    return {
        move.label: {
            key: step.args.workers[i]
            for key, i in zip(move.keys, move.targets.tolist(), strict=True)
        }
        for move in step.args.moves
    }


def at(i: int) -> str:
    return worker(i).address


def enact(action: str, step: Step, cluster: MemoryCluster) -> Any:
    return asyncio.run(ACTIONS[action].enact(step, cluster, lambda *_: None))


# --- all of them ----------------------------------------------------------------------


def test_every_action_keeps_the_contract() -> None:
    """Each has its row in the design, and carries out steps in the event loop."""
    design = (PACKAGE.parent / "docs" / "design.md").read_text()
    table = design.partition("\n## Actions\n")[2].partition("\n## ")[0]
    assert re.findall(r"^\| `(\w+)` \|", table, re.MULTILINE) == list(ACTIONS)
    for action in ACTIONS.values():
        assert asyncio.iscoroutinefunction(action.enact)
        assert list(action.propose((), view())) == []


def test_healthy_data_needs_no_action() -> None:
    """Without problems no action proposes a step."""
    seen = view([worker(0), worker(1)], [layout([10] * 4, [0, 1, 0, 1])], n_workers=2)
    assert [propose(name, seen) for name in ACTIONS] == [[]] * 12


# --- scale ----------------------------------------------------------------------------


def test_scale_up() -> None:
    """One step starts the missing workers; its summary has their number."""
    (step,) = propose("scale", view([worker(0)], n_workers=3))
    assert (step.action, step.args) == ("scale", 3)
    assert step.summary.startswith("scale from 1 to 3 workers")
    assert (step.price.nbytes, step.price.at_risk) == (0, "")
    cluster = MemoryCluster(view([worker(0)]))
    assert enact("scale", step, cluster).nbytes == 0
    assert cluster.calls == ["scale 3"]
    assert len(cluster.workers) == 3


def test_scale_is_not_asked_for() -> None:
    """Without n_workers, or with enough workers, nothing is scaled."""
    assert propose("scale", view([worker(0)])) == []
    assert propose("scale", view([worker(0), worker(1)], n_workers=2)) == []


# --- persist --------------------------------------------------------------------------


def test_persist_everything_in_one_step() -> None:
    """One step loads all lazy data of all layouts, with its size if known."""
    valid = layout([4], None, ("eval_set[0].X",), label="eval_set[0]")
    seen = view((), [layout([MB, MB], None), valid])
    (step,) = propose("load", seen)
    assert step.action == "load"
    assert step.summary == "load X, y, eval_set[0].X (176.0 MiB) in one call"
    assert step.price.peak == MB * 88 + 4 * 80
    assert step.price.nbytes is None
    cluster = MemoryCluster(seen)
    assert enact("load", step, cluster).not_done == ""
    assert cluster.calls == ["load"]


def test_persist_data_that_does_not_tell_its_size() -> None:
    """One collection of unknown size makes the size of the step unknown."""
    data = layout([10], None, total_bytes=None)
    (step,) = propose("load", view((), [data]))
    text = "load X, y (of unknown size; no more than 4.8 GiB) in one call"
    assert step.summary == text
    assert step.price.peak is None


def test_what_is_loaded_is_not_loaded_again() -> None:
    """Only lazy collections are loaded; without any there is no step."""
    mixed = layout([10], [0])
    assert propose("load", view((), [mixed])) == []
    lazy = layout([10], None).collections[1]
    mixed = replace(mixed, collections=(mixed.collections[0], lazy))
    (step,) = propose("load", view((), [mixed]))
    assert step.summary == "load y (80 B) in one call"


def loads(layouts: Any, workers: Any) -> dict[str, list[int]]:
    """Return by label the number of the worker for each key that is loaded."""
    (step,) = propose("load", view(workers, layouts))
    assert isinstance(step.args, Load)
    return {label: where.tolist() for label, where in step.args.targets.items()}


TWO = [worker(0), worker(1)]


def test_lazy_partitions_are_loaded_where_they_train() -> None:
    """Shares of rows are even; pairs, and blocks of columns, are together."""
    X = collection("X", [30, 10, 20], None)
    X = replace(X, keys=tuple(range(6)), column_blocks=2)
    y = collection("y", [30, 10, 20], None)
    y = replace(y, keys=tuple(range(3)))
    found = loads([Layout(label="training data", collections=(X, y))], TWO)
    a, b = found["y"][0], 1 - found["y"][0]
    assert found == {"X": [a, a, b, b, b, b], "y": [a, b, b]}


def test_partitions_of_other_rows_are_loaded_beside_most_of_theirs() -> None:
    """Companions are loaded on the workers with most of the rows of X."""
    X = collection("X", [10, 10, 10, 10], [0, 1, 1, 0])
    y = replace(collection("y", [12, 16, 12], None), keys=tuple(range(3)))
    found = loads([Layout(label="training data", collections=(X, y))], TWO)
    assert found == {"y": [0, 1, 0]}


def test_workers_that_may_not_train_are_not_loaded_to() -> None:
    """No partition is loaded there, even if X is there or the partition is empty."""
    some = [worker(0, status="paused"), worker(1), worker(2)]
    X = collection("X", [10, 10, 10, 10], [0, 0, 1, 2])
    y = replace(collection("y", [10, 10, 10, 10], None), keys=tuple(range(4)))
    found = loads([Layout(label="training data", collections=(X, y))], some)
    assert 0 not in found["y"]
    assert found["y"][2:] == [1, 2]
    empty = replace(collection("X", [10, 0, 10, 10, 10], None), keys=tuple(range(5)))
    found = loads([Layout(label="training data", collections=(empty,))], some)
    assert 0 not in found["X"]


def test_what_cannot_be_bound() -> None:
    """Data with unknown or other rows, and data derived from data in memory."""
    X = replace(collection("X", [10, 10], None), keys=(0, 1))
    for y in (
        replace(collection("y", None, None), keys=(2, 3)),
        replace(collection("y", [10, 11], None), keys=(2, 3)),
        replace(collection("y", [10, 10], None), keys=(2, 3), derived=True),
    ):
        data = Layout(label="training data", collections=(X, y))
        assert list(loads([data], TWO)) == ["X"]
    (step,) = propose("load", view(TWO, [data]))
    assert set(step.args.targets) == {"X"}
    assert loads([data], [worker(0, status="paused")]) == {}


def test_what_cannot_fit_is_not_loaded() -> None:
    """Data that exceeds the free memory is not loaded, unless its size is unknown."""
    small = [worker(i, memory_limit=1000, process=0) for i in range(2)]
    data = layout([10] * 4, None, row_bytes={"X": 50, "y": 8})
    with pytest.raises(CapacityError, match=r"X and y \(2.3 KiB\) cannot be loaded"):
        propose("load", view(small, [data]))
    (step,) = propose("load", view(small, [layout([10], None, total_bytes=None)]))
    assert "load X, y (of unknown size; no more than 1.2 KiB)" in step.summary
    assert step.args.free_memory.tolist() == [600.0, 600.0]
    vague = [replace(w, facts=Unknown("not read")) for w in small]
    (step,) = propose("load", view(vague, [layout([10], None, total_bytes=None)]))
    assert (step.args.free_memory, "(of unknown size)" in step.summary) == (None, True)
    (step,) = propose("load", view(vague, [data]))  # they may have enough memory
    assert "load X, y (2.3 KiB)" in step.summary
    unfit = replace(small[1], facts=OtherVersions("it runs Python 3.9"))
    data = layout([10], None, total_bytes=None)
    (step,) = propose("load", view([small[0], unfit], [data]))
    assert step.args.free_memory.tolist() == [600.0]
    other = layout([10], [0], ("eval_set[0].X",), label="eval_set[0]")
    lazy = layout([10], None, row_bytes={"X": 30, "y": 8})
    assert propose("load", view(small, [lazy]))
    full = replace(other, collections=(collection("eval_set[0].X", [10], [0], 90),))
    with pytest.raises(CapacityError, match="n_workers="):
        propose("load", view(small[:1], [lazy, full]))


# --- rebalance ------------------------------------------------------------------------


def test_rebalance_moves_whole_partitions_with_all_members() -> None:
    """Half of the partitions go to the empty worker, each X_i with its y_i."""
    data = layout([10] * 4, [0, 0, 0, 0])
    (step,) = propose("rebalance", view([worker(0), worker(1)], [data]))
    found = targets(step)
    assert set(found) == {"X", "y"}
    assert {k[1] for k in found["X"]} == {k[1] for k in found["y"]}
    assert sorted(found["X"].values()) == [at(1), at(1)]
    assert step.args.count == 4


def test_rebalance_is_priced_by_what_travels() -> None:
    """The price has bytes, and the rise of memory of the fullest worker."""
    row = 25_000_000 // 88  # 25 MB for each partition
    data = layout([row] * 6, [0] * 6)
    (step,) = propose("rebalance", view([worker(i) for i in range(3)], [data]))
    assert step.price.nbytes == 4 * row * 88
    assert step.price.peak == 2 * row * 88
    assert step.price.at_risk == ""
    assert step.summary == "move 95.4 MiB of training data (8 keys)"


def test_rebalance_brings_the_small_to_the_large() -> None:
    """Of a separated pair, the smaller y goes to X."""
    data = layout([10] * 4, {"X": [0, 1, 0, 1], "y": [1, 0, 0, 1]})
    (step,) = propose("rebalance", view([worker(0), worker(1)], [data]))
    assert targets(step) == {"y": {("y", 0): at(0), ("y", 1): at(1)}}
    assert step.price.nbytes == 2 * 10 * 8


def test_rebalance_goes_by_threads() -> None:
    """A worker with three times the threads gets three times the rows."""
    some = [worker(0), worker(1, nthreads=3)]
    (step,) = propose("rebalance", view(some, [layout([10] * 4, [0] * 4)]))
    assert list(targets(step)["X"].values()) == [at(1)] * 3


def test_rebalance_leaves_workers_that_may_not_train() -> None:
    """All partitions leave a paused worker, and none goes there."""
    some = [worker(0), worker(1), worker(2, status="paused")]
    data = layout([10] * 4, [0, 1, 2, 2])
    (step,) = propose("rebalance", view(some, [data]))
    found = targets(step)["X"]
    assert set(found) == {("X", 2), ("X", 3)}
    assert sorted(found.values()) == [at(0), at(1)]


def test_rebalance_keeps_below_the_lines() -> None:
    """A worker that is nearly full gets no partition, however few rows it has."""
    full = worker(2, process=int(0.7 * 4 * 2**30), managed=0)
    some = [worker(0), worker(1), full]
    (step,) = propose("rebalance", view(some, [layout([10] * 6, [0] * 6)]))
    assert set(targets(step)["X"].values()) == {at(1)}
    assert step.args.process_limits[:2] == (int(0.8 * 4 * 2**30),) * 2


def test_rebalance_has_no_ceiling_where_nothing_pauses() -> None:
    """A worker without a pause threshold, or with an unknown one, has no limit."""
    some = [worker(0, pause=None), worker(1, memory_limit=0)]
    some.append(worker(2, facts=Unknown("it hangs")))
    steps = propose("rebalance", view(some, [layout([10] * 6, [0] * 6)]))
    assert steps[0].args.process_limits == (0, 0, 0)


def test_rebalance_places_every_layout() -> None:
    """The training data has the first step, each eval set its own step after it."""
    valid = layout([5, 5], [0, 0], ("Xv", "yv"), label="eval_set[0]")
    seen = view([worker(0), worker(1)], [layout([10] * 4, [0] * 4), valid])
    first, second = propose("rebalance", seen)
    assert set(targets(first)) == {"X", "y"}
    assert set(targets(second)) == {"Xv", "yv"}


def test_rebalance_leaves_eval_sets_the_room_that_is_left() -> None:
    """A worker that the training data fills gets no partition of an eval set."""
    small = worker(1, memory_limit=3200, process=0)  # 1,920 bytes fit, 1,760 come
    valid = layout([5, 5], [0, 0], ("Xv", "yv"), label="eval_set[0]")
    seen = view([worker(0), small], [layout([10] * 4, [0] * 4), valid])
    (step,) = propose("rebalance", seen)
    assert set(targets(step)) == {"X", "y"}


def test_rebalance_leaves_room_for_replicas_of_eval_sets() -> None:
    """Each worker keeps its replica, so the smaller one gets one partition fewer."""
    small = worker(1, memory_limit=3200, process=0)  # 1,920 bytes fit
    valid = layout([10], [[0, 1]], ("Xv", "yv"), label="eval_set[0]")
    seen = view([worker(0), small], [layout([10] * 4, [0] * 4), valid])
    workload = replace(seen.goal.workload, eval_copies=True)
    seen = replace(seen, goal=replace(seen.goal, workload=workload))
    (step,) = propose("rebalance", seen)
    assert step.args.count == 2


@pytest.mark.parametrize("first", [0, 3])
def test_rebalance_places_no_partition_twice(first: int) -> None:
    """An eval set that is part of the training data, or shares some, is placed once."""
    data = layout([10] * 4, [0] * 4)
    other = layout([10] * 3, [0] * 3, label="eval_set[0]")
    keys = tuple(("X", first + i) for i in range(3))
    shared = replace(other.collections[0], keys=keys)
    other = replace(other, collections=(shared, *other.collections[1:]))
    (step,) = propose("rebalance", view([worker(0), worker(1)], [data, other]))
    assert "training data" in step.summary


def test_rebalance_drops_a_copy_that_would_be_taken() -> None:
    """One of several replicas remains; nothing has to be transferred."""
    data = layout([10] * 4, [[0, 1]] * 4)
    (step,) = propose("rebalance", view([worker(0), worker(1)], [data]))
    assert step.price.nbytes == 0
    assert sorted(targets(step)["X"].values()) == [at(0), at(0), at(1), at(1)]


def test_rebalance_leaves_what_it_cannot_judge() -> None:
    """A lazy layout, or one whose rows differ, is left unchanged."""
    lazy = layout([5, 5], None, label="eval_set[0]")
    seen = view([worker(0), worker(1)], [layout([10] * 4, [0] * 4), lazy])
    (step,) = propose("rebalance", seen)
    assert "training data" in step.summary


def test_rebalance_of_more_than_fits() -> None:
    """The error has the data, the sizes, and a sufficient number of workers."""
    tiny = [worker(i, memory_limit=2000, process=0) for i in (0, 1)]
    data = layout([10] * 4, [0] * 4)  # 3,520 bytes, 1,200 fit on each
    with pytest.raises(CapacityError, match=r"training data .*3.4 KiB.* n_workers=3"):
        propose("rebalance", view(tiny, [data]))


@pytest.mark.parametrize("first", [0, [0, 1]])
def test_rebalance_of_more_than_fits_that_is_there(first: Any) -> None:
    """A small finding is no reason to refuse data that is in memory already."""
    tiny = [worker(i, memory_limit=2000, process=0) for i in (0, 1)]
    homes = [first, 0, 1, 1]  # 3,520 bytes, 1,200 fit on each
    seen = view(tiny, [layout([12, 10, 10, 8], homes)])
    found = propose("rebalance", seen)
    assert [set(targets(s)["X"].values()) for s in found] == [{at(0)}] * (first != 0)
    apart = layout([12, 10, 10, 8], {"X": homes, "y": [0, 0, 1, 0]})
    with pytest.raises(CapacityError):  # y would have to move
        propose("rebalance", view(tiny, [apart]))


def test_rebalance_without_workers() -> None:
    """Without eligible workers there is no plan."""
    some = [worker(0, status="paused"), worker(1, status="paused")]
    with pytest.raises(NoWorkersError, match="none of 2 workers may hold the data"):
        propose("rebalance", view(some, [layout([10] * 4, [0] * 4)]))


def test_rebalance_enacts_through_the_port() -> None:
    """The cluster gets the proposed moves, and its answer is the result."""
    seen = view([worker(0), worker(1)], [layout([10] * 4, [0] * 4)])
    (step,) = propose("rebalance", seen)
    cluster = MemoryCluster(seen)
    assert enact("rebalance", step, cluster).nbytes == step.price.nbytes
    assert isinstance(step.args, Moves)
    assert cluster.calls == ["move 4"]


# --- who may import what --------------------------------------------------------------

PACKAGE = Path(clustertune.__file__).parent
PURE = ("actions", "checks", "planner", "integrations/libraries")


def imports(file: Path) -> set[str]:
    """Return the full names of all imports of a file, also those in functions."""
    found = set()
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{file} has a relative import"
            found |= {f"{node.module}.{alias.name}" for alias in node.names}
    return found


def files(folder: str, pattern: str = "*.py") -> list[Any]:
    return [
        pytest.param(path, id=f"{folder}/{path.name}")
        for path in sorted((PACKAGE / folder).glob(pattern))
    ]


@pytest.mark.parametrize("file", [f for folder in PURE for f in files(folder)])
def test_plugins_are_pure(file: Path) -> None:
    """Checks, actions and workloads use a cluster only through the port."""
    for name in imports(file):
        top, _, rest = name.partition(".")
        assert top not in ("distributed", "asyncio", "threading", "logging")
        # a workload hands on what prepare has made: collections
        assert top != "dask" or file.parent.name == "libraries"
        assert top != "clustertune" or not rest.startswith(
            ("actions.cluster", "monitor", "remote")
        )


def test_what_plugins_are_made_of_is_pure() -> None:
    """The modules that they import, directly or indirectly, do not either."""
    seen: set[Path] = set()
    todo = [PACKAGE / "planner/plan.py", PACKAGE / "planner/placement.py"]
    todo += [p for folder in PURE for p in (PACKAGE / folder).glob("*.py")]
    while todo:
        file = todo.pop()
        seen.add(file)
        for name in imports(file):
            assert name.partition(".")[0] not in ("distributed", "asyncio"), file
            todo += [f for f in modules(name) if f not in seen]
    assert PACKAGE / "planner/memory.py" in seen
    assert PACKAGE / "actions/cluster/live.py" not in seen


def modules(name: str) -> list[Path]:
    """Return the files of the package for the full name of an import."""
    path = PACKAGE.parent / Path(*name.split("."))
    near = (path.with_suffix(".py"), path.parent.with_suffix(".py"))
    return [f for f in near if f.exists()]


SHIPPED = {"distributed", "psutil", "dask.system", "clustertune.remote"}


SENT = [
    *files("remote", "**/*.py"),
    pytest.param(PACKAGE / "dashboard/mount.py", id="mount"),
]


@pytest.mark.parametrize("file", SENT)
def test_what_is_shipped_needs_nothing_that_may_not_be_there(file: Path) -> None:
    """The other side has distributed and the standard library only."""
    more = {
        "ship.py": {"cloudpickle", "dask._task_spec", "dask.utils"},
        "content.py": {"numpy", "pandas"},  # in functions that are given such data
        # distributed needs it, too
        "park.py": {"msgpack"},
        # without it there are no metrics
        "telemetry.py": {"prometheus_client"},
        # where a dashboard is, these are
        "mount.py": {"bokeh", "clustertune.dashboard", "tornado"},
        "probe.py": {"threadpoolctl", "dask.base"},  # the first if it is there
        "xgboost_rounds.py": {"xgboost"},  # where it trains
        "nanny.py": {"clustertune.core.wording"},
        # which travels, too
        "mover.py": {"clustertune.core.rules"},
        "page.py": {"clustertune.core.wording"},
        "restart.py": {"clustertune.core.rules", "clustertune.core.wording"},
        "state.py": {"clustertune.core.rules", "clustertune.core.wording"},
        "release.py": {"clustertune.core.rules"},
        "evacuation.py": {"clustertune.core.rules", "clustertune.core.wording"},
        "schedule_runner.py": {"clustertune.core.rules", "clustertune.core.wording"},
        "schedule.py": {"clustertune.core.rules", "clustertune.core.wording"},
        "lease.py": {"clustertune.core.rules"},
    }
    allowed = SHIPPED | more.get(file.name, set())
    for name in imports(file):
        known = any(name == a or name.startswith(f"{a}.") for a in allowed)
        assert known or name.partition(".")[0] in sys.stdlib_module_names, name
