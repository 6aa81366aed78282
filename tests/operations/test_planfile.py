"""Plans as files: every field is checked, and errors have no traceback."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from clustertune.core.counts import Done
from clustertune.core.model import Finding, Severity
from clustertune.core.report import Report
from clustertune.core.results import LayoutSummary, WorkerShare
from clustertune.core.wording import time_text
from clustertune.errors import RefusedError
from clustertune.operations.planfile import VERBS, PlannedCall, StoredPlan, checked
from clustertune.planner import verification
from clustertune.testing import layout, view, worker


def stored(**changes: Any) -> StoredPlan:
    """A plan of every kind of content."""
    step = Done(
        action="restart",
        summary="restart worker 0",
        gain="memory",
        status="planned",
        predicted_bytes=0,
        predicted_seconds=1.5,
        at_risk="nothing",
    )
    finding = Finding(
        severity=Severity.warning,
        message="it leaks",
        subject=(0, "b"),
        evidence={"bytes": np.int64(5), "share": 0.5, "why": None},
        check="memory_growth",
    )
    share = WorkerShare(worker=0, partitions=1, rows=10, nbytes=80, share=1.0)
    summary = LayoutSummary(
        label="training data",
        collections=("X",),
        partitions=1,
        loaded=True,
        rows=10,
        nbytes=80,
        separated=None,
        imbalance=0.0,
        workers=(share,),
    )
    report = Report(
        status="planned",
        seconds=0.1,
        found=(finding,),
        before=(summary,),
        steps=(step,),
        needs=("rows",),
        forecast={0: 5},
    )
    some = view([worker(0), worker("b")], [layout([10], [0])])
    fields: dict[str, Any] = {
        "made": 1000.0,
        "expires": 4600.0,
        "by": "ada@node7",
        "reason": "",
        "call": PlannedCall(
            verb="restart", options={"workers": [0, "b"], "wait": 60.0}
        ),
        "seen": verification.fingerprint("Scheduler-1", some),
        "report": report,
    }
    return StoredPlan(**(fields | changes))


TEXT = stored().to_json()


def edited(path: str, value: Any) -> str:
    """The file with another value at a path like ``seen.workers.0.id``."""
    data = json.loads(TEXT)
    *where, last = path.split(".")
    inner: Any = data
    for key in where:
        inner = inner[int(key) if isinstance(inner, list) else key]
    if value is ...:
        del inner[last]
    else:
        inner[int(last) if isinstance(inner, list) else last] = value
    return json.dumps(data)


def test_there_and_back(tmp_path: Path) -> None:
    """A plan is equal after writing and reading, except for its forecast."""
    plan = stored()
    plan.save(tmp_path / "plan.json")
    found = StoredPlan.load(tmp_path / "plan.json")
    assert (found.call, found.seen) == (plan.call, plan.seen)
    assert found.steps == plan.steps
    assert found.report.found == plan.report.found
    assert found.report.before == plan.report.before
    assert found.report.forecast == {}
    assert StoredPlan.from_json(found.to_json()) == found
    # formatting the file is not an edit
    assert StoredPlan.from_json(json.dumps(json.loads(TEXT), sort_keys=True)) == found


def test_as_text() -> None:
    """The text has the call, the cluster, the expiry, and the report of the dry run."""
    first, second, *_ = str(stored()).splitlines()
    assert first == "plan: restart(workers=[0, 'b'], wait=60.0)"
    assert f"2 workers; expires at {time_text(4600.0)}" in second
    assert "restart worker 0" in str(stored())
    assert "restart worker 0" in stored()._repr_html_()


@pytest.mark.parametrize(
    ("path", "value", "text"),
    [
        ("seen.workers.1.nthreads", "x", "seen.workers[1].nthreads: Expected int, go"),
        ("seen.workers.1.nthreads", True, "nthreads: Expected int, got bool"),
        ("seen.workers.1.id", None, "seen.workers[1].id: Expected int | str, got null"),
        ("seen.workers.1.id", ..., "seen.workers[1]: Object missing required field id"),
        ("seen.workers.1.size", 5, "seen.workers[1].size: unknown field; known fields"),
        ("seen.workers", {}, "seen.workers: Expected array, got object"),
        ("seen.data.0", 5, "seen.data[0]: Expected object, got int"),
        ("report.found.0.severity", 9, "found[0].severity: Invalid enum value 9"),
        (
            "report.found.0.evidence.bytes",
            [],
            "report.found[0].evidence[...]: Expected",
        ),
        ("report.steps.0.predicted_seconds", "1 s", "seconds: Expected float | null"),
        ("report.steps.0.colour", "red", "report.steps[0].colour: unknown field"),
        ("made", ..., "Object missing required field made"),
        ("made", "now", "made: Expected float, got str"),
        ("made", 10**400, "this is not JSON: a whole number has more than 300 digits"),
        ("expires", 1e9, "expires: 1e+09 must be at most"),
        ("expires", 500, "expires: 500 must be at most"),
        ("expires", float("nan"), "expires: nan must be at most"),
        ("made", 1e300, "must be at most"),
        ("more", 1, "more: unknown field; known fields are made, expires"),
        ("schema_version", 2, "schema_version: 2 is unknown; this clustertune reads 1"),
        ("schema_version", True, "schema_version: true is unknown"),
        ("schema_version", ..., "this is not a plan; `clustertune plan -o plan.json"),
        ("call.verb", "reset", "verb: 'reset' cannot be planned; choose from merge"),
        ("call.options.dry_run", True, "a plan of restart cannot have dry_run"),
        ("call.names", ["X"], "a plan of restart: takes no names"),
        ("call.names", [5], "call.names[0]: Expected str, got int"),
    ],
)
def test_what_is_no_plan(path: str, value: Any, text: str) -> None:
    """The error is one line with the path and the problem."""
    with pytest.raises(ValueError, match=re.escape(text)) as caught:
        StoredPlan.from_json(edited(path, value))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("call.options.wait", 61.0),
        ("expires", 4601.0),
        ("digest", "0"),
        ("digest", ...),
        ("report.steps.0.summary", "nothing much"),
    ],
)
def test_what_was_edited(path: str, value: Any) -> None:
    """A plan is only carried out as the user has read it."""
    with pytest.raises(RefusedError, match="was edited after it was made"):
        StoredPlan.from_json(edited(path, value))


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"env": {"PYTHONWARNINGS": "error::evil.x"}}, "PYTHONWARNINGS is not a varia"),
        ({"env": {"OMP_TOOL_LIBRARIES": "/tmp/x.so"}}, "OMP_TOOL_LIBRARIES is not"),
        ({"env": {"OMP_PLACES": "/tmp/x"}}, "OMP_PLACES='/tmp/x' may contain only"),
        ({"env": {"A": "b"}, "allow_any_env": True}, "cannot have allow_any_env"),
        ({"env": [["A", "b"]]}, "must be a mapping of names to texts"),
    ],
)
def test_variables_that_run_code(options: dict[str, Any], text: str) -> None:
    """A plan file cannot set them, even if its digest is right."""
    plan = stored(call=PlannedCall(verb="resize", options=options))
    with pytest.raises(ValueError, match="options") as caught:
        StoredPlan.from_json(plan.to_json())
    assert text in str(caught.value)


def test_files_that_are_none(tmp_path: Path) -> None:
    """The error names the file."""
    file = tmp_path / "plan.json"
    for content in (b"", b"\xff", b"{", b"[]", b"5", b"[" * 100_000):
        file.write_bytes(content)
        with pytest.raises(ValueError, match=f"{file}: "):
            StoredPlan.load(file)
    file.write_text(edited("reason", "another"))
    with pytest.raises(RefusedError, match=f"{file}: the plan was edited"):
        StoredPlan.load(file)
    with pytest.raises(OSError, match="No such file"):
        StoredPlan.load(tmp_path / "none.json")


def read(text: str) -> StoredPlan | str:
    """The plan, or the text of the error."""
    try:
        return StoredPlan.from_json(text)
    except (ValueError, RefusedError) as error:
        return str(error)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.text(max_size=5), inner, max_size=3)
    ),
    max_leaves=5,
)
PATHS: list[tuple[Any, ...]] = []


def _walk(data: Any, path: tuple[Any, ...]) -> None:
    PATHS.append(path)
    listed = enumerate(data) if isinstance(data, list) else ()
    for key, value in data.items() if isinstance(data, dict) else listed:
        _walk(value, (*path, key))


_walk(json.loads(TEXT), ())


@settings(max_examples=50)
@given(st.sampled_from(PATHS), JSON)
@example((), {"schema_version": 1})
def test_any_value_anywhere(path: tuple[Any, ...], value: Any) -> None:
    """Any value in any place gives the plan or an error of one line."""
    data = json.loads(TEXT)
    if path:
        *where, last = path
        inner = data
        for key in where:
            inner = inner[key]
        inner[last] = value
    else:
        data = value
    found = read(json.dumps(data))
    same = isinstance(found, StoredPlan) and found == StoredPlan.from_json(TEXT)
    assert same or "\n" not in str(found)


@given(st.text())
def test_any_text(text: str) -> None:
    """No random text is a plan."""
    with pytest.raises(ValueError, match="this is not"):
        StoredPlan.from_json(text)


def test_expired() -> None:
    """The error states the age and the duration."""
    stored().refuse_expired(4600)
    with pytest.raises(RefusedError, match=r"made 2 h ago and expired after 60 min"):
        stored().refuse_expired(8200)


# --- calls ----------------------------------------------------------------------------


def test_arguments_are_as_a_file_gives_them_back() -> None:
    """Tuples become lists, as in JSON."""
    call = checked("prepare", ("X", "y"), {"eval_set": (("a", "b"),), "qid": "q"})
    assert call.options == {"eval_set": [["a", "b"]], "qid": "q"}
    assert str(call) == "prepare('X', 'y', eval_set=[['a', 'b']], qid='q')"
    assert str(PlannedCall(verb="trim", options={"workers": None})) == "trim()"


@pytest.mark.parametrize(
    ("verb", "names", "options", "error", "text"),
    [
        ("reset", (), {}, ValueError, "'reset' cannot be planned; choose from"),
        ("prepare", (), {}, ValueError, "give the names of published data sets"),
        ("release", (), {}, ValueError, "give the names of prefixes of keys"),
        ("trim", ("X",), {}, ValueError, "takes no names"),
        (
            "prepare",
            (5,),
            {},
            TypeError,
            "5 cannot be saved in a plan file; publish the",
        ),
        ("scale", (), {}, ValueError, "a plan of scale needs n_workers"),
        ("trim", (), {"wait": 5}, ValueError, "a plan of trim cannot have wait"),
        (
            "trim",
            (),
            {"progress": True},
            ValueError,
            "its options are workers, timeout",
        ),
        (
            "trim",
            (),
            {"workers": {1}},
            TypeError,
            "workers: {1} cannot be saved in a plan",
        ),
        ("prepare", ("X", "X"), {}, ValueError, "'X' is given 2 times; give each"),
        ("resize", (), {"env": {1: "x"}}, TypeError, "cannot be saved in a plan file"),
        ("resize", (), {"env": {"BROWSER": "x"}}, ValueError, "BROWSER is not a vari"),
        (
            "resize",
            (),
            {"allow_any_env": True},
            ValueError,
            "cannot have allow_any_env",
        ),
    ],
)
def test_what_cannot_be_planned(
    verb: str, names: Any, options: Any, error: Any, text: str
) -> None:
    """Errors are raised before a cluster is used."""
    with pytest.raises(error) as caught:
        checked(verb, names, options)
    assert text in str(caught.value)


def test_what_is_refused() -> None:
    """One refused step refuses a whole plan, except a plan of ``prepare``."""
    planned = stored().steps[0]
    refused = replace(planned, status="refused")
    both = Report(status="planned", seconds=0, steps=(planned, refused))
    only = Report(status="planned", seconds=0, steps=(refused,))
    for verb in VERBS:
        call = PlannedCall(verb=verb)
        assert call.refused(only)
        assert call.refused(both) is (verb != "prepare")
        assert not call.refused(stored().report)
