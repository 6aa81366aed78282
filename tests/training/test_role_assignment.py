"""Assignment of roles to workers, without a cluster."""

from __future__ import annotations

from dataclasses import replace

import pytest

from clustertune.errors import NoWorkersError
from clustertune.training.roles import Candidate, assign


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


def test_a_role_is_spread_over_hosts() -> None:
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
    a, b, c, d, e = workers("h", "h", "h", "h", "h")
    there = [
        a,
        replace(b, status="paused"),
        replace(c, answers=False),
        replace(d, missing=("torch",)),
        replace(e, taken="worker 0"),
    ]
    with pytest.raises(NoWorkersError) as caught:
        ids({"ps": 1, "worker": 2}, there)
    text = str(caught.value)
    assert "need 3 workers (ps: 1, worker: 2), one each, and 1 of 5 can" in text
    assert "worker 1 not running (paused)" in text
    assert "no answer from worker 2" in text
    assert "torch cannot be imported on worker 3" in text
    assert "another call's role is on worker 4" in text
    expected = r"need 1 worker \(a: 1\), one each, and 0 of 0 can take one\. Use"
    with pytest.raises(NoWorkersError, match=expected):
        ids({"a": 1}, [], first=None, own_process=False)


def test_one_process_has_one_environment() -> None:
    """Only frameworks need a separate process for each role."""
    there = [replace(c, process="p") for c in workers("h", "h")]
    there += [replace(there[0], host="i", id=2)]  # on another host
    with pytest.raises(NoWorkersError, match="worker 1 in one process with others"):
        ids({"worker": 3}, there)
    assert ids({"worker": 2}, there, first=None) == {"worker": [0, 2]}
    found = ids({"worker": 3}, there, first=None, own_process=False)
    assert found == {"worker": [0, 2, 1]}
