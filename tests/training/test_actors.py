from __future__ import annotations

from clustertune.errors import ConnectionLostError, RoleError
from clustertune.remote import roles as remote
from clustertune.training.actors import Actor, Trouble, by_role, cause


def actor(rank: int, trouble: Trouble | None = None, **about: object) -> Actor:
    found = Actor(role="w", rank=rank, worker=f"tcp://{rank}", id=rank, part="p")
    found.stage, found.over, found.trouble = remote.ENDED, True, trouble
    for name, value in about.items():
        setattr(found, name, value)
    return found


def test_nothing_went_wrong() -> None:
    """Also where one that has ended is still being put away."""
    actors = [actor(0), actor(1, over=False)]
    assert cause(actors, 1) is None
    assert by_role(actors, lambda a: a.rank) == {"w": [0, 1]}


def test_the_first_trouble_is_the_cause() -> None:
    first, second = ValueError("1"), ValueError("2")
    actors = [actor(0, Trouble(9, "b", second)), actor(1, Trouble(8, "a", first))]
    found = cause(actors, 1)
    assert isinstance(found, RoleError)
    assert str(found) == "a; after that, b"
    assert (found.role, found.rank, found.worker) == ("w", 1, "tcp://1")
    assert found.__cause__ is first


def test_a_lost_worker_is_heard_of_late() -> None:
    """What fails of it fails at once; but what failed long before is the cause."""
    failed = actor(0, Trouble(8, "reset by peer", OSError()))
    soon = cause([failed, actor(1, Trouble(10, "w 1 is lost", lost=True))], 1)
    assert str(soon).startswith("w 1 is lost; so it does when")
    assert str(soon).endswith("; after that, reset by peer")
    late = cause([failed, actor(1, Trouble(12, "w 1 is lost", lost=True))], 1)
    assert str(late) == "reset by peer; after that, w 1 is lost"


def test_who_does_not_stop_is_named() -> None:
    stuck = actor(1, over=False, stage=remote.PLAYING)
    found = cause([actor(0), stuck], 0.5)
    assert isinstance(found, RoleError)
    assert str(found).startswith("w 1 on worker 1 did not stop within 0.5 s: ")
    assert "clustertune.restart(client, workers=[1]) ends it" in str(found)
    assert found.rank == 1
    after = cause([actor(0, Trouble(1, "a")), stuck], 0.5)
    assert str(after).startswith("a; w 1 on worker 1 did not stop")


def test_a_connection_that_is_lost_is_no_fault_of_a_role() -> None:
    gone = ConnectionLostError("the client is closed")
    assert cause([actor(0, Trouble(1, "a", gone))], 1) is gone
    failed = [actor(0, Trouble(1, "a", gone)), actor(1, Trouble(0, "first"))]
    assert isinstance(cause(failed, 1), RoleError)
