"""The page state: the verdict, and problems of workers."""

from __future__ import annotations

import pytest
from distributed.utils_test import gen_cluster

from clustertune import checks
from clustertune.dashboard import page
from clustertune.dashboard import state as states
from clustertune.dashboard.state import verdict
from tests.dashboard.states import finding, of


def test_a_healthy_cluster_is_ready() -> None:
    assert verdict(of()) == ("ready", "Ready: no problem is known")


def test_no_check_has_run() -> None:
    level, text = verdict(of(findings=None))
    assert level == "ready"
    assert "no check has run" in text


def test_a_cluster_without_workers_is_not_ready() -> None:
    assert verdict(of(0)) == ("not ready", "Not ready: the cluster has no workers")


def test_a_lost_scheduler_makes_the_verdict_unknown() -> None:
    lost = of(trouble="the scheduler has not answered for 9 s")
    assert verdict(lost) == ("unknown", f"Unknown: {lost['trouble']}")


@pytest.mark.parametrize(
    ("name", "values", "words"),
    [
        ("status", ["running", "paused", "running", "running"], "worker-1 is paused"),
        ("silent", [0.1, 0.1, 0.1, 40.0], "worker-3 sent no heartbeat for 15 s"),
        ("status", ["closing_gracefully"] * 4, "no worker is running"),
    ],
)
def test_workers_that_take_no_tasks(
    name: str, values: list[object], words: str
) -> None:
    bad = of()
    bad["workers"][name] = values
    level, text = verdict(bad)
    assert level == "not ready"
    assert words in text


def test_uneven_rows_and_separated_pairs() -> None:
    bad = of(rows=[200, 200, 0, 0])
    bad["collections"][0]["apart"] = 1
    level, text = verdict(bad)
    assert level == "usable"
    assert "1 separated pair of training data" in text
    assert "uneven (2 times the even share)" in text


def test_lost_partitions_stop_a_fit() -> None:
    """Data that is missing as a whole was released after a fit."""
    state = of()
    state["collections"][0]["missing"] = 3
    assert verdict(state)[1] == "Not ready: 3 partitions of training data not in memory"
    state["collections"][0]["missing"] = state["collections"][0]["partitions"]
    assert verdict(state)[0] == "ready"


def test_the_worst_findings_come_first() -> None:
    found = [
        finding(message=f"bad {i}", severity="critical", check="no_rows")
        for i in range(4)
    ]
    state = of(findings={"time": 0.0, "command": "c", "found": [finding(), *found]})
    assert verdict(state) == ("not ready", "Not ready: bad 0; bad 1; and 2 more")


def test_live_conditions_replace_old_findings() -> None:
    old = [finding(check="paused_workers", severity="critical"), finding()]
    state = of(findings={"time": 0.0, "command": "c", "found": old})
    assert verdict(state)[0] == "ready"


def test_findings_end_with_their_processes() -> None:
    """A restarted worker has another address, which ends the finding."""
    both = ["tcp://10.0.0.0:4000", "tcp://10.0.0.0:9"]
    some = finding(check="unmanaged_memory", message="leaks", processes=both)
    found = {"time": 0.0, "command": "c", "found": [some]}
    assert verdict(of(findings=found)) == ("usable", "Usable, but: leaks")
    some["processes"] = both[1:]
    assert verdict(of(findings=found))[0] == "ready"
    assert (
        "leaks <span class='soft'>(the process has ended since)</span>"
        in page.findings(of(findings=found))
    )


def test_live_checks_exist() -> None:
    assert set(checks.available()) >= states.LIVE_CHECKS


def test_memory_above_a_workers_own_spill_threshold() -> None:
    state = of(2)
    state["workers"]["spill"] = [None, 2**20]
    level, text = verdict(state)
    assert level == "usable"
    assert "worker worker-1 has more memory than the spill threshold" in text


def test_problems_of_workers_in_words() -> None:
    workers = of(3)["workers"]
    workers["status"][1] = "closing_gracefully"
    workers["silent"][2] = 20.0
    said = states.conditions(workers)
    assert said == ["", "closing gracefully", "silent for 20 s"]


@gen_cluster(client=True, nthreads=[("127.0.0.1", 1)] * 2)
async def test_the_identity_of_a_scheduler_shows_workers(c, s, a, b):
    """The scheduler's own data has memory and threads, and no thresholds."""
    await a.heartbeat()
    await b.heartbeat()
    identity = await c.scheduler.identity(n_workers=-1)
    state = states.of_identity(identity, 0.0)
    assert set(state) == set(states.make())
    assert state["workers"]["id"] == [a.name, b.name]
    assert min(state["workers"]["process"]) > 2**20
    assert state["workers"]["pause"] == [None, None]
    assert state["hosts"]["threads"] == [2]
