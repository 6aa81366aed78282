"""The demo: what it refuses, what it says, and that it leaves nothing behind."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import tempfile
from pathlib import Path
from time import sleep

import numpy as np
import pandas as pd
import psutil
import pytest

from clustertune.cli import demo
from clustertune.cli.demo import Data, DemoError
from tests.processes import until

pytest.importorskip("xgboost")


def refused(*arguments):
    """Run the demo, expect that it refuses before it does anything; return the text."""
    said = []
    with pytest.raises(DemoError) as caught:
        demo.run(*arguments, said.append)
    assert said == []
    return str(caught.value)


def test_a_missing_package_is_named_with_the_extra(monkeypatch):
    """Who installed without the extra reads what to type."""
    monkeypatch.setattr(demo, "find_spec", lambda name: None)
    text = refused(None, None, 2)
    assert "xgboost, scikit-learn, pyarrow" in text
    assert "pip install 'clustertune[demo]'" in text


@pytest.mark.parametrize("workers", [1, 0, -3])
def test_fewer_than_two_workers_are_refused(workers):
    """With one worker there is nothing to share out."""
    assert f"workers={workers}: " in refused(None, None, workers)


def test_a_path_that_does_not_exist_is_refused(tmp_path):
    """The path is in the text, as it was given."""
    path = str(tmp_path / "nothing.parquet")
    assert f"parquet={path!r}: there is no such file" in refused(path, "y", 2)


def test_data_without_a_label_is_refused(tmp_path):
    """The demo does not guess which column is to be predicted."""
    assert "label is missing" in refused(str(tmp_path), None, 2)


def test_a_label_without_data_is_refused():
    """A label belongs to data of the user's own."""
    assert "label='y' is a column of Parquet data: give parquet too" in refused(
        None, "y", 2
    )


def test_a_label_that_is_no_column_is_refused_before_a_cluster_starts(tmp_path):
    """What can be seen in the file is said at once."""
    path = tmp_path / "data.parquet"
    pd.DataFrame({"a": [1.0], "b": [2.0]}).to_parquet(path)
    assert "the columns are a, b" in refused(str(path), "c", 2)


# --- what it says -------------------------------------------------------------------


def test_a_step_says_what_goes_on_and_what_it_took():
    """Two lines: before it starts, and when it is through."""
    said = []
    with demo.Step(said.append, "waiting") as step:
        sleep(0.05)
    assert said[0] == "waiting ..."
    assert re.fullmatch(r" +0\.\d s", said[1])
    assert 0.05 <= step.seconds < 5


def test_a_long_step_says_that_it_still_runs(monkeypatch):
    """Nobody has to wonder whether it hangs; afterwards it is quiet."""
    monkeypatch.setattr(demo, "PROGRESS", 0.02)
    said = []
    with demo.Step(said.append, "waiting"):
        until(lambda: len(said) >= 3)
    sleep(0.1)
    assert re.fullmatch(r" +\.\.\. \d+ s", said[1])
    assert re.fullmatch(r" +\d+\.\d s", said[-1])


def test_a_step_that_fails_is_not_said_to_be_done():
    """The error speaks for itself."""
    said = []
    with pytest.raises(ZeroDivisionError), demo.Step(said.append, "dividing"):
        _ = 1 / 0
    assert said == ["dividing ..."]


def trial(name, seconds, score, *rows):
    named = {str(i): n for i, n in enumerate(rows)}
    return demo.Trial(name=name, rows=named, seconds=seconds, score=score)


def test_the_table_has_rows_by_worker_times_and_scores():
    """One line for each fit, with what they differ in."""
    data = Data(X=None, y=None, X_valid=None, y_valid=None, classes=10)
    text = demo._table(
        trial("without", 12.34, 0.9012, 5_000, 0),
        trial("after", 6.5, 0.9, 2_500, 2_500),
        data,
    )
    lines = [line.split() for line in text.splitlines()]
    assert lines[0][-3:] == ["fit", "(s)", "accuracy"]
    assert lines[2] == ["without", "5,000", "0", "12.3", "0.9012"]
    assert lines[3] == ["after", "2,500", "2,500", "6.5", "0.9000"]


def test_prepares_own_time_counts_in_the_verdict():
    """10 s against 1 s of preparing and 4 s of training is twice as fast, not 2.5."""
    text = demo._verdict(trial("", 10, 1, 9, 0), trial("", 4, 1, 5, 4), 1.0)
    assert "prepare took 1.0 s" in text
    assert "2.00 times as fast" in text


