"""A plan has one phase, in the fixed order; guards refuse steps with reasons."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from clustertune import checks
from clustertune.actions import ACTIONS, restart
from clustertune.core.model import (
    BringBack,
    HeldData,
    Layout,
    Move,
    Moves,
    ParkingSpace,
    Plan,
    Price,
    Restart,
    Severity,
    Step,
    Unknown,
    View,
)
from clustertune.errors import CapacityError
from clustertune.planner import guards
from clustertune.planner import plan as planner
from clustertune.planner.plan import (
    lost_rows,
    moves,
    requested_partitions,
    uncounted_rows,
    unloaded_data,
)
from tests.builders import broken_promises, layout, snapshot, view, worker

# --- requested_partitions -------------------------------------------------------------


def find_other_number(rows, wanted):
    return list(
        requested_partitions(view(layouts=[layout(rows, None)], rechunk=wanted))
    )


def test_silent_without_a_number():
    """Other checks compare the number of partitions with the workers."""
    assert find_other_number([10, 10], True) == []
    assert find_other_number([10, 10], False) == []


def test_silent_without_data():
    """Without data nothing is cut."""
    assert list(requested_partitions(view(rechunk=3))) == []


def test_silent_when_there_are_so_many():
    """The number of even partitions is the requested one, or one for each row."""
    assert find_other_number([3, 3, 4], 3) == []
    assert find_other_number([1, 1], 5) == []


def test_others_are_found():
    """The number is too small or too large, or the partitions are uneven."""
    for rows in ([10], [2] * 5, [1, 9, 2]):
        (finding,) = find_other_number(rows, 3)
        assert finding.severity is Severity.info
        assert finding.fixed_by == "rechunk"
        assert finding.evidence == {"partitions": len(rows), "requested_partitions": 3}


# --- unloaded_data --------------------------------------------------------------------


def test_silent_for_loaded_data():
    """Data in memory is not loaded again."""
    assert list(unloaded_data(view())) == []
    assert list(unloaded_data(view(layouts=[layout([10], [0])]))) == []


def test_all_that_is_not_loaded_is_one_finding():
    """One call loads the collections of all layouts, so they are one finding."""
    lazy = layout([10], None, collections=["eval_set[0].X", "eval_set[0].y"])
    (finding,) = unloaded_data(view(layouts=[layout([10], [0]), lazy]))
    assert finding.severity is Severity.info
    assert finding.subject == ("eval_set[0].X", "eval_set[0].y")
    assert finding.message == (
        "eval_set[0].X and eval_set[0].y are not in memory, so every fit "
        "would load them again"
    )


def test_what_is_read_once_stays():
    """It stays lazy, unless loading is requested or some of it is in memory."""
    seen = view(layouts=[layout([10], None)])
    once = replace(seen.goal.workload, persist=False, title="Incremental")
    for persist, stays in ((None, True), (True, False)):
        goal = replace(seen.goal, workload=once, persist=persist)
        (finding,) = unloaded_data(replace(seen, goal=goal))
        stay = finding.message.endswith("stay lazy, since Incremental reads data once")
        assert stay is stays


# --- all goals ------------------------------------------------------------------------


def test_goals_that_are_not_met():
    """Findings have the names of their goals, as in reports."""
    seen = view((), [layout([10] * 4, [0] * 4)], rechunk=3)
    assert [f.check for f in planner.unmet_goals(seen)] == ["requested_partitions"]
    assert planner.unmet_goals(view((), [layout([10] * 4, [0] * 4)])) == ()
    assert planner.unmet_goals(view()) == ()


def test_goals_are_no_findings_of_checks():
    """Goals are not problems of the cluster."""
    seen = view((), [layout([10] * 4, None)], rechunk=3)
    names = {f.check for f in planner.unmet_goals(seen)}
    assert names == {"requested_partitions", "unloaded_data"}
    assert not names & {f.check for f in checks.run(seen)}


# --- plan -----------------------------------------------------------------------------

ROWS = [10, 10, 10, 10]
UNEVEN = layout(ROWS, [0, 0, 0, 0])


def plan(seen: View) -> Plan:
    return planner.make_plan(
        (*checks.run(seen), *planner.unmet_goals(seen)), seen, ACTIONS
    )


def move(seen: View, targets: list[int], label: str = "X") -> Step:
    """Return a step that moves the first keys of X to these workers of a view."""
    keys = tuple((label, i) for i in range(len(targets)))
    moves = Moves(
        workers=tuple(w.address for w in seen.now.workers),
        process_limits=(0,) * len(seen.now.workers),
        moves=(Move(label=label, keys=keys, targets=np.array(targets)),),
    )
    price = Price(nbytes=1)
    return Step(action="rebalance", summary="move", price=price, args=moves)


def two(layouts: list[Layout], **overrides: Any) -> View:
    return view([worker(0), worker(1, **overrides)], layouts)


# --- phases ---------------------------------------------------------------------------


def test_where_nothing_is_wrong_nothing_is_planned() -> None:
    """Well placed data gives an empty plan without phase and needs."""
    assert plan(two([layout(ROWS, [0, 1, 0, 1])])) == Plan()


def test_information_alone_is_no_reason_to_act() -> None:
    """Findings that no action fixes lead to no step."""
    seen = two([layout(ROWS, [0, 1, 0, 1])], affinity=frozenset((0,)))
    found = checks.run(seen)
    assert "thread_count" in {f.check for f in found}
    assert planner.make_plan(found, seen, ACTIONS) == Plan()


@pytest.mark.parametrize(
    ("n_workers", "data", "phase", "action"),
    [
        (3, layout(ROWS, None), "scale", "scale"),
        (3, UNEVEN, "scale", "scale"),
        (2, layout(ROWS, None), "load", "load"),
        (2, UNEVEN, "rebalance", "rebalance"),
    ],
)
def test_the_first_phase_that_has_something_to_do(
    n_workers: int, data: Layout, phase: str, action: str
) -> None:
    """Workers come first, then loading, and placement last; one phase in each plan."""
    seen = view([worker(0), worker(1)], [data], n_workers=n_workers)
    found = plan(seen)
    assert found.phase == phase
    assert [s.action for s in found.steps] == [action]
    assert not found.refused


def test_every_phase_has_its_action() -> None:
    """Each phase has the name of an action."""
    assert set(planner.PHASES) <= set(ACTIONS)


def test_steps_keep_the_order_in_which_they_were_proposed() -> None:
    """The training data is placed before the eval sets."""
    valid = layout([4, 4], [0, 0], ("Xv", "yv"), label="eval_set[0]")
    seen = two([UNEVEN, valid])
    summaries = [s.summary for s in plan(seen).steps]
    assert ["training data" in s for s in summaries] == [True, False]
    assert "eval_set[0]" in summaries[1]


def test_a_dry_run_says_what_it_would_need() -> None:
    """Further phases of lazy data cannot be planned; all lazy collections are named."""
    weight = layout(ROWS, {"X": [0, 0, 0, 0], "w": [0, 0, 0, 0]}, ["X", "w"])
    lazy = replace(weight.collections[1], loaded=False)
    seen = two([replace(weight, collections=(weight.collections[0], lazy))])
    assert plan(seen).needs == ("rows, bytes and holders of w: known once loaded",)
    assert plan(two([UNEVEN])).needs == ()


def test_what_does_not_fit_is_an_error() -> None:
    """Data that does not fit is an error, without a plan."""
    tiny = [worker(i, memory_limit=2500, process=0) for i in (0, 1)]
    with pytest.raises(CapacityError):
        plan(view(tiny, [UNEVEN]))


def test_an_empty_partition_on_a_paused_worker_does_not_fit() -> None:
    """Partitions may stay above the threshold only where workers may hold them."""
    small = {"memory_limit": 700, "process": 0}
    workers = [worker(0, status="paused"), worker(1, **small), worker(2, **small)]
    seen = view(workers, [layout([0, 5, 5], [0, [1, 2], 2])])
    with pytest.raises(CapacityError, match="does not fit"):
        list(ACTIONS["rebalance"].propose(checks.run(seen), seen))


# --- guards ---------------------------------------------------------------------------


def test_a_good_move_is_not_refused() -> None:
    """Guards allow it: targets run, partitions are in memory, thresholds are known."""
    seen = two([UNEVEN])
    assert guards.refusal(move(seen, [1, 1]), seen) is None


def test_a_step_that_moves_nothing_is_not_refused() -> None:
    """Guards of moves ignore other steps."""
    gone = two([layout(ROWS, [-1, -1, -1, -1])], status="paused")
    for action, args in (("scale", 3), ("load", None)):
        price = Price(nbytes=None)
        step = Step(action=action, summary=action, price=price, args=args)
        assert guards.refusal(step, gone) is None


def test_workers_that_are_no_target_may_be_gone() -> None:
    """Only the targets of a move must run."""
    seen = two([UNEVEN])
    paused = two([UNEVEN], status="paused")
    assert guards.refusal(move(seen, [0, 0]), paused) is None


@pytest.mark.parametrize("status", ["paused", "closing_gracefully"])
def test_a_target_that_no_longer_runs(status: str) -> None:
    """A worker that pauses or closes after planning gets no partition."""
    seen = two([UNEVEN])
    step = move(seen, [0, 1])
    found = guards.refusal(step, two([UNEVEN], status=status))
    assert found.guard == "targets_still_run"
    assert found.reason == "tcp://127.0.0.1/1 no longer runs"
    assert found.step is step


def test_a_step_without_targets() -> None:
    """Its guard reads no worker, so that many restarts take linear time."""
    seen = two([UNEVEN])
    step = next(iter(restart.steps(seen, {0})))
    assert guards.targets_still_run not in guards.GUARDS[type(step.args)]
    assert guards.targets_still_run in guards.GUARDS[type(move(seen, [0, 1]).args)]


def test_a_target_that_is_gone() -> None:
    """A lost worker gets none, even if another one has its position in the list."""
    seen = two([UNEVEN])
    left = view([worker(0), worker(2)], [UNEVEN])
    found = guards.refusal(move(seen, [1]), left)
    assert found.guard == "targets_still_run"


def test_a_target_that_was_not_asked_for() -> None:
    """Partitions move only to the named workers."""
    seen = two([UNEVEN])
    wanted = replace(seen, goal=replace(seen.goal, workers=frozenset((0,))))
    assert guards.refusal(move(seen, [1]), wanted).guard == "targets_still_run"
    assert guards.refusal(move(seen, [0]), wanted) is None


def test_a_partition_that_is_not_there() -> None:
    """Nothing moves while a partition is computed again; the collection is named."""
    torn = layout(ROWS, {"X": [0, 0, 0, 0], "y": [0, -1, 0, -1]})
    seen = two([torn])
    found = guards.refusal(move(seen, [1]), seen)
    assert found.guard == "partitions_are_in_memory"
    assert found.reason == "2 partitions of y not in memory"


def test_thresholds_that_are_not_known() -> None:
    """A worker with unknown thresholds gets no partitions; the reason is kept."""
    seen = two([UNEVEN], facts=Unknown("it hangs"))
    found = guards.refusal(move(seen, [1]), seen)
    assert found.guard == "thresholds_are_known"
    assert found.reason == "thresholds of 1: unknown: it hangs"
    assert guards.refusal(move(seen, [0]), seen) is None


def test_a_refused_step_is_in_the_plan() -> None:
    """A plan has refused steps apart from allowed ones."""
    lost = layout(ROWS, {"X": [0, 0, 0, 0], "y": [0, 0, 0, -1]})
    found = plan(two([lost]))
    assert found.phase == "rebalance"
    assert found.steps == ()
    assert [(r.step.action, r.guard) for r in found.refused] == [
        ("rebalance", "partitions_are_in_memory")
    ]


GIB = 2**30
BURDEN = HeldData(keys=3, unique=3, nbytes=2 * GIB, scattered=0, actors=0)


@pytest.mark.parametrize(
    ("room", "reason"),
    [
        (ParkingSpace(memory=GIB, disk=GIB), None),
        (
            ParkingSpace(memory=GIB, disk=0),
            "may fill 1.0 GiB of memory and 0 B of disk only",
        ),
        (Unknown("it hangs"), "the room in its nanny is unknown: it hangs"),
        (None, "the room in its nanny is unknown: add a worker"),
    ],
)
def test_a_worker_alone(room: Any, reason: str | None) -> None:
    """Its keys are parked in its nanny if there is room; the refusal has a fix."""
    others = [worker(1, status="paused")]
    seen = view([worker(0, held_data=BURDEN, parking_space=room), *others])
    (step,) = restart.steps(seen, {0})
    assert isinstance(step.args, Restart)
    assert "move to its new process" in step.summary
    found = guards.refusal(step, seen)
    if reason is None:
        assert found is None
    else:
        assert found is not None
        assert reason in found.reason
        assert "save the data first" in found.reason


def test_what_an_earlier_restart_left() -> None:
    """Keys on a parking worker return first; a parking worker is not restarted."""
    name = "clustertune-parking-1"
    left = worker(name, parking=True, nanny=None, status="closing_gracefully")
    seen = view([worker(0, held_data=BURDEN), replace(left, held_data=BURDEN)])
    first, second = restart.steps(seen, {0, name})
    assert first.summary.startswith("bring back 3 keys (2.0 GiB)")
    assert isinstance(first.args, BringBack)
    assert set(first.args.process_limits) == {0}
    assert guards.refusal(first, seen) is None
    assert isinstance(second.args, Restart)
    assert second.args.id == 0


# --- verification ---------------------------------------------------------------------


ALL_ON_ONE = layout(ROWS, [0, 0, 0, 0])


def seen(*layouts: Layout, **overrides: Any) -> View:
    return view([worker(0, **overrides), worker(1, **overrides)], layouts)


def changed(data: Layout, label: str, **fields: Any) -> Layout:
    """Return the layout with one collection changed."""
    collections = tuple(
        replace(m, **fields) if m.label == label else m for m in data.collections
    )
    return replace(data, collections=collections)


# --- what is no problem ---------------------------------------------------------------


def test_nothing_happened() -> None:
    """The same view twice has no problems, even with uneven rows."""
    assert broken_promises(seen(ALL_ON_ONE), seen(ALL_ON_ONE)) == ()


def test_a_good_move() -> None:
    """A whole partition on another worker is no problem."""
    assert broken_promises(seen(ALL_ON_ONE), seen(layout(ROWS, [0, 1, 0, 1]))) == ()


def test_a_copy_less() -> None:
    """One of two replicas may be dropped."""
    twice = layout(ROWS, [[0, 1]] * 4)
    assert broken_promises(seen(twice), seen(layout(ROWS, [0, 1, 0, 1]))) == ()


def test_loading() -> None:
    """Loaded data may have any workers, keys and rows."""
    lazy = layout([10, 10], None)
    unknown = changed(changed(lazy, "X", rows=None), "y", rows=None)
    for before in (lazy, unknown):
        after = changed(layout([10, 10], [0, 1]), "X", keys=("a", "b"))
        assert broken_promises(seen(before), seen(after)) == ()
    assert broken_promises(seen(lazy), seen(lazy)) == ()


def test_pairs_that_were_apart_before() -> None:
    """Pairs that were separated before are not reported."""
    torn = layout(ROWS, {"X": [0, 0, 1, 1], "y": [1, 1, 1, 1]})
    better = layout(ROWS, {"X": [0, 0, 1, 1], "y": [0, 1, 1, 1]})
    assert broken_promises(seen(torn), seen(torn)) == ()
    assert broken_promises(seen(torn), seen(better)) == ()


def test_a_worker_that_was_too_full_before() -> None:
    """A full worker with less data than before is no problem."""
    tiny = {"memory_limit": 1000, "process": 0}
    before = seen(layout(ROWS, [0, 0, 0, 0]), **tiny)  # 3,520 bytes
    after = seen(layout(ROWS, [0, 0, 0, 1]), **tiny)
    assert broken_promises(before, before) == ()
    assert len(broken_promises(before, after)) == 1  # worker 1 alone: it was empty
    assert broken_promises(before, after)[0].startswith("worker 1 holds 880 bytes")


# --- what is --------------------------------------------------------------------------


def test_partitions_that_are_gone() -> None:
    """A partition without a holder is lost, although its key is known."""
    after = layout(ROWS, {"X": [0, -1, 0, -1], "y": [0, 0, 0, 0]})
    found = broken_promises(seen(ALL_ON_ONE), seen(after))
    assert found[0] == "no worker holds 2 partitions of X"
    nowhere = changed(ALL_ON_ONE, "y", holders=None)
    assert "no worker holds 4 partitions of y" in broken_promises(
        seen(ALL_ON_ONE), seen(nowhere)
    )


def test_data_that_is_no_longer_loaded() -> None:
    """A collection that has left memory is lost as a whole."""
    found = broken_promises(seen(ALL_ON_ONE), seen(layout(ROWS, None)))
    assert found == tuple(f"{x} is not in memory, and it was before" for x in "Xy")


def test_rows_that_changed() -> None:
    """A partition with other rows is found in any collection."""
    shuffled = changed(ALL_ON_ONE, "y", rows=np.array([10, 10, 20, 0]))
    found = broken_promises(seen(ALL_ON_ONE), seen(shuffled))
    assert found[0] == "partitions of y have other rows than before"


def test_rows_that_cannot_be_counted() -> None:
    """Unknown rows are neither lost nor changed."""
    after = seen(changed(ALL_ON_ONE, "y", rows=None))
    assert lost_rows(seen(ALL_ON_ONE), after) == ()
    text = "rows of y were known before and cannot be counted now"
    assert uncounted_rows(seen(ALL_ON_ONE), after) == (text,)
    assert uncounted_rows(after, after) == ()


def test_rows_that_changed_on_loading() -> None:
    """A lazy collection must keep the rows of its metadata."""
    found = broken_promises(seen(layout([10, 10], None)), seen(layout([10, 9], [0, 1])))
    assert found == tuple(
        f"partitions of {x} have other rows than before" for x in "Xy"
    )


def test_keys_that_changed() -> None:
    """Loaded partitions keep their keys, so that earlier variables remain valid."""
    renamed = changed(ALL_ON_ONE, "X", keys=tuple("abcd"))
    found = broken_promises(seen(ALL_ON_ONE), seen(renamed))
    assert found == ("X has other keys than before",)


def test_boundaries_that_agreed() -> None:
    """Boundaries of X and y that have become different are found."""
    recut = changed(ALL_ON_ONE, "y", rows=np.array([5, 15, 10, 10]))
    found = broken_promises(seen(ALL_ON_ONE), seen(recut))
    assert "training data: row boundaries differ, and they agreed before" in found


def test_pairs_that_were_torn() -> None:
    """A pair that was together and is separated now is counted."""
    torn = layout(ROWS, {"X": [0, 0, 0, 0], "y": [0, 1, 1, 0]})
    found = broken_promises(seen(ALL_ON_ONE), seen(torn))
    assert found == ("training data: 2 pairs are separated, 0 were before",)


def test_pairs_that_came_apart_on_loading() -> None:
    """Loaded data with separated pairs at the end is found."""
    torn = layout([10, 10], {"X": [0, 0], "y": [0, 1]})
    found = broken_promises(seen(layout([10, 10], None)), seen(torn))
    assert found == ("training data: 1 pairs are separated, 0 were before",)


def test_a_worker_that_is_filled_too_far() -> None:
    """A worker above its thresholds is found, with figures."""
    small = {"memory_limit": 4000, "process": 0}
    before = seen(layout(ROWS, [0, 0, 1, 1]), **small)
    assert broken_promises(before, seen(layout(ROWS, [0, 0, 0, 1]), **small)) == (
        "worker 0 holds 2,640 bytes, but only 2,400 fit",
    )


def test_every_layout_is_verified() -> None:
    """Eval sets are verified like the training data."""
    valid = layout([4], [0], label="eval_set[0]")
    lost = layout([4], [-1], label="eval_set[0]")
    found = broken_promises(seen(ALL_ON_ONE, valid), seen(ALL_ON_ONE, lost))
    assert found[0] == "no worker holds 1 partition of X"
    assert any(x.startswith("eval_set[0]: 1 pairs are separated") for x in found)


def test_a_memory_manager_that_was_left_off() -> None:
    """A memory manager that is still paused is reported."""
    given = [layout([10, 10], [0, 1])]
    was = view(snapshots=[snapshot([worker(0), worker(1)], memory_manager=True)])
    now = view(snapshots=[snapshot([worker(0), worker(1)], memory_manager=False)])
    was, now = replace(was, layouts=tuple(given)), replace(now, layouts=tuple(given))
    assert broken_promises(was, was) == ()
    assert broken_promises(was, now) == (
        "Dask's memory manager does not run, unlike before",
    )


# --- copies, moves --------------------------------------------------------------------


def test_copies_of_an_eval_set_are_its_rows_again() -> None:
    """Each replica counts, and a replica with too few rows is found."""
    valid = layout([4, 3], [0, 0], ("Xv", "yv"), label="eval_set[0]")

    def copied(*rows: int) -> Layout:
        collections = [
            replace(m, keys=tuple((f"copied-{m.label}", i) for i in range(len(rows))))
            for m in layout([*rows], [0, 1], ("Xv", "yv"), made_here=True).collections
        ]
        return replace(valid, collections=tuple(collections))

    assert (
        broken_promises(seen(ALL_ON_ONE, valid), seen(ALL_ON_ONE, copied(7, 7))) == ()
    )
    assert broken_promises(seen(ALL_ON_ONE, copied(7, 7)), seen(ALL_ON_ONE, valid)) == (
        "Xv has other keys than before",
        "yv has other keys than before",
    )
    short = broken_promises(seen(ALL_ON_ONE, valid), seen(ALL_ON_ONE, copied(7, 6)))
    assert short == ("Xv had 14 rows and has 13", "yv had 14 rows and has 13")


def test_one_more_copy_of_an_eval_set_loses_no_row() -> None:
    """The numbers of rows are exact: 2,500 * 11 * (12 / 11) is less than 30,000."""

    def copied(n: int) -> Layout:
        own: Any = {"made_here": True}
        own["keys"] = tuple(("copied-Xv", i) for i in range(n))
        return layout([2500] * n, [0] * n, ("Xv",), label="eval_set[0]", **own)

    assert lost_rows(seen(ALL_ON_ONE, copied(11)), seen(ALL_ON_ONE, copied(12))) == ()


def test_a_member_that_this_call_has_made_was_not_there() -> None:
    """A collection that was not there before is not a changed one."""
    more = layout(ROWS, [0, 0, 0, 0], ("X", "y", "z"))
    assert broken_promises(seen(ALL_ON_ONE), seen(more)) == ()


def test_partitions_that_moved() -> None:
    """The number of moved partitions is reported, and one example with worker names."""
    assert moves(seen(ALL_ON_ONE), seen(ALL_ON_ONE)) == ()
    moved = layout(ROWS, [0, 1, 0, 1])
    (text,) = moves(seen(ALL_ON_ONE), seen(moved))
    assert text == (
        "2 partitions of the training data moved, for example number 1 from worker 0 "
        "to worker 1"
    )


def test_a_surplus_copy_is_no_move() -> None:
    """A partition stays in place while its worker holds all of it."""
    there = seen(layout(ROWS, [1, 1, 1, 1]))
    assert moves(there, seen(layout(ROWS, [[0, 1]] * 4))) == ()
    half = layout(ROWS, {"X": [[0, 1]] * 4, "y": [0, 0, 0, 0]})
    assert len(moves(there, seen(half))) == 1


def test_moves_of_what_cannot_be_compared() -> None:
    """Other checks report other partitions, and partitions that left memory."""
    for other in (layout([20, 20], [1, 1]), layout(ROWS, None)):
        assert moves(seen(ALL_ON_ONE), seen(other)) == ()


def test_a_collection_that_is_gone() -> None:
    """A missing collection is lost, even if the rest of the layout is unchanged."""
    both, one = layout([5, 5], [0, 1]), layout([5, 5], [0, 1], ("X",))
    assert lost_rows(view(layouts=[both]), view(layouts=[one])) == ("y is missing",)
