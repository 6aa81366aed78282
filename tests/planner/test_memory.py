"""Free memory for given partitions, up to the first threshold of a worker."""

from __future__ import annotations

import numpy as np
import pytest

from clustertune.core.model import Unknown
from clustertune.errors import CapacityError
from clustertune.planner.memory import (
    fixed_bytes,
    free_memory,
    levels,
    limit,
    refuse_overfull,
    refuse_too_much,
)
from tests.builders import layout, view, worker

# --- memory ---------------------------------------------------------------------------


LIMIT = 1000
PARTITIONS = layout(
    [10, 10], [0, 0], ["X"], row_bytes={"X": 10}
)  # 200 bytes on worker 0


def one(**overrides: object) -> float:
    """Return the free memory of one worker that holds PARTITIONS."""
    given = {"memory_limit": LIMIT, "process": 200, "managed": 200} | overrides
    return float(free_memory(view([worker(0, **given)], [PARTITIONS]))[0])


def test_a_worker_with_nothing_else_has_room_up_to_its_target() -> None:
    """Managed memory may grow to the target, the first threshold of an idle worker."""
    assert one() == 600


@pytest.mark.parametrize(
    ("overrides", "expected"),
    [
        ({"target": 0.9, "spill": 0.7, "pause": 0.8}, 700),
        ({"target": 0.9, "spill": 0.8, "pause": 0.7}, 700),
        ({"target": None, "spill": 0.5, "pause": 0.8}, 500),
        ({"target": None, "spill": None, "pause": 0.8}, 800),
        ({"target": None, "spill": None, "pause": None}, 1000),
        ({"target": 0.3, "spill": None, "pause": None}, 300),
    ],
)
def test_the_lowest_line_counts(overrides: dict[str, float], expected: float) -> None:
    """The lowest of target, spill and pause counts; thresholds that are off do not."""
    assert one(**overrides) == pytest.approx(expected)


def test_unmanaged_memory_counts_for_the_process_only() -> None:
    """The target is for managed memory; unmanaged memory lowers the others."""
    assert one(process=200 + 50) == 600
    assert one(process=200 + 250) == pytest.approx(700 - 250)


def test_workers_in_one_process() -> None:
    """Workers in one process each see all its keys.

    Keys of the other workers are not unmanaged memory.
    """
    one = {"memory_limit": LIMIT, "process": 500}
    workers = [
        worker(0, address="inproc://10.0.0.1/77/2", managed=200, **one),
        worker(1, address="inproc://10.0.0.1/77/5", managed=250, **one),
        worker(2, address="inproc://10.0.0.1/78/2", managed=0, **one),
    ]
    assert fixed_bytes(view(workers, [PARTITIONS])).tolist() == [50, 300, 500]


def test_foreign_keys_count_for_both() -> None:
    """Other keys stay, and count below both target and spill."""
    assert one(process=500, managed=500) == pytest.approx(600 - 300)
    assert one(process=500, managed=500, target=0.9) == pytest.approx(700 - 300)


def test_given_partitions_can_leave() -> None:
    """Given partitions do not reduce their own room on any worker."""
    workers = [
        worker(0, memory_limit=LIMIT, process=200, managed=200),
        worker(1, memory_limit=LIMIT, process=0),
    ]
    seen = view(workers, [PARTITIONS])
    assert fixed_bytes(seen).tolist() == [0, 0]
    assert free_memory(seen).tolist() == [600, 600]


def test_sizes_that_lag_behind_take_nothing() -> None:
    """An old heartbeat does not make sizes negative."""
    assert fixed_bytes(view([worker(0, process=100, managed=100)], [PARTITIONS])) == [0]


def test_no_room_is_not_less_than_none() -> None:
    """A full worker has no free memory, and never less than none."""
    assert one(process=5000) == 0


def test_without_a_limit_the_host_is_the_line() -> None:
    """Workers without a limit share the memory of their host."""
    workers = [
        worker(0, memory_limit=0, host_memory=LIMIT, process=300, managed=200),
        worker(1, memory_limit=0, host_memory=LIMIT, process=0),
        worker(2, memory_limit=0, host_memory=LIMIT, process=0, host="10.0.0.9"),
    ]
    seen = view(workers, [PARTITIONS])
    assert [limit(w, seen) for w in workers] == [500, 500, 1000]
    assert free_memory(seen).tolist() == [400, 500, 1000]


