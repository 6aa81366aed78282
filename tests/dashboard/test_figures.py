"""The figure of the page: data sources and texts for a page state."""

from __future__ import annotations

from clustertune.dashboard.figures import MAX_BARS, NO_THRESHOLDS, Memory
from tests.dashboard.states import GIB, of


def test_each_worker_has_its_own_thresholds() -> None:
    memory, state = Memory(), of(3)
    for worker, pause in zip(state["workers"], (3 * GIB, None, 2 * GIB), strict=True):
        worker["thresholds"] = [None, None, pause, None]
    memory.update(state)
    ticks = memory.ticks.data
    assert ticks["x"] == [3 * GIB, 2 * GIB]
    assert [round(y) for y in ticks["y0"]] == [0, 2]
    assert memory.chart.visible


def test_the_bar_shows_memory_of_the_worker() -> None:
    memory, state = Memory(), of(1)
    state["workers"][0]["spilled"] = GIB
    memory.update(state)
    data = memory.source.data
    sizes = [data[name][0] for name in ("managed", "unmanaged", "spilled")]
    assert sizes == [GIB // 2, GIB // 2, GIB]
    assert 4 * GIB < memory.chart.x_range.end < 4.2 * GIB
    state["workers"][0]["spilled"] = 9 * GIB
    memory.update(state)
    assert memory.chart.x_range.end > 10 * GIB


def test_problems_have_a_shape_and_words() -> None:
    memory, state = Memory(), of(3)
    state["workers"][1]["status"] = "paused"
    state["workers"][2]["silent"] = 50.0
    memory.update(state)
    labels = memory.source.data["label"]
    assert labels == ["worker-0", "\u25b2 worker-1", "\u25b2 worker-2"]
    assert memory.chart.yaxis[0].major_label_overrides == dict(enumerate(labels))
    assert "&#9650; worker-1: paused<br>" in memory.notes.text
    assert "&#9650; worker-2: silent for 50 s" in memory.notes.text


def test_unknown_thresholds_are_shown() -> None:
    memory, state = Memory(), of(2)
    for worker in state["workers"]:
        worker["thresholds"] = [None] * 4
    memory.update(state)
    assert memory.notes.text == NO_THRESHOLDS


def test_without_workers_there_is_no_figure() -> None:
    memory = Memory()
    memory.update(of(0))
    assert not memory.chart.visible
    assert memory.notes.text == ""


def test_of_many_workers_the_most_important_have_bars() -> None:
    """Those with problems, then the fullest, in the order of their names."""
    memory, state = Memory(), of(MAX_BARS + 60)
    state["workers"][97]["process"] = 4 * GIB
    state["workers"][95]["status"] = "paused"
    memory.update(state)
    names = memory.source.data["name"]
    assert len(names) == MAX_BARS
    assert names[-2:] == ["worker-95", "worker-97"]
    assert f"{MAX_BARS} of {MAX_BARS + 60} workers" in memory.notes.text
