"""The state of a scheduler's page: live data, and facts that a client has sent."""

from __future__ import annotations

import json
from time import time
from typing import Any

import numpy as np
import pytest
from distributed import wait

from clustertune.core.wording import utc_text
from clustertune.dashboard import state as states
from clustertune.dashboard.page import events
from clustertune.monitor import monitor
from clustertune.remote.keys import pack
from clustertune.remote.scheduler import page
from clustertune.remote.scheduler.plugin import NAME
from clustertune.remote.scheduler.state import PARKING_PREFIX
from tests.dashboard.states import worker
from tests.in_process import TWO, gen_cluster
from tests.processes import soon


async def opened(c, s):
    await monitor.install_plugin(c, await monitor.identify(c))
    return s.plugins[NAME].page_data


async def looked(c):
    """Return lists instead of the tuples of msgpack."""
    return json.loads(json.dumps(await monitor.ask(c, "page")))


async def partitions(c, workers, name):
    """Make one array of ten bytes for each worker, in this order."""
    keys = [(name, i) for i in range(len(workers))]
    made = [
        c.submit(np.ones, 10, key=key, workers=[w.address], pure=False)
        for key, w in zip(keys, workers)
    ]
    await wait(made)
    return keys, made


def handed(**parts):
    told = {"label": "training data", "rows": [10, 20], "alike": False}
    return {"collections": [told | parts]}


@gen_cluster(client=True, nthreads=TWO)
async def test_it_has_what_the_components_read(c, s, a, b):
    """The scheduler cannot import the schema, so a test compares."""
    showing = await opened(c, s)
    state = await looked(c)
    assert set(state) == set(states.make())
    assert set(state["workers"][0]) == set(worker(0))
    assert [w["id"] for w in state["workers"]] == [0, 1]
    assert showing.counting is None


@gen_cluster(client=True, nthreads=TWO)
async def test_rows_are_counted_where_partitions_lie(c, s, a, b):
    showing = await opened(c, s)
    X, kept = await partitions(c, [a, b], "X")
    y, kept_too = await partitions(c, [a, a], "y")
    await monitor.ask(c, "report", facts=handed(members=[pack(X), pack(y)]))
    await looked(c)
    await soon(lambda: showing.counted)
    showing.made_at = 0.0
    (layout,) = (await looked(c))["collections"]
    assert layout["workers"] == [
        {"id": 0, "rows": 10, "partitions": 1, "due": 15.0},
        {"id": 1, "rows": 20, "partitions": 1, "due": 15.0},
    ]
    assert (layout["apart"], layout["missing"]) == (1, 0)
    kept[1].release()
    await soon(lambda: ("X", 1) not in s.tasks)
    showing.counted_at = showing.made_at = 0.0
    await showing.look()
    await soon(lambda: showing.counted[0]["missing"] == 1)


@gen_cluster(client=True, nthreads=TWO)
async def test_rows_on_a_parking_worker(c, s, a, b):
    """They are counted, but not as rows of a worker that trains."""
    showing = await opened(c, s)
    X, kept = await partitions(c, [a, b], "X")
    await monitor.ask(c, "report", facts=handed(members=[pack(X)]))
    s.workers[b.address].name = f"{PARKING_PREFIX}1"
    (layout,) = await showing.rows_now()
    assert (layout["workers"], layout["held"], layout["parked"]) == ([0], [10], 20)


@gen_cluster(client=True, nthreads=TWO)
async def test_layouts_that_change_during_a_count(c, s, a, b):
    """Each count has the names of its layout, and old counts are not kept."""
    showing = await opened(c, s)
    X, kept = await partitions(c, [a, b], "X")
    y, kept_too = await partitions(c, [a, a], "y")
    showing.keep(handed(members=[pack(X)], names=["X"]))
    counting = showing.rows_now()
    keys = showing.keys[0]

    class Members(list):
        def __iter__(self):  # the count has begun
            showing.keep(handed(members=[pack(y)], names=["y"]))
            return super().__iter__()

    showing.keys[0] = Members(keys)
    (layout,) = await counting
    assert (layout["names"], layout["held"]) == (["X"], [10, 20])
    assert showing.counted == []


@gen_cluster(client=True, nthreads=TWO)
async def test_while_nobody_looks_nothing_is_made(c, s, a, b):
    """Without a viewer neither state nor counts are made."""
    showing = await opened(c, s)
    X, kept = await partitions(c, [a, b], "X")
    await monitor.ask(c, "report", facts=handed(members=[pack(X)]))
    await monitor.ask(c, "past_runs")
    assert showing.latest == {}
    assert showing.counting is None


@gen_cluster(client=True, nthreads=TWO)
async def test_readers_at_the_same_time_share_a_state(c, s, a, b):
    showing = await opened(c, s)
    assert await showing.look() is await showing.look()


@gen_cluster(client=True, nthreads=TWO)
async def test_thresholds_are_those_of_a_client(c, s, a, b):
    await opened(c, s)
    facts = {"workers": {a.address: [1, 2, 3, None]}}
    await monitor.ask(c, "report", facts=facts)
    state = await looked(c)
    thresholds = [w["thresholds"] for w in state["workers"]]
    assert thresholds == [[1, 2, 3, None], [None] * 4]  # b has not reported any