def test_what_is_not_known_gives_no_more_room_than_is_used() -> None:
    """A worker with unknown thresholds keeps its partitions and gets no more."""
    silent = {"facts": Unknown("it did not answer"), "memory_limit": LIMIT}
    workers = [
        worker(0, process=200, managed=200, **silent),
        worker(1, process=0, **silent),
    ]
    assert free_memory(view(workers, [PARTITIONS])).tolist() == [200, 0]


def test_neither_limit_nor_host_known() -> None:
    """Without limit and answer the limit is unknown, with the reason."""
    silent = worker(0, memory_limit=0, facts=Unknown("it did not answer"))
    assert limit(silent, view([silent])) == Unknown("it did not answer")
    assert free_memory(view([silent])).tolist() == [0]


# --- thresholds -----------------------------------------------------------------------


GIB = 2**30


def test_without_a_limit_or_facts_there_are_no_levels():
    """Without a limit or facts there are no thresholds."""
    assert levels(worker(memory_limit=0)) == ()
    assert levels(worker(facts=Unknown("no answer"))) == ()


def test_thresholds_that_are_off_or_unknown_are_left_out():
    """Two of four thresholds are on and known."""
    found = levels(worker(pause=None, terminate=Unknown("no answer")))
    assert [level.name for level in found] == ["spill", "target"]


def test_each_threshold_is_of_its_own_measure():
    """The target is for managed memory, the others are for process memory."""
    busy = worker(memory_limit=4 * GIB, process=3 * GIB, managed=GIB)
    rooms = {level.name: level.headroom for level in levels(busy)}
    assert rooms == pytest.approx(
        {"terminate": 0.2, "pause": 0.05, "spill": -0.05, "target": 0.35}
    )


def test_a_level_says_what_is_measured_and_what_comes():
    """The text has the measure, its bytes and fraction, and the worker's reaction."""
    pause = levels(worker(memory_limit=4 * GIB, process=3 * GIB))[1]
    assert str(pause) == (
        "process memory is 3.0 GiB, 75% of the limit of 4.0 GiB; "
        "at 80% it starts no more tasks"
    )


# --- capacity -------------------------------------------------------------------------


MIB = 2**20
TWO = np.array([30.0 * MIB, 10.0 * MIB])


def test_what_fits() -> None:
    """The last free byte counts; unknown sizes count when all is loaded."""
    refuse_too_much(["X"], 40 * MIB, TWO)
    refuse_overfull(["X"], TWO, 10, 9, 40 * MIB)
    refuse_overfull(["X"], TWO, 10, 10, 50 * MIB)
    refuse_overfull(["X"], TWO, 10, 0, 0)


def test_what_is_too_much() -> None:
    """The suggested workers are at least one more, of the average size."""
    text = (
        r"X and y \(90.0 MiB\) cannot be loaded before workers spill: 2 workers have "
        r"40.0 MiB free; about 5 workers of this size would suffice: n_workers=5$"
    )
    with pytest.raises(CapacityError, match=text):
        refuse_too_much(["X", "y"], 90 * MIB, TWO)
    with pytest.raises(CapacityError, match="about 3 workers"):
        refuse_too_much(["X"], 40 * MIB + 1, TWO)
    with pytest.raises(CapacityError, match=r"1 worker has 30.0 MiB free; about 2"):
        refuse_too_much(["X"], 40 * MIB, TWO[:1])
    with pytest.raises(CapacityError, match="free memory there, or add workers"):
        refuse_too_much(["X"], 1, np.zeros(2))


def test_what_turns_out_to_be_too_much() -> None:
    """Partitions that are not loaded count with the size of the loaded ones."""
    text = (
        r"X cannot be loaded: 1,000 of 2,000 partitions took 60.0 MiB, so all take "
        r"about 120.0 MiB; workers would spill. The loaded partitions are "
        r"released; 2 workers have 40.0 MiB free; about 6 workers"
    )
    with pytest.raises(CapacityError, match=text):
        refuse_overfull(["X"], TWO, 2000, 1000, 60 * MIB)
    with pytest.raises(CapacityError, match="free memory there, or add workers"):
        refuse_overfull(["X"], np.zeros(1), 2, 1, 1)
