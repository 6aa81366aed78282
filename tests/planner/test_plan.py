"""A plan has one phase, in the fixed order; guards refuse steps with reasons."""

from __future__ import annotations

from dataclasses import fields, replace
from typing import Any

import numpy as np
import pytest

from clustertune import checks
from clustertune.actions import registry, restart
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
    Step,
    Unknown,
    View,
)
from clustertune.errors import CapacityError
from clustertune.planner import goals, guards
from clustertune.planner import plan as planner
from tests.builders import layout, view, worker

ROWS = [10, 10, 10, 10]
UNEVEN = layout(ROWS, [0, 0, 0, 0])


def plan(seen: View) -> Plan:
    return planner.make_plan(
        (*checks.run(seen), *goals.unmet(seen)), seen, registry.ACTIONS
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
    assert planner.make_plan(found, seen, registry.ACTIONS) == Plan()


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
    assert set(planner.PHASES) <= set(registry.ACTIONS)


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


def test_arguments_of_a_subclass() -> None:
    """An action of another package has the guards of the class that it extends."""

    class Other(Restart):
        pass

    seen = two([UNEVEN])
    step = next(iter(restart.steps(seen, {0})))
    values = {f.name: getattr(step.args, f.name) for f in fields(step.args)}
    other = replace(step, args=Other(**values | {"address": "tcp://gone:1"}))
    refused = guards.refusal(other, seen)
    assert refused is not None
    assert refused.guard == "restart_loses_nothing"


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