@gen_cluster(client=True, nthreads=TWO)
async def test_what_is_kept_has_bounds(c, s, a, b):
    showing = await opened(c, s)
    many = pack([("X", i) for i in range(page.MOST_KEYS + 1)])
    showing.keep(handed(members=[many]))
    assert not showing.keys
    assert not showing.facts["collections"]
    showing.keep({"findings": {"found": [{}] * (page.MAX_FINDINGS + 1)}})
    assert len(showing.facts["findings"]["found"]) == page.MAX_FINDINGS


@gen_cluster(client=True, nthreads=TWO)
async def test_events_and_holds(c, s, a, b):
    """The page has events of Dask's log and present holds, in the order of time."""
    await opened(c, s)
    s.log_event(NAME, {"action": "restart", "worker": "w", "state": "began"})
    ended = {"worker": "w", "keys": 4, "nbytes": 3 * 2**20, "lost": 0, "state": "ended"}
    s.log_event(NAME, {"action": "restart", "direct": True} | ended)
    s.log_event(NAME, {"action": "restart"} | ended | {"problem": "late"})
    s.log_event(NAME, {"action": "trim", "summary": "Done: it", "status": "done"})
    hold = {"owner": c.id, "label": "a fit", "token": "h", "hold": True}
    await monitor.ask(c, "acquire", **hold)
    terms = {"owner": "me", "reason": None, "idle_for": 60.0, "instants": []}
    terms |= {"if_needed": True, "workers": None}
    schedules = s.plugins[NAME].schedules
    name = schedules.add(terms | {"expires": time() + 60})["id"]
    await soon(lambda: schedules.kept[name].waits.startswith("held"))
    held = f"held by a fit since {utc_text(s.plugins[NAME].lease.in_use()['since'])}"
    events = (await looked(c))["events"]
    schedules.cancel(name)
    assert [(e["kind"], e["text"]) for e in events] == [
        ("done", "restart: worker w, keys 4, 3.0 MiB"),
        ("failed", "restart: worker w, keys 4, 3.0 MiB, late"),
        ("done", "trim: Done: it"),
        ("held", "held for a fit"),
        ("done", f"schedule made: id {name}, owner me"),
        ("scheduled", f"restart between runs if needed, by me: waiting ({held})"),
    ]


@pytest.mark.parametrize(
    ("event", "kind"),
    [
        ({"state": "done", "problem": "no worker needs a restart"}, "done"),
        ({"state": "done", "problem": "the remaining workers are gone"}, "done"),
        ({"state": "interrupted", "problem": "tasks came"}, "done"),
        ({"state": "failed", "problem": "it did not return"}, "failed"),
        ({"state": "refused", "problem": "no such worker"}, "failed"),
        ({"status": "left"}, "failed"),
        ({"status": "fine"}, "done"),
        ({"action": "failed", "error": "KeyError()"}, "failed"),
        ({"action": "lease lost", "problem": "no message"}, "failed"),
    ],
)
def test_only_failures_are_failed(event: dict[str, str], kind: str) -> None:
    (row,) = page._event_rows([(1.0, {"action": "schedule"} | event)])
    assert row["kind"] == kind


@pytest.mark.parametrize(
    "value",
    [
        "many", pytest.param(10**5000, id="huge"), float("inf"), float("nan"), True,
        None, [], ["x"], {"a": 1}, np.ones(3), {1: 2}, b"x",
    ],
)  # fmt: skip
@pytest.mark.parametrize("name", ["{keys}", "nbytes", "seconds", "problem", "state"])
def test_fields_that_are_not_ours(name: str, value: Any) -> None:
    """Texts and numbers are limited, other values left out; nothing raises."""
    (event,) = page._event_rows([(1.0, {"action": "move", name: value})])
    assert event["text"].startswith("move: ")
    assert ("many" in event["text"]) == (type(value) is str and name != "state")
    assert len(event["text"]) <= page.MAX_TEXT


@pytest.mark.parametrize(
    "event",
    [5, None, "text", [], {}, {"action": 5}, {"action": ""}, {"action": ["x"]}],
    ids=repr,
)
def test_an_event_without_an_action_is_skipped(event: Any) -> None:
    good = {"action": "trim", 7: "x", "array": np.ones(3), "reason": None}
    assert page._event_rows([(1.0, event), (2.0, good)]) == [
        {"time": 2.0, "kind": "done", "text": "trim: "}
    ]


@gen_cluster(client=True, nthreads=TWO)
async def test_long_texts_are_cut(c, s, a, b):
    await opened(c, s)
    s.log_event(NAME, {"action": "a" * 10**6, "y" * 10**6: 1, "summary": "x" * 10**6})
    s.log_event(NAME, {"action": "<b>", "summary": "s"})
    state = await looked(c)
    assert [len(e["text"]) for e in state["events"]] == [page.MAX_TEXT, 6]
    assert "&lt;b&gt;: s" in events(state)
    assert "<b>" not in events(state)
