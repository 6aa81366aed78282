"""The figures of the page: data sources and texts for a page state."""

from __future__ import annotations

from bokeh.document import Document

from clustertune.dashboard.figures import (
    MAX_BARS,
    NO_COLLECTIONS,
    NO_THRESHOLDS,
    RELEASED,
    Memory,
    Rows,
    Timeline,
)
from tests.dashboard.states import GIB, layout, of


def test_each_worker_has_its_own_thresholds() -> None:
    memory, state = Memory(), of(3)
    state["workers"]["pause"] = [3 * GIB, None, 2 * GIB]
    memory.update(state)
    ticks = memory.bars.ticks["pause"].data
    assert ticks["x"] == [3 * GIB, 2 * GIB]
    assert [round(y) for y in ticks["y0"]] == [0, 2]
    assert memory.bars.root.visible
    assert not memory.cells.root.visible


def test_the_bar_shows_memory_of_the_worker() -> None:
    memory, state = Memory(), of(1)
    state["workers"]["spilled"] = [GIB]
    memory.update(state)
    data = memory.bars.source.data
    ends = [data[f"{name}_end"][0] for name in ("managed", "unmanaged", "spilled")]
    assert ends == [GIB // 2, GIB, 2 * GIB]
    assert data["spilled_text"] == ["1.0 GiB"]


def test_problems_have_a_shape_and_words() -> None:
    memory, state = Memory(), of(3)
    state["workers"]["status"][1] = "paused"
    state["workers"]["silent"][2] = 50.0
    memory.update(state)
    marks = memory.bars.marks.data
    assert marks["status"] == ["paused", "silent for 50 s"]
    assert marks["mark"] == ["square_x", "triangle"]
    assert marks["y"] == [1, 2]


def test_unknown_thresholds_are_shown() -> None:
    memory, state = Memory(), of(2)
    for name in ("target", "spill", "pause", "terminate"):
        state["workers"][name] = [None, None]
    memory.update(state)
    assert memory.list.text == NO_THRESHOLDS


def test_many_workers_are_cells_and_the_fullest_are_named() -> None:
    memory, state = Memory(), of(MAX_BARS + 40)
    state["workers"]["process"][77] = 4 * GIB
    state["workers"]["status"][5] = "paused"
    memory.update(state)
    assert memory.cells.root.visible
    assert not memory.bars.root.visible
    assert len(memory.cells.source.data["fraction"]) == MAX_BARS + 40
    fullest = memory.list.text.index("worker-77")
    assert fullest < memory.list.text.index("emptiest")
    assert "paused" in memory.list.text


def test_only_changed_cells_are_sent() -> None:
    memory, state = Memory(), of(100)
    memory.update(state)
    document, sent = Document(), []
    document.add_root(memory.cells.root)
    document.on_change(sent.append)
    memory.cells.update(state)
    assert not sent
    state["workers"]["process"][3] = 3 * GIB
    memory.cells.update(state)
    (event,) = sent
    assert event.patches["fraction"] == [(3, 0.75)]


def test_empty_and_overfull_workers_are_marked() -> None:
    rows, state = Rows(), of(rows=[100, 300, 0, 0])
    state["collections"][0]["apart"] = 2
    rows.update(state)
    assert rows.source.data["problem"] == ["", "too many", "empty", "empty"]
    assert rows.source.data["due"] == [100] * 4
    assert rows.marks.data["y"] == [2, 3]
    assert rows.bars.x_range.end > 300 * 1.5  # room for words next to the longest bar
    assert "&#9650; 3.00" in rows.table.text
    assert "&#9650; 2<" in rows.table.text


def test_rows_of_many_workers_are_a_profile() -> None:
    rows = Rows()
    rows.update(of(MAX_BARS + 1))
    assert rows.profile.visible
    assert not rows.bars.visible


def test_no_collections_and_released_collections() -> None:
    rows, state = Rows(), of(collections=[])
    rows.update(state)
    assert rows.table.text == NO_COLLECTIONS
    share = of(1)["collections"][0]["workers"]
    rows.update(of(1, collections=[layout(share, missing=10)]))
    assert rows.table.text == RELEASED
    assert not rows.bars.visible


def test_events_are_marked_on_the_memory_line() -> None:
    line = Timeline()
    history = {"time": [10.0, 20.0, 30.0], "process": [1, 2, 3], "managed": [1, 1, 1]}
    events = [
        {"time": 5.0, "kind": "did", "text": "before all"},
        {"time": 20.0, "kind": "failed", "text": "restart"},
    ]
    line.update(of(history=history, events=events))
    assert line.marks.data["at"] == [2]
    assert line.marks.data["mark"] == ["x"]
    assert line.marks.data["text"] == ["00:00:20 UTC restart"]
    assert line.list.text.index("restart") < line.list.text.index("before all")


def test_only_new_history_is_sent() -> None:
    line = Timeline()
    history = {"time": [10.1, 20.1], "process": [1, 2], "managed": [1, 1]}
    line.update(of(history=history))
    document, sent = Document(), []
    document.add_root(line.root)
    document.on_change(sent.append)
    later = {"time": [20.1, 30.1], "process": [2, 3], "managed": [1, 1]}
    line.update(of(history=later))
    (streamed,) = [e for e in sent if hasattr(e, "rollover")]
    assert streamed.data == {"time": [30100.0], "process": [3], "managed": [1]}
    assert line.source.data["process"] == [2, 3]
    other = {"time": [5.0], "process": [9], "managed": [1]}
    line.update(of(history=other))  # of a restarted scheduler
    assert line.source.data["process"] == [9]
