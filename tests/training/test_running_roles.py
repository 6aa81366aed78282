from __future__ import annotations

from dataclasses import replace

import pytest

from clustertune.errors import ConnectionLostError, FunctionError, NoWorkersError
from clustertune.training import remote_roles
from clustertune.training.roles import Candidate, assign, candidate
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


# --- assignment of roles --------------------------------------------------------------


def workers(*hosts: str) -> list[Candidate]:
    """One worker on each of these hosts, each in its own process."""
    return [
        Candidate(address=f"tcp://{i}", id=i, host=host, process=str(i))
        for i, host in enumerate(hosts)
    ]


def ids(
    sizes: dict[str, int],
    candidates: list[Candidate],
    first: str | None = "worker",
    own_process: bool = True,
) -> dict[str, list[int | str]]:
    found = assign(sizes, candidates, first=first, own_process=own_process)
    return {role: [c.id for c in members] for role, members in found.items()}


def test_roles_are_spread_over_hosts() -> None:
    """The training role chooses first, the others choose the emptiest hosts."""
    there = workers("a", "a", "a", "b", "b", "c")
    assert ids({"ps": 1, "worker": 3}, there) == {"ps": [1], "worker": [0, 3, 5]}
    more = ids({"ps": 2, "worker": 4}, there)
    assert more == {"ps": [4, 2], "worker": [0, 3, 5, 1]}


def test_idle_workers_come_first_and_then_those_with_data() -> None:
    busy, empty, full = workers("a", "b", "b")
    there = [replace(busy, tasks=1, held=9), empty, replace(full, held=5)]
    found = ids({"worker": 1, "scorer": 1}, there)
    assert found == {"worker": [2], "scorer": [1]}
    assert ids({"worker": 3}, there) == {"worker": [2, 1, 0]}


def test_too_few_workers_raise_both_numbers_and_reasons() -> None:
    answer = {"process": "p", "tasks": 0, "missing": []}
    lacking = {**answer, "process": "q", "missing": ["torch"]}
    answers = [answer, OSError("timed out"), OSError("timed out"), lacking]
    statuses = ["running", "paused", "running", "running"]
    there = []
    for i, (found, status) in enumerate(zip(answers, statuses, strict=True)):
        entry = {"host": "h", "name": i, "nanny": None, "status": status}
        there.append(candidate(f"tcp://{i}", entry, found, 0))
    with pytest.raises(NoWorkersError) as caught:
        ids({"ps": 1, "worker": 2}, there)
    text = str(caught.value)
    assert "need 3 workers (ps: 1, worker: 2), one each, and 1 of 4 can" in text
    assert "; worker 1: not running (paused)" in text
    assert "; worker 2: no answer" in text
    assert "; worker 3: cannot import torch" in text
    expected = r"need 1 worker \(a: 1\), one each, and 0 of 0 can take one\. Use"
    with pytest.raises(NoWorkersError, match=expected):
        ids({"a": 1}, [], first=None, own_process=False)


def test_one_process_has_one_environment() -> None:
    """Only frameworks need a separate process for each role."""
    there = [replace(c, process="p") for c in workers("h", "h")]
    there += [replace(there[0], host="i", id=2)]  # on another host
    with pytest.raises(NoWorkersError, match="worker 1: in one process with others"):
        ids({"worker": 3}, there)
    assert ids({"worker": 2}, there, first=None) == {"worker": [0, 2]}
    found = ids({"worker": 3}, there, first=None, own_process=False)
    assert found == {"worker": [0, 2, 1]}
