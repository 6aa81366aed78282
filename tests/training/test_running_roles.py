from __future__ import annotations

from clustertune.errors import ConnectionLostError, FunctionError
from clustertune.training import remote_roles
from clustertune.training.running_roles import (
    Failure,
    RoleState,
    by_role,
    failure_cause,
)


def state(rank: int, failure: Failure | None = None, **about: object) -> RoleState:
    found = RoleState(role="w", rank=rank, worker=f"tcp://{rank}", id=rank)
    found.stage, found.over, found.failure = remote_roles.ENDED, True, failure
    for name, value in about.items():
        setattr(found, name, value)
    return found


def test_roles_without_failure() -> None:
    """An ended role whose task still runs is no failure either."""
    states = [state(0), state(1, over=False)]
    assert failure_cause(states, 1) is None
    assert by_role(states, lambda a: a.rank) == {"w": [0, 1]}


def test_the_first_failure_is_the_cause() -> None:
    first, second = ValueError("1"), ValueError("2")
    states = [state(0, Failure(9, "b", second)), state(1, Failure(8, "a", first))]
    found = failure_cause(states, 1)
    assert isinstance(found, FunctionError)
    assert str(found) == "a; after that, b"
    assert (found.role, found.rank, found.worker) == ("w", 1, "tcp://1")
    assert found.__cause__ is first


def test_a_lost_worker_is_noticed_late() -> None:
    """It causes earlier failures of other roles, but not those long before."""
    failed = state(0, Failure(8, "reset by peer", OSError()))
    soon = failure_cause([failed, state(1, Failure(10, "w 1 is lost", lost=True))], 1)
    assert str(soon).startswith("w 1 is lost; a worker leaves if")
    assert str(soon).endswith("; after that, reset by peer")
    late = failure_cause([failed, state(1, Failure(12, "w 1 is lost", lost=True))], 1)
    assert str(late) == "reset by peer; after that, w 1 is lost"


def test_a_role_that_does_not_stop_is_named() -> None:
    stuck = state(1, over=False, stage=remote_roles.RUNNING)
    found = failure_cause([state(0), stuck], 0.5)
    assert isinstance(found, FunctionError)
    assert str(found).startswith("w 1 on worker 1 did not stop within 0.5 s, because")
    assert "clustertune.restart_workers(client, workers=[1]) ends it" in str(found)
    assert found.rank == 1
    after = failure_cause([state(0, Failure(1, "a")), stuck], 0.5)
    assert str(after).startswith("a; w 1 on worker 1 did not stop")


def test_a_lost_connection_is_no_failure_of_a_role() -> None:
    gone = ConnectionLostError("the client is closed")
    assert failure_cause([state(0, Failure(1, "a", gone))], 1) is gone
    failed = [state(0, Failure(1, "a", gone)), state(1, Failure(0, "first"))]
    assert isinstance(failure_cause(failed, 1), FunctionError)
