"""The state of a scheduler's page: live data, and facts that a client has sent."""

from __future__ import annotations

import json
from time import time
from typing import Any

import numpy as np
import pytest
from distributed import wait
from distributed.utils_test import gen_cluster

from clustertune.dashboard import state as states
from clustertune.dashboard.figures import Timeline
from clustertune.monitor import monitor
from clustertune.remote.keys import pack
from clustertune.remote.scheduler import page
from clustertune.remote.scheduler.plugin import NAME
from clustertune.remote.scheduler.state import PARKING_PREFIX
from tests.processes import soon

TWO = [("127.0.0.1", 1)] * 2


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
    assert tuple(state["workers"]) == states.WORKER
    assert tuple(state["hosts"]) == states.HOST
    assert page.THRESHOLDS == states.THRESHOLDS
    assert state["workers"]["id"] == [0, 1]
    assert state["hosts"] == {
        "host": ["127.0.0.1"], "workers": [2], "threads": [2], "cpus": [None],
    }  # fmt: skip
    assert showing.counting is None


@gen_cluster(client=True, nthreads=TWO)
async def test_rows_are_counted_where_partitions_lie(c, s, a, b):
    showing = await opened(c, s)
    X, kept = await partitions(c, [a, b], "X")
    y, kept_too = await partitions(c, [a, a], "y")
    await monitor.ask(c, "store", facts=handed(members=[pack(X), pack(y)]))
    await looked(c)
    await soon(lambda: showing.counted)
    showing.made_at = 0.0
    (layout,) = (await looked(c))["collections"]
    assert layout["workers"] == {
        "id": [0, 1], "rows": [10, 20], "partitions": [1, 1], "due": [15.0, 15.0],
    }  # fmt: skip
    assert (layout["apart"], layout["missing"]) == (1, 0)
    kept[1].release()
    await soon(lambda: ("X", 1) not in s.tasks)
    showing.counted_at = showing.made_at = 0.0
    showing.look()
    await soon(lambda: showing.counted[0]["missing"] == 1)


@gen_cluster(client=True, nthreads=TWO)
async def test_rows_on_a_parking_worker(c, s, a, b):
    """They are counted, but not as rows of a worker that trains."""
    showing = await opened(c, s)
    X, kept = await partitions(c, [a, b], "X")
    await monitor.ask(c, "store", facts=handed(members=[pack(X)]))
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
    await monitor.ask(c, "store", facts=handed(members=[pack(X)]))
    await monitor.ask(c, "past_runs")
    assert showing.latest == {}
    assert showing.counting is None


@gen_cluster(client=True, nthreads=TWO)
async def test_readers_at_the_same_time_share_a_state(c, s, a, b):
    showing = await opened(c, s)
    assert showing.look() is showing.look()


@gen_cluster(client=True, nthreads=TWO)
async def test_thresholds_and_cpus_are_those_handed_over(c, s, a, b):
    await opened(c, s)
    facts = {"workers": {a.address: [1, 2, 3, None]}, "hosts": {"127.0.0.1": 4.0}}
    await monitor.ask(c, "store", facts=facts)
    state = await looked(c)
    assert state["workers"]["pause"] == [3, None]  # b has not reported any
    assert state["hosts"]["cpus"] == [4.0]


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
    way = {"direct": True, "detour": "y"}
    way_text = "keys moved through other workers, because y"
    ended = way | {"worker": "w", "keys": 4, "nbytes": 3 * 2**20, "lost": 0}
    s.log_event(NAME, {"action": "restart"} | ended | {"problem": "late"})
    s.log_event(NAME, {"action": "trim", "steps": [{"summary": "gave back"}]})
    hold = {"owner": c.id, "label": "a fit", "token": "h", "hold": True}
    await monitor.ask(c, "acquire", **hold)
    terms = {"owner": "me", "reason": None, "idle_for": 60.0, "instants": []}
    terms |= {"if_needed": 0.01, "workers": None, "lines": []}
    schedules = s.plugins[NAME].schedules
    name = schedules.add(terms | {"expires": time() + 60})["id"]
    await soon(lambda: schedules.kept[name].waits["for"] == "held")
    events = (await looked(c))["events"]
    schedules.cancel(name)
    assert [(e["kind"], e["text"]) for e in events] == [
        ("failed", f"restart: {way_text}, worker w, 4 keys, 3.0 MiB, late"),
        ("did", "trim: gave back"),
        ("held", "held for a fit"),
        ("did", f"schedule made: id {name}, owner me"),
        ("scheduled", "restart between runs if needed, by me: waiting (held)"),
    ]


