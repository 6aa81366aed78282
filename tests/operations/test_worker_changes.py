"""Messages about workers that join, leave, restart or die."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from clustertune.core.model import Severity
from clustertune.operations import worker_changes

LAYOUT = {"names": ["X", "y"], "rows": 100, "lost": 0, "parked": 0}


def gone(stimulus: str = "handle-worker-cleanup-1.5", **more: Any) -> dict[str, Any]:
    """An entry of the plugin's answer about a worker whose process ended."""
    entry = {
        "time": 1.0,
        "worker": 2,
        "n_workers": 2,
        "stimulus": stimulus,
        "recorded": {},
        "returned": None,
        "computed": 0,
        "scattered": 0,
        "rows": [0],
    }
    return entry | more


def described(entry: dict[str, Any], held: dict[Any, int], lost: int = 0) -> Any:
    """Kind and finding of an entry, where workers hold some of 100 rows."""
    data = [LAYOUT | {"lost": lost, "workers": list(held), "held": list(held.values())}]
    answer = {"changes": [entry], "data": data}
    ((_, kind, change),) = worker_changes.read(answer)
    return kind, worker_changes.finding(kind, change)


@pytest.mark.parametrize(
    ("stimulus", "recorded", "reason"),
    [
        ("handle-worker-cleanup-1.5", {}, None),
        ("nanny-close-1.5", {}, None),
        ("retire-workers-1.5", {}, "retired"),
        (
            "handle-worker-cleanup-1.5",
            {"closing": "nanny-close"},
            "its nanny closed it",
        ),
        (
            "handle-worker-cleanup-1.5",
            {"closing": "nanny-close", "retired": "retire-workers-1.5"},
            "retired",
        ),
        # it was retired, stayed, and was killed later
        (
            "handle-worker-cleanup-1.5",
            {"retired": "retire-workers-1.5", "exit": "was killed by signal 9"},
            "killed by signal 9 (SIGKILL)",
        ),
        (
            "handle-worker-cleanup-1.5",
            {"closing": "clustertune-restart-1.5", "exit": "was killed by signal 9"},
            "clustertune restarted it",
        ),
        ("nanny-close-1.5", {"closing": "signal-15"}, "it got signal 15 (SIGTERM)"),
        ("clustertune-unpark-1.5", {}, "clustertune restarted it"),
        ("other-1.5", {}, "closed with Dask's reason 'other'"),
        (
            "nanny-close-1.5",
            {"closing": "\x1b[2J"},
            r"closed with Dask's reason '\\x1b",
        ),
        (
            "nanny-close-1.5",
            {"exit": "exited with status 3"},
            "its process exited with status 3",
        ),
        ("nanny-close-1.5", {"exit": "was killed by signal 99"}, "99 (unknown here)"),
        (
            "nanny-close-1.5",
            {"rss": 2**30, "budget": "95", "exit": "was killed by signal 15"},
            "exceeded 95% of its memory limit with 1.0 GiB, so its nanny ended it",
        ),
        ("client-restart-workers-1.5", {"ttl": 300.0}, "no heartbeat for 5 min"),
    ],
)
def test_reasons(stimulus: str, recorded: dict[str, Any], reason: str | None) -> None:
    """The reason that Dask recorded, and None if it recorded none."""
    found = worker_changes.reason(stimulus, recorded)
    assert found == reason if reason is None else reason in (found or "")


def test_joined() -> None:
    """A worker that joins holds no rows."""
    entry = {"time": 1.0, "worker": 3, "n_workers": 2, "stimulus": None}
    kind, found = described(entry, {0: 100, 3: 0})
    assert kind == "joined"
    assert (
        found.message == "worker 3 joined (2 workers now); it holds no rows of X and y"
    )
    assert found.remedy.startswith("Run `X, y = clustertune.prepare(client, X, y)`")
    assert found.subject == (3,)


