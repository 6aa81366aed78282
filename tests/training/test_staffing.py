from __future__ import annotations

from dataclasses import replace

from clustertune.training.staffing import Candidate, assign


def workers(*hosts: str) -> list[Candidate]:
    """One on each of these hosts, each a process."""
    return [
        Candidate(address=f"tcp://{i}", id=i, host=host, process=str(i))
        for i, host in enumerate(hosts)
    ]


def ids(found: dict[str, list[Candidate]] | str) -> dict[str, list[int | str]]:
    assert isinstance(found, dict), found
    return {role: [c.id for c in members] for role, members in found.items()}


def test_a_role_is_spread_over_hosts() -> None:
    """The workers that train first, then the others where fewest are."""
    there = workers("a", "a", "a", "b", "b", "c")
    found = assign({"ps": 1, "worker": 3}, there, first="worker", alone=True)
    assert ids(found) == {"ps": [1], "worker": [0, 3, 5]}
    more = assign({"ps": 2, "worker": 4}, there, first="worker", alone=True)
    assert ids(more) == {"ps": [4, 2], "worker": [0, 3, 5, 1]}


def test_idle_workers_come_first_and_then_those_with_data() -> None:
    busy, empty, full = workers("a", "b", "b")
    there = [replace(busy, busy=1, held=9), empty, replace(full, held=5)]
    found = assign({"worker": 1, "scorer": 1}, there, first="worker", alone=True)
    assert ids(found) == {"worker": [2], "scorer": [1]}
    found = assign({"worker": 3}, there, first="worker", alone=True)
    assert ids(found) == {"worker": [2, 1, 0]}


def test_too_few_are_told_with_both_numbers_and_reasons() -> None:
    a, b, c, d, e = workers("h", "h", "h", "h", "h")
    there = [
        a,
        replace(b, status="paused"),
        replace(c, answers=False),
        replace(d, lacks=("torch",)),
        replace(e, taken="worker 0"),
    ]
    said = assign({"ps": 1, "worker": 2}, there, first="worker", alone=True)
    assert isinstance(said, str)
    assert "need 3 workers (ps: 1, worker: 2), one each, and 1 of 5 can" in said
    assert "worker 1 not running (paused)" in said
    assert "no answer from worker 2" in said
    assert "torch cannot be imported on worker 3" in said
    assert "another call's role is on worker 4" in said
    said = assign({"a": 1}, [], first=None, alone=False)
    assert isinstance(said, str)
    assert "need 1 worker (a: 1), one each, and 0 of 0 can take one. Ask" in said


def test_one_process_has_one_environment() -> None:
    """Which matters to frameworks only."""
    there = [replace(c, process="p") for c in workers("h", "h")]
    there += [replace(there[0], host="i", id=2)]  # of another host
    said = assign({"worker": 3}, there, first="worker", alone=True)
    assert isinstance(said, str)
    assert "worker 1 in one process with others" in said
    assert ids(assign({"worker": 2}, there, first=None, alone=True)) == {
        "worker": [0, 2]
    }
    assert ids(assign({"worker": 3}, there, first=None, alone=False)) == {
        "worker": [0, 2, 1]
    }
