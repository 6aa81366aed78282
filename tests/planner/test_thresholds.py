"""How far memory is from the thresholds."""

import pytest

from clustertune.core.model import Unknown
from clustertune.planner.thresholds import levels
from clustertune.testing import worker

GIB = 2**30


def test_without_a_limit_or_facts_there_are_no_levels():
    """Nothing is compared with what is not there or not known."""
    assert levels(worker(memory_limit=0)) == ()
    assert levels(worker(facts=Unknown("no answer"))) == ()


def test_thresholds_that_are_off_or_unknown_are_left_out():
    """Of four thresholds the two that are on and known remain."""
    found = levels(worker(pause=None, terminate=Unknown("no answer")))
    assert [level.name for level in found] == ["spill", "target"]


def test_each_threshold_is_of_its_own_measure():
    """The target is of managed memory, the others are of the process."""
    busy = worker(memory_limit=4 * GIB, process=3 * GIB, managed=GIB)
    rooms = {level.name: level.room for level in levels(busy)}
    assert rooms == pytest.approx(
        {"terminate": 0.2, "pause": 0.05, "spill": -0.05, "target": 0.35}
    )


def test_a_level_says_what_is_measured_and_what_comes():
    """The text has the measure, its bytes and share, and the worker's reaction."""
    pause = levels(worker(memory_limit=4 * GIB, process=3 * GIB))[1]
    assert str(pause) == (
        "process memory is 3.0 GiB, 75% of the limit of 4.0 GiB; "
        "at 80% it starts no more tasks"
    )
