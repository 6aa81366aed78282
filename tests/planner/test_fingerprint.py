"""What a plan saw, and in what that differs from now (pure)."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from clustertune.planner import fingerprint
from clustertune.planner.fingerprint import Fingerprint
from clustertune.testing import layout, view, worker


def seen(workers: Any, layouts: Any = ()) -> Fingerprint:
    return fingerprint.take("Scheduler-1", view(workers, layouts))


def changes(was: Fingerprint, now: Fingerprint) -> list[str]:
    return list(fingerprint.differences(was, now))


TWO = [worker(0), worker(1)]
DATA = layout([10, 10], [0, 1])


def test_what_changes_all_the_time_is_no_difference() -> None:
    """Memory, tasks, speeds and the order of workers."""
    busy = worker(1, process=2**31, executing=3, bandwidth=5.0, silent=4.0)
    was = seen(TWO, [DATA])
    assert changes(was, was) == []
    turned = layout([10, 10], [1, 0])
    assert changes(was, seen([busy, worker(0)], [turned])) == []


def test_a_parking_worker_is_none() -> None:
    """It is there for the time of a restart."""
    assert seen([*TWO, worker(2, parking=True)]) == seen(TWO)


@pytest.mark.parametrize(
    ("workers", "layouts", "text"),
    [
        ([worker(0)], [], "worker 1 is gone"),
        ([*TWO, worker(2), worker(3)], [], "workers 2 and 3 are new"),
        ([worker(0), worker(1, address="tcp://b:2")], [], "worker 1 was restarted"),
        (
            [worker(0), worker(1, status="paused")],
            [],
            "worker 1 is now paused, 1 thread, 4.0 GiB, and was running, 1 thread",
        ),
        ([worker(0), worker(1, nthreads=2)], [], "now running, 2 threads, 4.0 GiB"),
        ([worker(0), worker(1, memory_limit=0)], [], "running, 1 thread, no limit"),
        (TWO, [layout([10, 10], [0, 0])], "X lies on other workers"),
        (TWO, [layout([10, 10], [0, (0, 1)])], "X lies on other workers"),
        (TWO, [layout([10, 10, 5], [0, 1, 1])], "X has other pieces: 3, and it had 2"),
        (TWO, [layout([10, 11], [0, 1])], "X has pieces of other sizes"),
    ],
)
def test_differences(workers: Any, layouts: Any, text: str) -> None:
    """Each says what is so now."""
    was = seen(TWO, [DATA] if layouts else [])
    assert text in changes(was, seen(workers, layouts))[0]


def test_data_that_is_loaded_or_gone() -> None:
    """Whether it is in memory, or given at all."""
    was = seen(TWO, [DATA])
    X = was.data[0]
    lazy = replace(X, loaded=False, nbytes="", holders="")
    assert changes(replace(was, data=(lazy,)), replace(was, data=(X,))) == [
        "X is in memory now"
    ]
    assert changes(replace(was, data=(X,)), replace(was, data=(lazy,))) == [
        "X is not in memory any more"
    ]
    assert changes(replace(was, data=(X,)), replace(was, data=())) == ["X is not there"]


def test_names_from_a_cluster_do_nothing_to_a_terminal() -> None:
    """They are chosen by whoever starts a worker."""
    (text,) = changes(seen([worker(0)]), seen([worker(0), worker("\x1b[2J")]))
    assert text == "worker \\x1b[2J is new"
