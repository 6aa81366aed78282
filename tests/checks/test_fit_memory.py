"""The check ``fit_memory``."""

import pytest

from clustertune.checks.fit_memory import ERROR, find
from clustertune.core.model import Profile, Severity, Unknown
from clustertune.errors import CapacityError
from clustertune.testing import layout, snapshot, view, worker

TRIPLE = Profile(name="t", title="T", memory_multiple={4: 5.0, 8: 3.0})


def small(id, **fields):
    """Make a worker of 1000 bytes, of which a fit may fill 700."""
    return worker(id, **{"memory_limit": 1000, "process": 100, **fields})


def data(nbytes, homes=(0,), **fields):
    """Make an X of so many bytes."""
    widths = {"X": nbytes // len(homes)}
    return layout([1] * len(homes), homes, members=["X"], row_bytes=widths, **fields)


def found(workers, *layouts, **goal):
    """Findings where the fit needs three times the data."""
    return list(find(view(workers, layouts, workload=TRIPLE, **goal)))


PAIR = [small(0), small(1)]


@pytest.mark.parametrize(
    "layouts",
    [
        pytest.param([], id="no data"),
        pytest.param([data(400)], id="3 * 200 + 100 on each, all on one now"),
        pytest.param([data(400, homes=(0, 1))], id="3 * 200 + 100 on each"),
    ],
)
def test_silent(layouts):
    """Nothing is said where even shares and their copies fit the workers."""
    assert found(PAIR, *layouts) == []


def test_no_workers_are_no_finding():
    """Without any worker there is nothing to compare with."""
    assert list(find(view(snapshots=[snapshot([])], layouts=[data(400)]))) == []


def test_the_data_itself_is_not_counted_twice():
    """What a worker manages of the given data is not other memory."""
    full = small(0, process=500, managed=400)
    assert found([full, small(1)], data(400)) == []
    assert len(found([small(0, process=502, managed=402), small(1)], data(400))) == 1


def test_too_little_memory_is_a_warning_with_the_answer():
    """The worst worker's need and lack are said, and how many workers would do."""
    (finding,) = found([small(0, process=200), small(1)], data(600))
    assert finding.severity is Severity.warning
    assert finding.subject == (0, 1)
    assert finding.message == (
        "the fit needs about 1.1 KiB on worker 0, 400 B more than it may fill; 2 of 2 "
        "workers lack memory; cheapest way out: 4 workers of this size (n_workers=4): "
        "650 B on the fullest"
    )
    assert finding.evidence == {
        "needed_bytes": 1100,
        "lacking_bytes": 400,
        "float32_bytes": 950,
        "workers_needed": 4,
        "limit_needed": 1638,
    }


def test_the_number_of_workers_would_really_do():
    """With the number that was said there is no finding, with one less there is."""
    size = data(1000)
    (finding,) = found(PAIR, size)
    n = finding.evidence["workers_needed"]
    assert found([small(i) for i in range(n)], size) == []
    assert len(found([small(i) for i in range(n - 1)], size)) == 1


@pytest.mark.parametrize("process", [700, 800])
def test_where_other_memory_fills_the_worker_no_number_would_do(process):
    """More workers do not help against what their processes hold besides."""
    (finding,) = found([small(0, process=process)], data(10))
    assert finding.evidence["workers_needed"] is None
    assert "more workers alone would not do" in finding.message
    assert "n_workers=" not in finding.remedy


def test_a_byte_too_little_is_too_little():
    """The budget may be filled, not exceeded."""
    assert found([small(0, memory_limit=1001), small(1)], data(400)) == []
    (finding,) = found([small(0, process=101), small(1)], data(400))
    assert finding.evidence["lacking_bytes"] == 1


def test_strict_makes_it_critical():
    """The user may ask that a lack of memory stops prepare."""
    (finding,) = found(PAIR, data(1000), strict=True)
    assert finding.severity is Severity.critical
    assert ERROR is CapacityError


def test_the_fraction_is_the_goals():
    """A user may allow the fit more of the memory."""
    assert len(found(PAIR, data(500))) == 1
    assert found(PAIR, data(500), memory_fraction=0.9) == []


def test_the_multiple_is_that_of_the_item_size():
    """Four-byte numbers have another multiple than eight-byte ones."""
    assert found(PAIR, data(400)) == []
    assert len(found(PAIR, data(400, itemsize=4))) == 1


def test_shares_are_by_threads():
    """A worker with three quarters of the threads needs that much of the data."""
    (finding,) = found([small(0, nthreads=3), small(1)], data(400))
    assert finding.subject == (0,)


def test_eval_sets_need_memory_too():
    """Their copies are made on the same workers."""
    assert len(found(PAIR, data(400), data(200, label="eval_set[0]"))) == 1


def test_workers_still_to_be_started_take_their_share():
    """What n_workers will mend is no reason to stop."""
    assert len(found(PAIR, data(800))) == 1
    assert found(PAIR, data(800), n_workers=4) == []


def test_workers_that_may_not_train_do_not_count():
    """The workers that were asked for have all the data."""
    assert len(found(PAIR, data(400), goal_workers=[0])) == 1


def test_without_a_limit_the_hosts_memory_is_shared():
    """Two workers without a limit have half of their host each."""
    free = [small(i, memory_limit=0, host_memory=2000) for i in (0, 1)]
    assert found(free, data(400)) == []
    assert len(found(free, data(500))) == 1


def test_data_that_is_not_loaded_tells_its_size_or_is_unknown():
    """Without the size of the data there is one unknown, with the reason."""
    assert len(found(PAIR, layout([500], None, members=["X"]))) == 1
    (finding,) = found(PAIR, layout([500], None, members=["X"], total_bytes=None))
    assert finding.severity is Severity.unknown
    assert finding.message == (
        "whether the fit has enough memory is unknown: X is not loaded, so its "
        "size is unknown"
    )


def test_the_memory_of_silent_workers_is_unknown():
    """No limit and no facts: said for all such workers together."""
    mute = [small(i, memory_limit=0, facts=Unknown("no answer")) for i in (0, 1)]
    (finding,) = found(mute, data(4000))
    assert finding.severity is Severity.unknown
    assert finding.message == "usable memory of workers 0 and 1 unknown: no answer"
