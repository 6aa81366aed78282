"""The page state: the verdict, and problems of workers."""

from __future__ import annotations

import pytest

from clustertune import checks
from clustertune.dashboard import state as states
from clustertune.dashboard.state import verdict
from tests.dashboard.states import finding, of


def test_a_healthy_cluster_is_ready() -> None:
    assert verdict(of()) == ("Ready", "no problem is known")


def test_no_check_has_run() -> None:
    word, reasons = verdict(of(findings=None))
    assert word == "Ready"
    assert "no check has run" in reasons


def test_a_cluster_without_workers_is_not_ready() -> None:
    assert verdict(of(0)) == ("Not ready", "the cluster has no workers")


def test_a_lost_scheduler_makes_the_verdict_unknown() -> None:
    lost = of(trouble="the scheduler has not answered for 9 s")
    assert verdict(lost) == ("Unknown", lost["trouble"])


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
    for worker, value in zip(bad["workers"], values, strict=True):
        worker[name] = value
    level, text = verdict(bad)
    assert level == "Not ready"
    assert words in text


def test_rows_are_the_first_problem() -> None:
    """Fewer threads than CPUs are no headline over empty workers."""
    bad = of(rows=[200, 200, 0, 0])
    bad["collections"][0]["apart"] = 1
    bad["findings"]["found"] = [finding(message="fewer threads than CPUs")]
    word, reasons = verdict(bad)
    assert word == "Usable, but"
    assert reasons == (
        "workers worker-2 and worker-3 hold no rows of training data; "
        "1 separated pair of training data; fewer threads than CPUs"
    )


def test_rows_that_the_page_has_not_counted() -> None:
    """The findings about rows count then, and are first."""
    found = [
        finding(message="fewer threads than CPUs"),
        finding(message="2 workers are empty", check="empty_workers"),
    ]
    state = of(collections=[], findings={"time": 0.0, "command": "c", "found": found})
    reasons = "2 workers are empty; fewer threads than CPUs"
    assert verdict(state) == ("Usable, but", reasons)


def test_uneven_rows() -> None:
    word, reasons = verdict(of(rows=[150, 150, 50, 50]))
    assert word == "Usable, but"
    assert reasons.endswith("the fullest worker has 1.5 times its share")


def test_lost_partitions_stop_a_fit() -> None:
    """Data that is missing as a whole was released after a fit."""
    state = of()
    state["collections"][0]["missing"] = 3
    reason = "3 partitions of training data not in memory"
    assert verdict(state) == ("Not ready", reason)
    state["collections"][0]["missing"] = state["collections"][0]["partitions"]
    assert verdict(state)[0] == "Ready"


def test_the_worst_findings_come_first() -> None:
    found = [
        finding(message=f"bad {i}", severity="critical", check="no_rows")
        for i in range(5)
    ]
    state = of(findings={"time": 0.0, "command": "c", "found": [finding(), *found]})
    assert verdict(state) == ("Not ready", "bad 0; bad 1; bad 2; and 2 more")


def test_live_conditions_replace_old_findings() -> None:
    old = [finding(check="paused_workers", severity="critical")]
    old += [finding(check="uneven_rows")]
    state = of(findings={"time": 0.0, "command": "c", "found": old})
    assert verdict(state)[0] == "Ready"


def test_findings_end_with_their_processes() -> None:
    """A restarted worker has another address, which ends the finding."""
    both = ["tcp://10.0.0.0:4000", "tcp://10.0.0.0:9"]
    some = finding(check="unmanaged_memory", message="leaks", processes=both)
    found = {"time": 0.0, "command": "c", "found": [some]}
    assert verdict(of(findings=found)) == ("Usable, but", "leaks")
    some["processes"] = both[1:]
    assert verdict(of(findings=found))[0] == "Ready"


def test_live_checks_exist() -> None:
    assert set(checks.available()) >= states.OF_WORKERS | states.OF_ROWS


def test_memory_above_a_workers_own_spill_threshold() -> None:
    state = of(2)
    for worker, spill in zip(state["workers"], (None, 2**20), strict=True):
        worker["thresholds"][1] = spill
    word, reasons = verdict(state)
    assert word == "Usable, but"
    assert reasons == "worker worker-1 has more memory than the spill threshold"


def test_problems_of_workers_in_words() -> None:
    workers = of(3)["workers"]
    workers[1]["status"] = "closing_gracefully"
    workers[2]["silent"] = 20.0
    found = [states.condition(w) for w in workers]
    assert found == ["", "closing gracefully", "silent for 20 s"]