def test_too_few_cpus_are_said(monkeypatch):
    """Where workers share CPUs, a gain cannot be expected, and the demo says so."""
    monkeypatch.setattr(demo, "CPU_COUNT", 1)
    text = demo._verdict(trial("", 10, 1, 9, 0), trial("", 9, 1, 5, 4), 1.0)
    assert "2 workers share 1 CPUs, which limits both fits" in text


# --- the whole ----------------------------------------------------------------------


def children():
    """Processes that this one started, but for Python's own helpers."""
    found = psutil.Process().children(recursive=True)
    return {p.pid for p in found if not _helper(p)}


def _helper(process):
    """Whether it is one; workers that are forked from a helper look the same."""
    names = re.search("resource_tracker|forkserver", " ".join(process.cmdline()))
    return names is not None and process.ppid() == os.getpid()


@pytest.fixture
def scratch(tmp_path, monkeypatch):
    """A folder in which temporary ones are made; the demo must leave it empty."""
    folder = tmp_path / "scratch"
    folder.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    return folder


def fits(said):
    """Rows by worker and score of the two fits, as they were printed."""
    found = []
    for start in ("without clustertune", "after prepare"):
        line = next(x for x in "\n".join(said).splitlines() if x.startswith(start))
        *rows, _, score = line.removeprefix(start).split()
        found.append(([int(n.replace(",", "")) for n in rows], float(score)))
    return found


@pytest.mark.slow
def test_the_demo_trains_on_all_workers_after_prepare(scratch, monkeypatch):
    """All rows lie on the first worker, then evenly on both; the score stays."""
    monkeypatch.setattr(demo, "TREES", 20)
    running = children()
    said = []
    demo.run(None, None, 2, said.append, rows=20_000)
    (before, score), (after, score_after) = fits(said)
    assert before[1] == 0
    assert sum(after) == before[0]
    assert max(after) <= 1.05 * before[0] / 2
    assert score > 0.5
    assert abs(score_after - score) < 0.05
    assert any("prepare took" in text for text in said)
    assert children() == running
    assert list(scratch.iterdir()) == []


@pytest.mark.slow
def test_the_demo_learns_quantities_from_data_of_the_users_own(scratch, monkeypatch):
    """One row group, a quantity and a category: loaded, cut, trained, scored."""
    monkeypatch.setattr(demo, "TREES", 20)
    random = np.random.default_rng(0)
    frame = pd.DataFrame({"a": random.random(4_000), "b": random.random(4_000)})
    frame["kind"] = pd.Categorical(random.choice(["x", "y", "z"], 4_000))
    frame["price"] = 3 * frame["a"] + frame["b"] + frame["kind"].cat.codes
    path = scratch.parent / "data.parquet"
    frame.to_parquet(path)
    said = []
    demo.run(str(path), "price", 2, said.append)
    (before, score), (after, score_after) = fits(said)
    assert before[1] == 0
    assert min(after) > 0
    assert score > 0.8
    assert score_after > 0.8
    assert any("R2" in text for text in said)
    assert list(scratch.iterdir()) == []


@pytest.mark.slow
@pytest.mark.skipif(sys.platform == "win32", reason="sends SIGINT to a process group")
def test_an_interrupt_leaves_nothing_behind(scratch):
    """^C in the middle of a fit: workers and files are gone, the exit code is 130."""
    with (scratch.parent / "output").open("wb") as output:
        process = subprocess.Popen(
            [sys.executable, "-c", "from clustertune.cli import main; main()", "demo"],
            env=os.environ | {"TMPDIR": str(scratch)},
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            start_new_session=True,
        )
    said = Path(output.name).read_text
    try:
        until(lambda: "training" in said() or process.poll() is not None, 60)
        sleep(1)  # into the fit
        group = [p for p in psutil.process_iter() if _in_session(p, process.pid)]
        assert len(group) > 2, said()
        os.killpg(process.pid, signal.SIGINT)  # as a terminal does
        assert process.wait(30) == 130, said()
        _, alive = psutil.wait_procs(group, timeout=10)
        assert alive == []
        assert list(scratch.iterdir()) == []
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def _in_session(process, session):
    try:
        return os.getsid(process.pid) == session
    except ProcessLookupError:
        return False
