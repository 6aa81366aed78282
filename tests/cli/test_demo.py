"""The demo: its error, its output and its data; it leaves no processes or files."""

from __future__ import annotations

import multiprocessing.util
import os
import re
import signal
import subprocess
import sys
import tempfile
from pathlib import Path
from time import sleep

import click
import numpy as np
import psutil
import pytest
from distributed import futures_of

from clustertune.cli import demo
from tests.processes import until

pytest.importorskip("xgboost")


def test_a_missing_package_is_named_with_the_extra(monkeypatch):
    """The text has the command that installs the extra; nothing is printed before."""
    monkeypatch.setattr(demo, "find_spec", lambda name: None)
    said = []
    with pytest.raises(click.UsageError) as caught:
        demo.run(2, said.append)
    assert said == []
    assert "xgboost, scikit-learn" in str(caught.value)
    assert "pip install 'clustertune[demo]'" in str(caught.value)


# --- output ---------------------------------------------------------------------------


def test_a_step_says_what_goes_on_and_what_it_took():
    """A step prints a line before and a line after."""
    said = []
    with demo.step(said.append, "waiting") as seconds:
        sleep(0.05)
        assert seconds() >= 0.05
    assert said[0] == "waiting ..."
    assert re.fullmatch(r" +\d+\.\d s", said[1])


def test_a_step_that_fails_is_not_said_to_be_done():
    """A failed step prints no time."""
    said = []
    with pytest.raises(ZeroDivisionError), demo.step(said.append, "dividing"):
        _ = 1 / 0
    assert said == ["dividing ..."]


def trial(name, seconds, score, *rows):
    named = {str(i): n for i, n in enumerate(rows)}
    return demo.Trial(name=name, rows=named, seconds=seconds, score=score)


def test_the_table_has_rows_by_worker_times_and_scores():
    """The table has one line for each fit."""
    text = demo._table(
        trial("without", 12.34, 0.9012, 5_000, 0),
        trial("after", 6.5, 0.9, 2_500, 2_500),
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
    """The demo prints that workers share CPUs."""
    monkeypatch.setattr(demo, "CPU_COUNT", 1)
    text = demo._verdict(trial("", 10, 1, 9, 0), trial("", 9, 1, 5, 4), 1.0)
    assert "2 workers share 1 CPUs, which limits both fits" in text


# --- the whole demo -------------------------------------------------------------------


def children():
    """Return the child processes, without Python's own helpers."""
    found = psutil.Process().children(recursive=True)
    return {p.pid for p in found if not _helper(p)}


def _helper(process):
    """Return whether a process is a helper; forked workers look the same."""
    names = re.search("resource_tracker|forkserver", " ".join(process.cmdline()))
    return names is not None and process.ppid() == os.getpid()


@pytest.fixture
def scratch(tmp_path, monkeypatch):
    """Return the folder for temporary folders; the demo must leave it empty."""
    # multiprocessing keeps one folder until the process ends
    multiprocessing.util.get_temp_dir()
    folder = tmp_path / "scratch"
    folder.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    return folder


def fits(said):
    """Return the printed rows by worker and the scores of the two fits."""
    found = []
    for start in ("without clustertune", "after prepare"):
        line = next(x for x in "\n".join(said).splitlines() if x.startswith(start))
        *rows, _, score = line.removeprefix(start).split()
        found.append(([int(n.replace(",", "")) for n in rows], float(score)))
    return found


@pytest.mark.slow
def test_the_demo_trains_on_all_workers_after_prepare(scratch, monkeypatch):
    """All rows are on the first worker, then evenly on both; the score stays."""
    monkeypatch.setattr(demo, "TREES", 20)
    running = children()
    said = []
    demo.run(2, said.append, rows=20_000)
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
@pytest.mark.skipif(sys.platform == "win32", reason="sends SIGINT to a process group")
def test_an_interrupt_leaves_nothing_behind(scratch):
    """After ^C during a fit no workers or files are left, and the exit code is 130."""
    code = """
from clustertune.cli import demo, main
demo.run.__kwdefaults__["rows"], demo.TREES = 20_000, 10_000
main()
"""
    with (scratch.parent / "output").open("wb") as output:
        process = subprocess.Popen(
            [sys.executable, "-c", code, "demo"],
            env=os.environ | {"TMPDIR": str(scratch)},
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            start_new_session=True,
        )
    said = Path(output.name).read_text
    try:
        until(lambda: "training" in said() or process.poll() is not None)
        sleep(1)  # until the fit runs
        group = [p for p in psutil.process_iter() if _in_session(p, process.pid)]
        assert len(group) > 2, said()
        os.killpg(process.pid, signal.SIGINT)  # like a terminal
        assert process.wait(100) == 130, said()
        _, alive = psutil.wait_procs(group, timeout=60)
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


# --- the data -------------------------------------------------------------------------


def test_rows_of_the_data(local_cluster):
    """All is in memory, and labels are cut where features are."""
    client = local_cluster(1, processes=False, dashboard_address="127.0.0.1:0")[1]
    X, y, X_valid, y_valid = data = demo.load(client, 200, 7)
    assert (len(X), len(X_valid)) == (180, 20)
    assert X.chunks[0] == y.chunks[0]
    assert X_valid.chunks[0] == y_valid.chunks[0]
    for collection in data:
        assert {future.status for future in futures_of(collection)} == {"finished"}
    again = demo.load(client, 200, 7)
    for one, other in zip(data, again, strict=True):
        np.testing.assert_array_equal(one.compute(), other.compute())
