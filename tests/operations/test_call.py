"""Calls that propose their own steps: which workers these are about."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import Any

import pytest
from distributed import Client

from clustertune.actions import restart as restarting
from clustertune.actions.cluster.live import LiveCluster
from clustertune.core.model import HeldData, Step, View
from clustertune.operations import call
from clustertune.operations.call import Procedure
from clustertune.operations.journal import Journal
from clustertune.operations.workers import SKIPS
from tests.builders import view, worker
from tests.in_process import gen_cluster

NOTHING = HeldData(keys=0, unique=0, nbytes=0, scattered=0, actors=0)


def restarts(view: View, ids: Collection[str | int], _: object) -> Iterator[Step]:
    return restarting.steps(view, ids, wait=1.0)


def procedure(client: Any = None, **values: Any) -> Procedure:
    return Procedure(
        client=client,
        name="restart",
        timeout=30.0,
        dry_run=False,
        progress=False,
        skips=SKIPS,
        **values,
    )


@pytest.mark.parametrize(
    ("named", "by_need", "skipped"),
    [(None, False, True), ((0, 1), False, False), ((0, 1), True, True)],
)
def test_a_worker_that_cannot_restart(named: Any, by_need: bool, skipped: bool) -> None:
    """It stops the others only if the caller wants just these workers restarted.

    A condition of a playbook, or the need of workers, may name one without a nanny.
    """
    journal = Journal(call="restart")
    bare = worker(1, nanny=None, held_data=NOTHING)
    journal.add(view([worker(0, held_data=NOTHING), bare]), ())
    then = restarts if by_need else None
    wanted = procedure(steps=restarts, then=then, workers=named)
    plan = call._plan(wanted, journal, {0, 1}, restarts)
    assert [step.args.id for step in plan.steps] == [0]  # type: ignore[union-attr]
    assert len(plan.refused) == (not skipped)
    assert [o.status for o in journal.outcomes] == ["skipped"] * skipped


@gen_cluster(client=True, nthreads=[("127.0.0.1", 1)] * 2)
async def test_a_named_worker_is_away_at_a_later_look(
    c: Client, s: Any, a: Any, b: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The call goes on with the others, and its names are as they were given."""
    look, seen = LiveCluster.look, []

    async def closing(self: LiveCluster, notify: Any) -> View:
        if len(seen) == 1:
            await b.close()
        found = await look(self, notify)
        seen.append(found)
        return found

    monkeypatch.setattr(LiveCluster, "look", closing)
    named: list[Any] = []

    def none(view: View, ids: Collection[str | int], _: object) -> Iterator[Step]:
        named.append(({*ids}, len(view.now.workers)))
        return iter(())

    wanted = procedure(c, steps=none, then=none, workers=(a.address, b.address))
    report = await call.carry_out(wanted)
    assert report.status == "fine"
    assert named == [({0, 1}, 2), ({0, 1}, 1)]
