from __future__ import annotations

from dataclasses import replace

import pytest

from clustertune.checks import ERRORS
from clustertune.checks.fit import (
    changed_partitions,
    fit_memory,
    missing_estimator,
)
from clustertune.core.model import Profile, Severity, Unknown
from clustertune.errors import CapacityError
from tests.builders import layout, snapshot, view, worker

# --- fit_memory -----------------------------------------------------------------------


TRIPLE = Profile(name="t", title="T", memory_multiple={4: 5.0, 8: 3.0})


def small(id, **fields):
    """Make a worker of 1000 bytes, of which a fit may use 700."""
    return worker(id, **{"memory_limit": 1000, "process": 100, **fields})


def data(nbytes, homes=(0,), **fields):
    """Make an X of so many bytes."""
    widths = {"X": nbytes // len(homes)}
    return layout(
        [1] * len(homes), homes, collections=["X"], row_bytes=widths, **fields
    )


def find_fit_memory(workers, *layouts, **goal):
    """Return findings for a fit that needs three times the data."""
    return list(fit_memory(view(workers, layouts, workload=TRIPLE, **goal)))


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
    """Even shares and their copies fit the workers."""
    assert find_fit_memory(PAIR, *layouts) == []


def test_no_workers_are_no_finding():
    """Without workers there is nothing to compare."""
    assert list(fit_memory(view(snapshots=[snapshot([])], layouts=[data(400)]))) == []


def test_the_data_itself_is_not_counted_twice():
    """A worker's managed memory of the given data does not count as other memory."""
    full = small(0, process=500, managed=400)
    assert find_fit_memory([full, small(1)], data(400)) == []
    assert (
        len(find_fit_memory([small(0, process=502, managed=402), small(1)], data(400)))
        == 1
    )


def test_too_little_memory_is_a_warning_with_the_answer():
    """The finding has the need and the shortage of the worst worker, and a number of
    workers that suffices.
    """
    (finding,) = find_fit_memory([small(0, process=200), small(1)], data(600))
    assert finding.severity is Severity.warning
    assert finding.subject == (0, 1)
    assert finding.message == (
        "the fit needs about 1.1 KiB on worker 0, 400 B more than 70% of its memory; 2 "
        "of 2 workers have too little memory and may spill, pause or be killed"
    )
    assert finding.remedy.startswith(
        'Do one of these: `X = clustertune.prepare(client, X, estimator="t", '
        "n_workers=4).X` (then at most 650 B per worker); "
    )
    assert finding.evidence == {
        "needed_bytes": 1100,
        "missing_bytes": 400,
        "float32_bytes": 950,
        "needed_workers": 4,
        "needed_limit_bytes": 1638,
    }


def test_the_number_of_workers_would_really_do():
    """The suggested number of workers suffices, and one worker less does not."""
    size = data(1000)
    (finding,) = find_fit_memory(PAIR, size)
    n = finding.evidence["needed_workers"]
    assert find_fit_memory([small(i) for i in range(n)], size) == []
    assert len(find_fit_memory([small(i) for i in range(n - 1)], size)) == 1


@pytest.mark.parametrize("process", [700, 800])
def test_where_other_memory_fills_the_worker_no_number_would_do(process):
    """More workers do not help if processes hold other memory."""
    (finding,) = find_fit_memory([small(0, process=process)], data(10))
    assert finding.evidence["needed_workers"] is None
    assert "more workers are not enough" in finding.message
    assert "n_workers=" not in finding.remedy


def test_a_byte_too_little_is_too_little():
    """The limit may be reached, but not exceeded."""
    assert find_fit_memory([small(0, memory_limit=1001), small(1)], data(400)) == []
    (finding,) = find_fit_memory([small(0, process=101), small(1)], data(400))
    assert finding.evidence["missing_bytes"] == 1


def test_strict_makes_it_critical():
    """The user may request that too little memory stops prepare."""
    (finding,) = find_fit_memory(PAIR, data(1000), raise_on_low_memory=True)
    assert finding.severity is Severity.critical
    assert ERRORS["fit_memory"] is CapacityError


def test_the_fraction_is_the_goals():
    """The user may allow the fit more of the memory."""
    assert len(find_fit_memory(PAIR, data(500))) == 1
    assert find_fit_memory(PAIR, data(500), memory_fraction=0.9) == []


def test_the_multiple_is_that_of_the_item_size():
    """Four-byte numbers have another multiple than eight-byte numbers."""
    assert find_fit_memory(PAIR, data(400)) == []
    assert len(find_fit_memory(PAIR, data(400, itemsize=4))) == 1


def test_shares_are_by_threads():
    """Shares are in proportion to threads."""
    (finding,) = find_fit_memory([small(0, nthreads=3), small(1)], data(400))
    assert finding.subject == (0,)


def test_eval_sets_need_memory_too():
    """Copies of eval sets are on the same workers."""
    assert len(find_fit_memory(PAIR, data(400), data(200, label="eval_set[0]"))) == 1


def test_workers_still_to_be_started_take_their_share():
    """Workers that n_workers= will start take their share."""
    assert len(find_fit_memory(PAIR, data(800))) == 1
    assert find_fit_memory(PAIR, data(800), n_workers=4) == []


def test_workers_that_may_not_train_do_not_count():
    """The named workers get all the data; other workers do not count."""
    assert len(find_fit_memory(PAIR, data(400), goal_workers=[0])) == 1


def test_without_a_limit_the_hosts_memory_is_shared():
    """Two workers without a limit share the memory of their host."""
    free = [small(i, memory_limit=0, host_memory=2000) for i in (0, 1)]
    assert find_fit_memory(free, data(400)) == []
    assert len(find_fit_memory(free, data(500))) == 1


def test_data_that_is_not_loaded_tells_its_size_or_is_unknown():
    """Data of unknown size gives one unknown finding with the reason."""
    assert len(find_fit_memory(PAIR, layout([500], None, collections=["X"]))) == 1
    (finding,) = find_fit_memory(
        PAIR, layout([500], None, collections=["X"], total_bytes=None)
    )
    assert finding.severity is Severity.unknown
    assert finding.message == (
        "whether the fit has enough memory is unknown: X is not loaded, so its "
        "size is unknown"
    )


def test_the_memory_of_silent_workers_is_unknown():
    """Workers without limit and facts give one unknown finding."""
    mute = [small(i, memory_limit=0, facts=Unknown("no answer")) for i in (0, 1)]
    (finding,) = find_fit_memory(mute, data(4000))
    assert finding.severity is Severity.unknown
    assert finding.message == "usable memory of workers 0 and 1 unknown: no answer"


# --- missing_estimator ----------------------------------------------------------------


DATA = layout([10], [0])
RANKED = layout([10], [0], ("X", "y", "qid"))


@pytest.mark.parametrize(
    ("data", "goal"),
    [
        pytest.param([RANKED], {}, id="it was named"),
        pytest.param([DATA], {"workload_chosen": False}, id="no library needs more"),
        pytest.param([], {"workload_chosen": False}, id="no data"),
    ],
)
def test_missing_estimator_silent(data, goal):
    """The estimator is known, or any layout suits."""
    imported = frozenset(("lightgbm",) if goal == {} else ())
    assert list(missing_estimator(view((), data, imported=imported, **goal))) == []


def test_groups_for_any_library():
    """A workload that ranks is possible, and groups are not kept whole."""
    (finding,) = missing_estimator(view((), [RANKED], workload_chosen=False))
    assert finding.severity is Severity.warning
    assert finding.message == (
        "the data is prepared for any library, but a ranking needs query groups that "
        "are whole and in order"
    )
    assert finding.remedy == (
        "Run `X, y, qid = clustertune.prepare(client, X, y, qid=qid, estimator=model)`."
    )


def test_lightgbm_is_there():
    """LightGBM is installed, may train, and needs more than other libraries."""
    imported = frozenset(("lightgbm",))
    (finding,) = missing_estimator(
        view((), [DATA], workload_chosen=False, imported=imported)
    )
    assert finding.severity is Severity.info
    assert finding.message.endswith("needs every class on every worker")
    assert "estimator=model" in finding.remedy


# --- changed_partitions ---------------------------------------------------------------


def find_changed_partitions(
    previous_shape, *, keeps=True, workers=2, data=None, given=None, **goal
):
    data = layout([10] * 4, [0, 1, 0, 1]) if data is None else data
    seen = view(
        [worker(i) for i in range(workers)],
        [data],
        previous_shape=previous_shape,
        **goal,
    )
    seen = replace(seen, given_partitions=given)
    workload = replace(seen.goal.workload, keeps_partitions=keeps)
    return list(
        changed_partitions(replace(seen, goal=replace(seen.goal, workload=workload)))
    )


@pytest.mark.parametrize(
    "how",
    [
        pytest.param({"previous_shape": (40, 4)}, id="as many"),
        pytest.param({"previous_shape": None}, id="the first fit"),
        pytest.param({"previous_shape": None, "given": 4}, id="as it was given"),
        pytest.param(
            {"previous_shape": (40, 4), "given": 1}, id="as for the fit before"
        ),
        pytest.param(
            {"previous_shape": None, "given": 1, "keeps": False}, id="of no account"
        ),
        pytest.param({"previous_shape": (41, 5)}, id="other data"),
        pytest.param(
            {"previous_shape": (40, 5), "keeps": False}, id="they do not matter"
        ),
        pytest.param(
            {"previous_shape": (40, 5), "data": layout(None, [0])}, id="rows unknown"
        ),
    ],
)
def test_changed_partitions_silent(how):
    """The number of partitions must stay, or the earlier number is unknown."""
    assert find_changed_partitions(**how) == []
    assert list(changed_partitions(view())) == []


def test_another_number():
    """The earlier number of partitions can be made again."""
    (finding,) = find_changed_partitions((40, 5))
    assert finding.severity is Severity.warning
    assert finding.message.startswith(
        "the training data has 4 partitions, and had 5 for the previous fit, "
    )
    assert finding.evidence == {"partitions": 4, "previous_partitions": 5}
    assert finding.fixed_by == "rechunk"


def test_what_cannot_be_as_before_is_said_only():
    """The earlier number does not suit: each worker needs a partition, or the call
    requests another number or none.
    """
    assert find_changed_partitions((40, 3), workers=4)[0].fixed_by == ""
    assert find_changed_partitions((40, 5), rechunk=8)[0].fixed_by == ""
    assert find_changed_partitions((40, 5), rechunk=False)[0].fixed_by == ""


def test_another_number_than_was_given():
    """Without an earlier fit the given number counts; the remedy keeps it."""
    for kept in (None, (41, 5)):
        (finding,) = find_changed_partitions(kept, given=1)
        assert finding.severity is Severity.info
        assert finding.message.startswith(
            "the training data was given in 1 partition and has 4 now, "
        )
        assert finding.evidence == {"partitions": 4, "given_partitions": 1}
        assert finding.fixed_by == ""
        assert "rechunk=1" in finding.remedy
