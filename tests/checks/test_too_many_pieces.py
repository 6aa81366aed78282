"""The check ``too_many_pieces``."""

from dataclasses import replace

import pytest

from clustertune.checks.too_many_pieces import ERROR, find
from clustertune.core.model import Profile, Severity
from clustertune.errors import AlignmentError
from clustertune.testing import layout, view, worker

TEN = Profile(name="t", title="T", memory_multiple={8: 2}, max_pieces_per_thread=10)


def pieces(n, **fields):
    """Make data of n pieces of 880 bytes, on the first worker."""
    return layout([10] * n, [0] * n, **fields)


def found(*layouts, workers=(), **settings):
    """Findings where 10 pieces are the limit for each thread."""
    return list(find(view(workers, layouts, workload=TEN), **settings))


@pytest.mark.parametrize(
    "layouts",
    [
        pytest.param([], id="no data"),
        pytest.param([pieces(20)], id="as many as the limit"),
        pytest.param([layout([20_000] * 21, [0] * 21)], id="many but large"),
        pytest.param([layout(None, [0] * 20)], id="few, bytes unknown"),
    ],
)
def test_silent(layouts):
    """Nothing is said of few pieces, or of large ones."""
    assert found(*layouts) == []


def test_the_limit_is_for_each_thread_that_may_train():
    """More threads may have more pieces; a paused worker's do not count."""
    assert found(pieces(21), workers=[worker(0, nthreads=3)]) == []
    nobody = [worker(0, status="paused")]
    assert found(pieces(21), workers=nobody) == []
    one = [worker(0), worker(1, nthreads=3, status="paused")]
    assert len(found(pieces(21), workers=one)) == 1


def test_many_small_pieces_are_a_warning():
    """Number, threads and mean size are said."""
    (finding,) = found(pieces(21))
    assert finding.severity is Severity.warning
    assert finding.message == (
        "the training data is in 21 pieces for 2 threads: 880 B each"
    )
    assert finding.evidence == {"pieces": 21, "threads": 2}


@pytest.mark.parametrize(
    ("n", "severity"), [(160, Severity.warning), (161, Severity.critical)]
)
def test_far_too_many_are_critical(n, severity):
    """From eight times the limit on, prepare stops."""
    (finding,) = found(pieces(n))
    assert finding.severity is severity
    assert ERROR is AlignmentError


def test_eval_sets_are_never_critical():
    """An eval set in far too many pieces is slow, but no reason to stop."""
    (finding,) = found(pieces(2), pieces(1000, label="eval_set[0]"))
    assert finding.severity is Severity.warning


def test_a_number_that_is_wanted_is_never_critical():
    """Asked for, or kept as the model depends on it: nothing would join them."""
    kept = replace(TEN, keeps_pieces=True)
    for goal in ({"rechunk": 161}, {"workload": kept, "kept": (1610, 161)}):
        seen = view((), [pieces(161)], **{"workload": TEN} | goal)
        (finding,) = find(seen)
        assert finding.severity is Severity.warning
        assert not finding.fixed_by
    for goal in ({"rechunk": 80}, {"workload": TEN, "kept": (1610, 161)}):
        seen = view((), [pieces(161)], **{"workload": TEN} | goal)
        (finding,) = find(seen)
        assert finding.severity is Severity.critical
        assert finding.fixed_by == "rechunk"


def test_settings_say_what_is_small_and_what_is_excess():
    """Smaller pieces may be allowed, and fewer of them be too many."""
    assert found(pieces(21), small=880) == []
    (finding,) = found(pieces(21), excess=1.0)
    assert finding.severity is Severity.critical


def test_many_pieces_of_unknown_size_are_unknown():
    """Before loading a frame does not say whether its pieces are small."""
    keys = tuple(range(21))
    (finding,) = found(layout(None, None, kind="dataframe", keys=keys))
    assert finding.severity is Severity.unknown
    assert finding.message == (
        "the training data is in 21 pieces for 2 threads: their size is unknown: X is "
        "not loaded, so its size is unknown"
    )