def test_died() -> None:
    """The reason, lost keys, and rows that only it had."""
    recorded = {"exit": "was killed by signal 9"}
    entry = gone(recorded=recorded, computed=8, rows=[50])
    kind, found = described(entry, {0: 25, 1: 50})
    assert kind == "died"
    assert found.message == (
        "worker 2 died: killed by signal 9 (SIGKILL) (2 workers now); lost keys: 8 "
        "computed (Dask computes them again if needed); only it had 50 of 100 rows of "
        "X and y"
    )
    assert found.severity == Severity.warning
    _, unknown = described(gone(), {0: 50, 1: 50})
    assert "worker 2 died: reason unknown, Dask recorded none" in unknown.message


def test_rows_that_are_lost() -> None:
    """Data that nothing computes again is critical; prepare alone does not suffice."""
    _, found = described(gone(scattered=4, rows=[50]), {0: 50, 1: 0}, lost=50)
    assert "lost keys: 4 scattered (gone)" in found.message
    assert "only it had 50 of 100 rows of X and y; 50 rows cannot be" in found.message
    assert found.severity == Severity.critical
    assert found.remedy.startswith("Load X and y again.")
    _, other = described(gone(scattered=1), {0: 100, 1: 0})
    assert other.severity == Severity.critical
    assert other.remedy.startswith("Scatter the lost data again. Run `X, y = ")


def test_rows_on_parking_workers() -> None:
    """They are in memory."""
    layout = LAYOUT | {"parked": 30, "workers": [0], "held": [60]}
    answer = {"changes": [gone()], "data": [layout]}
    ((_, _, change),) = worker_changes.read(answer)
    (data,) = change.data
    assert data.missing == 10


def test_a_direct_restart() -> None:
    """The next process registered before the former one ended."""
    kind, found = described(gone("clustertune-unpark-1.5", returned=0.0), {2: 100})
    assert kind == "restarted"
    assert found.message.startswith(
        "worker 2 restarted in a new process: clustertune restarted it"
    )


@pytest.mark.parametrize(
    ("name", "model"),
    [
        ("sample_weight", ""),
        # prepare refuses groups without a ranker
        ("qid", ", estimator=model"),
        ("group", ", estimator=model"),
    ],
)
def test_the_remedy_has_all_companions(name: str, model: str) -> None:
    """Weights that the fit uses are prepared with X and y."""
    names = ("X", "y", name)
    data = worker_changes.DataChange(
        names=names, rows=9, only_there=9, lost=9, held={0: 0}
    )
    change = worker_changes.WorkerChange(worker=1, n_workers=1, data=(data,))
    found = worker_changes.finding("died", change)
    assert found.remedy.endswith(
        f"Run `X, y, {name} = clustertune.prepare(client, X, y, {name}={name}{model})`."
    )
    evals = replace(data, names=("eval_set[0].X", "eval_set[0].y"))
    found = worker_changes.finding("died", replace(change, data=(evals,)))
    assert found.remedy.endswith("`X, y = clustertune.prepare(client, X, y)`.")


def test_restarted() -> None:
    """One message instead of a leave and a join."""
    entry = gone(returned=1.4, recorded={"closing": "client-restart-workers-1.5"})
    kind, found = described(entry, {0: 50, 2: 50})
    assert kind == "restarted"
    assert found.message.startswith(
        "worker 2 restarted after 1.4 s in a new process: a client restarted it"
    )
    assert (found.severity, found.remedy) == (Severity.info, "")


def test_released_data_is_not_mentioned() -> None:
    """After a fit its data is often deleted; it is not lost with a later worker."""
    _, found = described(gone("retire-workers-1.5"), {0: 0, 1: 0}, lost=100)
    assert found.message == "worker 2 left: retired (2 workers now); no keys lost"


def test_a_plan_that_runs() -> None:
    """It moves the rows itself."""
    entry = {"time": 1.0, "worker": 3, "n_workers": 2, "stimulus": None}
    answer = {
        "changes": [entry],
        "data": [LAYOUT | {"workers": [0, 3], "held": [100, 0]}],
    }
    ((_, kind, change),) = worker_changes.read(answer)
    found = worker_changes.finding(kind, change, leased=True)
    assert (found.severity, found.remedy) == (Severity.info, "")