@pytest.mark.parametrize(
    "value",
    ["many", pytest.param(10**5000, id="huge"), float("inf"), float("nan"), True, None],
)
def test_fields_that_are_not_ours(value: Any) -> None:
    """Texts and numbers are limited, other values left out; nothing raises."""
    (event,) = page._event_rows([(1.0, {"action": "move", "{keys}": value})])
    assert event["text"].startswith("move: ")
    assert ("many" in event["text"]) == (value == "many")
    assert len(event["text"]) <= page.MAX_TEXT


MALFORMED: list[Any] = [
    5, None, "text", [], {}, {"action": 5}, {"action": ""}, {"action": None},
    {"action": ["x"]}, {"action": "a" * 10**6},
    {"action": "x", "steps": 5}, {"action": "x", "steps": "text"},
    {"action": "x", "steps": [5]}, {"action": "x", "steps": [{"summary": 5}]},
    {"action": "x", "steps": [{}]}, {"action": "x", "state": {}},
    {"action": "x", "nbytes": "many"}, {"action": "x", "seconds": float("nan")},
    {"action": "x", "keys": True}, {"action": "x", "keys": 10**5000},
    {"action": "x", "lost": float("inf")}, {"action": "x", "problem": {"a": 1}},
    {"action": "x", "error": np.ones(3)}, {"action": "x", "status": 1},
]  # fmt: skip


@pytest.mark.parametrize("event", MALFORMED, ids=range(len(MALFORMED)))
def test_a_malformed_event_is_skipped(event: Any) -> None:
    good = {"action": "trim", 7: "x", "y" * 10**6: 1, "array": np.ones(3)}
    logged = [(1.0, event), (2.0, good | {"reason": None})]
    assert page._event_rows(logged) == [{"time": 2.0, "kind": "did", "text": "trim: "}]


@gen_cluster(client=True, nthreads=TWO)
async def test_no_client_breaks_the_page(c, s, a, b):
    """Wrong events and reports are left out; the others are shown."""
    await opened(c, s)
    await c.log_event(NAME, {"action": "x", "steps": 5})
    for event in (*MALFORMED, {"action": "<b>", "steps": [{"summary": "s"}]}):
        s.log_event(NAME, event)
    await monitor.ask(c, "store", report='{"steps": 5}')
    state = await looked(c)
    assert [e["text"] for e in state["events"]] == ["<b>: s"]
    assert state["prepared"] is None
    timeline = Timeline()
    timeline.update(state | {"history": {"time": [0], "process": [1], "managed": [1]}})
    assert "&lt;b&gt;: s" in timeline.list.text
    assert "<b>" not in timeline.list.text


@gen_cluster(client=True, nthreads=TWO)
async def test_the_last_report_is_before_and_after(c, s, a, b):
    await opened(c, s)
    shares = [
        {"worker": 0, "rows": 30, "partitions": 3, "nbytes": 1, "share": 2.0},
        {"worker": 1, "rows": 0, "partitions": 0, "nbytes": 0, "share": 0.0},
    ]
    layout = {"label": "training data", "partitions": 3, "rows": 30, "separated": 0}
    layout |= {"imbalance": 2.0, "workers": shares}
    steps = [{"status": "done", "summary": "moved"}, {"status": "refused"}]
    report = {"status": "done", "error": "", "steps": steps}
    report |= {"before": [layout], "after": []}
    await monitor.ask(c, "store", report=json.dumps(report))
    last = (await looked(c))["prepared"]
    assert last["lines"] == ["done: moved"]
    # the worker without rows should have had what is left of them
    assert last["before"][0]["workers"]["due"] == [15.0, 15.0]
