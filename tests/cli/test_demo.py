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

import numpy as np
import pandas as pd
import psutil
import pyarrow.parquet as pq
import pytest
from distributed import futures_of

from clustertune.cli import demo
from tests.processes import until

pytest.importorskip("xgboost")


def test_a_missing_package_is_named_with_the_extra(monkeypatch):
    """The text has the command that installs the extra; nothing is printed before."""
    monkeypatch.setattr(demo, "find_spec", lambda name: None)
    said = []
    with pytest.raises(demo.DemoError) as caught:
        demo.run(2, said.append)
    assert said == []
    assert "xgboost, scikit-learn, pyarrow" in str(caught.value)
    assert "pip install 'clustertune[demo]'" in str(caught.value)


# --- output ---------------------------------------------------------------------------


def test_a_step_says_what_goes_on_and_what_it_took():
    """A step prints a line before and a line after."""
    said = []
    with demo.Step(said.append, "waiting") as step:
        sleep(0.05)
    assert said[0] == "waiting ..."
    assert re.fullmatch(r" +0\.\d s", said[1])
    assert 0.05 <= step.seconds < 5


def test_a_step_that_fails_is_not_said_to_be_done():
    """A failed step prints no time."""
    said = []
    with pytest.raises(ZeroDivisionError), demo.Step(said.append, "dividing"):
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
        sleep(1)  # until the fit runs
        group = [p for p in psutil.process_iter() if _in_session(p, process.pid)]
        assert len(group) > 2, said()
        os.killpg(process.pid, signal.SIGINT)  # like a terminal
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


# --- the data -------------------------------------------------------------------------


def test_row_groups_add_up_and_are_uneven():
    """Row groups contain all rows, are not empty, and have different sizes."""
    sizes = demo.row_groups(100_000, 32)
    assert len(sizes) == 32
    assert sizes.sum() == 100_000
    assert sizes.min() > 0
    assert sizes.max() > 2 * sizes.min()


def test_digits_are_written_in_the_row_groups_asked_for(tmp_path):
    """Check files, row groups, columns and types."""
    demo.write_digits(tmp_path / "digits", rows=3_000, partitions=12)
    files = sorted((tmp_path / "digits").iterdir())
    found = [pq.ParquetFile(file).metadata for file in files]
    groups = [m.row_group(i).num_rows for m in found for i in range(m.num_row_groups)]
    assert len(files) == 4
    assert groups == demo.row_groups(3_000, 12).tolist()
    table = pq.read_table(tmp_path / "digits").to_pandas()
    assert table.shape == (3_000, 65)
    assert set(table.drop(columns="digit").dtypes) == {np.dtype("float32")}
    assert sorted(table["digit"].unique()) == list(range(10))


def test_digits_are_scikit_learns_with_noise(tmp_path):
    """The mean image of each digit is the real mean; all rows are different."""
    from sklearn.datasets import load_digits

    demo.write_digits(tmp_path / "digits", rows=5_000, partitions=8)
    table = pq.read_table(tmp_path / "digits").to_pandas()
    images, digits = load_digits(return_X_y=True)
    real = pd.DataFrame(images).groupby(digits).mean().to_numpy()
    made = table.groupby("digit").mean().to_numpy()
    for ours, theirs in zip(made, real, strict=True):
        assert np.corrcoef(ours, theirs)[0, 1] > 0.95
    assert not table.duplicated().any()


def test_the_same_digits_are_made_each_time(tmp_path):
    """The data is the same in each run."""
    for name in ("a", "b"):
        demo.write_digits(tmp_path / name, rows=500, partitions=4)
    first, second = (pq.read_table(tmp_path / name) for name in ("a", "b"))
    assert first.equals(second)


# --- loading --------------------------------------------------------------------------


@pytest.fixture
def loaded(tmp_path, local_cluster):
    """Return 200 loaded rows of 7 row groups, on a worker in this process."""
    client = local_cluster(1, processes=False, dashboard_address="127.0.0.1:0")[1]
    frame = pd.DataFrame({"x": np.arange(200.0), "digit": 3 * np.arange(200)})
    frame.to_parquet(tmp_path / "data.parquet", row_group_size=30)
    return demo.load(client, tmp_path)


def test_every_row_group_is_a_partition(loaded):
    """Each row group is a partition."""
    assert loaded.X.npartitions == 7


def test_rows_stay_paired(loaded):
    """Each label stays with its features in both sets, and no row is lost."""
    data = loaded
    for X, y in ((data.X, data.y), (data.X_valid, data.y_valid)):
        assert X.map_partitions(len).compute().tolist() == (
            y.map_partitions(len).compute().tolist()
        )
        assert (3 * X["x"].compute().to_numpy() == y.compute().to_numpy()).all()
    assert len(data.X) + len(data.X_valid) == 200
    assert len(data.X) > 5 * len(data.X_valid) > 0


def test_everything_is_in_memory(loaded):
    """The data is loaded when ``load`` returns, so a fit's time has no reading."""
    for collection in (loaded.X, loaded.y, loaded.X_valid, loaded.y_valid):
        futures = futures_of(collection)
        assert len(futures) == collection.npartitions
        assert {future.status for future in futures} == {"finished"}
