"""Builders of views for tests."""

import numpy as np

from clustertune import checks
from clustertune.core.model import Severity, Unknown
from clustertune.planner import layouts
from tests.builders import collection, layout, snapshot, view, worker


def test_default_views_are_healthy():
    """Checks find no problem in views that are built without overrides."""
    even = layout([1000] * 8, [0, 1] * 4)
    found = checks.run(view(layouts=[even]))
    assert {f.check for f in found if f.severity is not Severity.info} == set()


def test_overrides_reach_facts_and_thresholds():
    """An override finds its field in nested dataclasses too."""
    built = worker("a", nthreads=3, pause=None, quotas=(("/x", 1.5),), process=7)
    assert (built.id, built.nthreads, built.process) == ("a", 3, 7)
    assert built.thresholds.pause is None
    assert built.thresholds.spill == 0.7
    assert built.facts.quotas == (("/x", 1.5),)
    assert worker(facts=Unknown("gone")).facts == Unknown("gone")


def test_workers_have_cpus_and_addresses_of_their_own():
    """Numbered workers on one host do not share CPUs."""
    a, b = worker(0, nthreads=2), worker(1, nthreads=2)
    assert not a.facts.affinity & b.facts.affinity
    assert a.address != b.address


def test_homes_become_holders():
    """A home is one worker, several for replicas, or -1 for a lost partition."""
    built = collection("X", [5, 5, 5], [1, [0, 1], -1])
    partitions, workers = built.holders
    np.testing.assert_array_equal(partitions, [0, 1, 1])
    np.testing.assert_array_equal(workers, [1, 0, 1])


def test_data_without_homes_is_not_loaded():
    """Such data has neither bytes nor holders, but a known size."""
    built = collection("X", [5, 5], None, row_bytes=16)
    assert (built.loaded, built.nbytes, built.holders) == (False, None, None)
    assert (built.n_partitions, built.total_bytes, built.columns) == (2, 160, 2)


def test_members_can_lie_on_different_workers():
    """Homes by label place X and y on different workers."""
    torn = layout([5, 5], {"X": [0, 0], "y": [0, 1]})
    assert torn.aligned
    np.testing.assert_array_equal(layouts.separated(torn, 2), [False, True])


def test_a_view_takes_snapshots_and_the_goals_fields():
    """The last snapshot is the present one; keywords set fields of the goal."""
    old, new = snapshot([worker(0)]), snapshot([], time=5.0)
    built = view(snapshots=[old, new], tolerance=0.2, n_workers=3)
    assert built.now is new
    assert (built.goal.tolerance, built.goal.n_workers) == (0.2, 3)
