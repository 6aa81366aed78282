"""Fits on real clusters whose workers are killed, retired or frozen."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import CancelledError
from contextlib import contextmanager
from pathlib import Path
from threading import Event, Thread
from typing import Any

import dask
import dask.array as da
import distributed
import lightgbm as lgb
import numpy as np
import pytest
import xgboost.callback
import xgboost.dask as dxgb
from distributed import Client, get_worker, wait
from sklearn.metrics import log_loss

import clustertune
from clustertune.errors import IncompleteError
from clustertune.operations.checkpoints import CheckpointFile
from tests.operations.training import (
    PARTITIONS,
    ROWS,
    block,
    busy,
    has_fit,
    is_training,
    train_until,
)
from tests.processes import cluster, interrupted_when, process, until, workers_of

pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore:Parameter n_jobs will be ignored:UserWarning"),
]


@contextmanager
def started(folder: Path, *options: str) -> Iterator[Client]:
    """Start workers ``w-0`` to ``w-2``, and a scheduler as a process.

    XGBoost's tracker runs in the process of the scheduler, and ends it when a worker
    dies while the workers connect.
    """
    with (
        cluster(folder, 3, options=("--name", "w", *options)) as file,
        Client(scheduler_file=file) as client,
    ):
        yield client


@pytest.fixture(scope="module")
def folder(tmp_path_factory: Any) -> Path:
    """Return the folder of the cluster, with the file of its scheduler."""
    return tmp_path_factory.mktemp("cluster")


@pytest.fixture(scope="module")
def client(folder: Path) -> Iterator[Client]:
    """Its workers die in many tests, and come back."""
    with started(folder) as client:
        yield client


@contextmanager
def fourth_worker(
    client: Client, folder: Path, *options: str
) -> Iterator[subprocess.Popen[bytes]]:
    """Start the worker ``extra``, which leaves in the test."""
    command = (
        *(sys.executable, "-m", "dask", "worker", "--name", "extra", *options),
        *("--scheduler-file", str(folder / "scheduler.json"), "--nthreads", "1"),
        *("--memory-limit", "1GiB", "--host", "127.0.0.1", "--no-dashboard"),
        *("--local-directory", str(folder)),
    )
    with process(*command) as worker:
        client.wait_for_workers(4)
        yield worker


@pytest.fixture
def left(client: Client, folder: Path) -> Iterator[Client]:
    """Client of the cluster with a fourth worker; it has a nanny, and retires."""
    with fourth_worker(client, folder):
        yield client


KINDS = ["xgboost", "lightgbm"]


def lazy(seed: int | None = 0, partitions: int = PARTITIONS) -> list[Any]:
    made = dask.delayed(block, pure=seed is not None)
    blocks = [
        da.from_delayed(made(i, seed), (ROWS, 9), "f4") for i in range(partitions)
    ]
    rows = da.concatenate(blocks)
    return [rows[:, :8], rows[:, 8].astype("i4")]


def data(
    client: Client, seed: int | None = 0, partitions: int = PARTITIONS
) -> tuple[Any, Any]:
    client.wait_for_workers(3)
    X, y = client.persist(lazy(seed, partitions))
    wait([X, y])
    return X, y


def model(kind: str, **params: Any) -> Any:
    if kind == "xgboost":
        given = {"n_estimators": 800, "max_depth": 4, "verbosity": 0, "n_jobs": 1}
        return dxgb.DaskXGBClassifier(**{**given, **params})
    given = {"n_estimators": 800, "num_leaves": 15, "verbose": -1}
    return lgb.DaskLGBMClassifier(**{**given, **params})


class Watcher:
    """The progress of a fit; acts once when a fraction of the rounds is done."""

    def __init__(self, action: Callable[[], None], fraction: float = 0.05):
        self.action: Callable[[], None] | None = action
        self.fraction = fraction
        self.seen: list[tuple[str, float | None]] = []

    def __call__(self, text: str, fraction: float | None) -> None:
        self.seen.append((text, fraction))
        rounds = text.startswith("round ") and fraction is not None
        if rounds and fraction >= self.fraction and self.action is not None:
            action, self.action = self.action, None
            action()


def address_of(client: Client, name: str) -> str:
    known = workers_of(client).items()
    (address,) = (a for a, w in known if w["name"] == name)
    return address


def pid_of(client: Client, name: int) -> int:
    address = address_of(client, f"w-{name}")
    (pid,) = client.run(os.getpid, workers=[address]).values()
    return int(pid)


def killer(client: Client, name: int = 1, how: int = signal.SIGKILL) -> Any:
    pid = pid_of(client, name)
    return lambda: os.kill(pid, how)


def fit(client: Client, estimator: Any, X: Any, y: Any, **options: Any) -> Any:
    if options.keys() & {"max_failures", "checkpoint_path"}:
        options.setdefault("checkpoint_every", 0.2)
    return clustertune.fit(client, estimator, X, y, **options)


def trees(fitted: Any) -> list[str]:
    if isinstance(fitted, dxgb.DaskXGBClassifier):
        return list(fitted.get_booster().get_dump())
    text = fitted.booster_.model_to_string(num_iteration=-1)
    return [tree.split("\n\n")[0] for tree in text.split("\nTree=")[1:]]


def held_out_loss(fitted: Any) -> float:
    rows = np.concatenate([block(PARTITIONS + i) for i in range(20)])
    if isinstance(fitted, dxgb.DaskXGBClassifier):
        found = fitted.get_booster().inplace_predict(rows[:, :8])
    else:
        found = fitted.booster_.predict(rows[:, :8])
    return float(log_loss(rows[:, 8], found))


def executing(client: Client) -> Any:
    """Return how many tasks each worker executes."""
    found = client.run(lambda dask_worker: dask_worker.state.executing_count)
    return found.values()


def check_whole(client: Client, X: Any, y: Any) -> None:
    """All workers are free, and the data is complete."""
    until(lambda: len(workers_of(client)) == 3)
    until(lambda: set(executing(client)) == {0})  # lost partitions are computed again
    assert is_whole(*client.gather(client.compute([X, y])))


def is_whole(rows: Any, labels: Any) -> bool:
    """Whether the computed data has all rows, in order."""
    expected = np.concatenate([block(i) for i in range(PARTITIONS)])
    same_rows = np.array_equal(rows, expected[:, :8])
    return same_rows and np.array_equal(labels, expected[:, 8])


@pytest.mark.parametrize("kind", KINDS)
def test_a_fit_finishes_although_a_worker_is_killed(client: Client, kind: str) -> None:
    """It continues from the last checkpoint, with the same rows on the same workers."""
    X, y = data(client)
    whole = fit(client, model(kind), X, y, progress=False)
    watcher = Watcher(killer(client))
    survived = fit(client, model(kind), X, y, progress=watcher, max_failures=1)
    assert watcher.action is None
    assert len(trees(survived)) == len(trees(whole)) == 800
    notes = "\n".join(survived.clustertune_report_.notes)
    assert "the fit lost worker w-1: killed by signal 9 (SIGKILL)" in notes
    assert re.search(
        r"resumed from round \d+ after \S+ \w+ on 3 workers; "
        r"2 partitions computed again; ident",
        notes,
    )
    assert re.findall(r"^(attempt \d: )held for", notes, re.MULTILINE) == [
        "attempt 1: ",
        "attempt 2: ",
    ]
    if kind == "xgboost":
        assert "identical to an uninterrupted fit: yes" in notes
        assert trees(survived) == trees(whole)
    else:
        assert "identical to an uninterrupted fit: no, since LightGBM adds" in notes
    assert held_out_loss(survived) < 1.01 * held_out_loss(whole)
    assert str(survived.get_params()) == str(whole.get_params())
    check_whole(client, X, y)


@pytest.mark.parametrize("kind", KINDS)
def test_a_fit_ends_with_one_error(client: Client, kind: str) -> None:
    """The error has the worker, the reason, the round and a fix; workers are free."""
    X, y = data(client)
    watcher = Watcher(killer(client, 0))
    with pytest.raises(IncompleteError) as error:
        fit(client, model(kind), X, y, progress=watcher)
    text = str(error.value)
    assert "the fit lost worker w-0: killed by signal 9 (SIGKILL) (at round " in text
    assert "max_failures=" in text
    check_whole(client, X, y)
    fit(client, model(kind, n_estimators=5), X, y, progress=False)


def test_a_worker_that_is_killed_while_it_packs(client: Client) -> None:
    """One worker of the host trains; tasks that are bound to it do not wait for it."""
    X, y = data(client)
    pids = client.run(os.getpid)
    killed: list[str] = []

    def strike() -> None:
        with Client(client.scheduler.address, set_as_default=False) as watch:
            until(lambda: watch.run_on_scheduler(has_fit))
            for pid in pids.values():
                os.kill(pid, signal.SIGSTOP)
            killed.extend(until(lambda: watch.run_on_scheduler(busy)))
            for address, pid in pids.items():
                os.kill(pid, signal.SIGKILL if address in killed else signal.SIGCONT)

    striker = Thread(target=strike)
    striker.start()
    with pytest.raises(IncompleteError, match=r"killed by signal 9.*before its first"):
        fit(client, model("xgboost", n_jobs=None), X, y, progress=False)
    striker.join()
    assert len(killed) == 1
    check_whole(client, X, y)


@contextmanager
def retiring(client: Client) -> Iterator[dict[str, Any]]:
    """Retire the fourth worker during a fit with these options."""
    work = Thread(target=client.retire_workers, args=([address_of(client, "extra")],))
    yield {"progress": Watcher(work.start), "max_failures": 1}
    work.join()


def test_a_worker_that_retires(left: Client) -> None:
    """The fit takes a checkpoint, and goes on without the worker."""
    X, y = data(left, partitions=12)  # as many for each of four, and of three workers
    with retiring(left) as options:
        survived = fit(left, model("xgboost"), X, y, n_workers=4, **options)
    assert len(trees(survived)) == 800
    notes = "\n".join(survived.clustertune_report_.notes)
    assert re.search(r"resumed from round \d+ after \S+ \w+ on 3 workers", notes)
    assert "computed again" not in notes  # the worker gave its partitions away
    assert "rows are on other workers" in notes
    until(lambda: len(workers_of(left)) == 3)  # without parking workers


def test_named_workers_that_do_not_return(left: Client) -> None:
    """The fit continues on the named workers that are left."""
    X, y = data(left)
    with retiring(left) as options:
        options["workers"] = [address_of(left, name) for name in ("extra", "w-0")]
        survived = fit(left, model("xgboost"), X, y, **options)
    assert len(trees(survived)) == 800


def test_the_only_named_worker_does_not_return(left: Client) -> None:
    """The error names the loss, and what to do."""
    X, y = data(left)
    text = "the fit lost worker extra.*; then none of the workers in workers= is left"
    with retiring(left) as options:
        options["workers"] = [address_of(left, "extra")]
        with pytest.raises(IncompleteError, match=text):
            fit(left, model("xgboost"), X, y, **options)
    assert is_whole(*left.gather(left.compute([X, y])))


def test_what_is_shown_or_written_fails(
    client: Client,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    """Neither ends the fit, its watch or the next attempt; both are logged.

    The function of ``progress=`` raises, and no checkpoint can be written.
    """

    def refuse(*_: Any) -> None:
        raise OSError("the disk is full")

    def progress(text: str, fraction: float | None) -> None:
        watcher(text, fraction)
        if watcher.action is None and "the fit continues" in text:
            raise ZeroDivisionError

    monkeypatch.setattr(CheckpointFile, "_write", refuse)
    X, y = data(client)
    watcher = Watcher(killer(client))
    options = {"max_failures": 1, "checkpoint_path": tmp_path / "model.checkpoint"}
    survived = fit(client, model("xgboost"), X, y, progress=progress, **options)
    assert len(trees(survived)) == 800
    assert "the progress is not shown any more, only logged: Zero" in caplog.text
    assert "was not written: " in caplog.text
    assert "the disk is full" in caplog.text
    check_whole(client, X, y)


def test_interrupted_while_it_resumes(client: Client) -> None:
    """After ^C all workers are free, the data is complete, and a fit can follow."""
    X, y = data(client)
    watcher, resumes = Watcher(killer(client)), Event()

    def progress(text: str, fraction: float | None) -> None:
        watcher(text, fraction)
        if text.endswith("the fit continues"):
            resumes.set()

    def resuming() -> bool:
        assert resumes.wait(200)
        client.run_on_scheduler(lambda: None)  # the call of progress has returned
        return True

    with interrupted_when(resuming), pytest.raises(KeyboardInterrupt):
        fit(client, model("xgboost"), X, y, progress=progress, max_failures=1)
    assert watcher.action is None
    check_whole(client, X, y)
    fit(client, model("xgboost", n_estimators=5), X, y, progress=False)


def test_a_later_call_continues(client: Client, tmp_path: Path) -> None:
    """The file has the last checkpoint until the training is complete."""
    X, y = data(client)
    file = tmp_path / "model.checkpoint"
    estimator = model("xgboost")
    watcher = Watcher(killer(client))
    with pytest.raises(IncompleteError):
        fit(client, estimator, X, y, progress=watcher, checkpoint_path=file)
    assert file.exists()
    with pytest.raises(ValueError, match=r"fit: .*parameter max_depth differ"):
        fit(client, model("xgboost", max_depth=2), X, y, checkpoint_path=file)
    with pytest.raises(ValueError, match=r"another fit: values of y differ"):
        fit(client, estimator, X, 1 - y, checkpoint_path=file)
    with pytest.raises(ValueError, match=r"another fit: rows of X, rows of y differ"):
        fit(client, estimator, X[ROWS:], y[ROWS:], checkpoint_path=file)
    watcher = Watcher(lambda: None, 1.0)
    X, y = X.rechunk((ROWS // 2, -1)), y.rechunk(ROWS // 2)  # the same rows
    whole = fit(client, estimator, X, y, progress=watcher, checkpoint_path=file)
    first = next(f for text, f in watcher.seen if text.startswith("round "))
    assert first is not None
    assert first > 0.02  # it did not begin again
    notes = "\n".join(whole.clustertune_report_.notes)
    assert re.search(r"^resumed from round \d+$", notes, re.MULTILINE)
    assert len(trees(whole)) == 800
    assert not list(tmp_path.iterdir())


def test_a_file_that_is_no_checkpoint(client: Client, tmp_path: Path) -> None:
    file = tmp_path / "other"
    file.write_bytes(b"\x80\x04.")
    with pytest.raises(ValueError, match="is no checkpoint of a fit"):
        fit(client, model("xgboost"), *data(client), checkpoint_path=file)


def test_values_that_changed(client: Client) -> None:
    """A source without a seed gives other rows, which may not fit their labels."""
    X, y = data(client, seed=None)
    watcher = Watcher(killer(client))
    with pytest.raises(IncompleteError, match="other values"):
        fit(client, model("xgboost"), X, y, progress=watcher, max_failures=2)


@pytest.mark.parametrize("seed", [0, None])
def test_values_that_changed_in_old_partitions(
    client: Client, folder: Path, seed: int | None
) -> None:
    """A worker is gone for good, so other partitions are made for the rest."""
    with fourth_worker(client, folder, "--no-nanny") as worker:
        X, y = data(client, seed, partitions=4)
        watcher = Watcher(worker.kill)
        options: Any = {"progress": watcher, "max_failures": 2}
        if seed is None:
            with pytest.raises(IncompleteError, match=r"lost worker extra.*other"):
                fit(client, model("xgboost"), X, y, **options)
        else:
            survived = fit(client, model("xgboost"), X, y, **options)
            assert len(trees(survived)) == 800
            report = survived.clustertune_report_
            notes = "\n".join(report.notes)
            assert re.search(r"resumed from round \d+ after .* on 3 workers", notes)
            assert "could not be compared" not in notes
            assert report.after[0].partitions != 4
        assert watcher.action is None


def test_data_that_cannot_come_back(client: Client) -> None:
    """The error names the worker that took the data with it."""
    parts = client.scatter([block(i) for i in range(PARTITIONS)], hash=False)
    rows = da.concatenate([da.from_delayed(x, (ROWS, 9), "f4") for x in parts])
    X, y = client.persist([rows[:, :8], rows[:, 8].astype("i4")])
    wait([X, y])
    watcher = Watcher(killer(client))
    with pytest.raises(IncompleteError, match="the fit lost worker w-1: killed by"):
        fit(client, model("xgboost"), X, y, progress=watcher, max_failures=1)


def test_two_fits_lose_the_same_worker(tmp_path: Path) -> None:
    """Each waits for a restart that the hold of the other would keep from beginning."""
    trains = Event()
    errors = {}

    def mine() -> None:
        long = model("lightgbm", n_estimators=5000)
        with pytest.raises(IncompleteError) as error:
            fit(client, long, X, y, progress=Watcher(trains.set, 0.0))
        errors["mine"] = str(error.value)

    def theirs() -> None:
        held = clustertune.hold(other, on_lost_worker="cancel")
        with held, pytest.raises(CancelledError, match="lost worker w-1") as error:
            other.gather(
                [
                    other.submit(train_until, "x", key=f"_train_part-{w}", workers=[w])
                    for w in ("w-0", "w-1", "w-2")
                ]
            )
        errors["theirs"] = str(error.value)

    with (
        started(tmp_path, "--nthreads", "2") as client,
        Client(client.scheduler.address, set_as_default=False) as other,
    ):
        X, y = data(client)
        kill = killer(client)
        threads = [Thread(target=mine), Thread(target=theirs)]
        threads[0].start()
        assert trains.wait(200)
        threads[1].start()
        until(lambda: [*executing(client)] == [2, 2, 2])
        kill()
        for thread in threads:
            thread.join(250)
        assert errors.keys() == {"mine", "theirs"}
        assert "the fit lost worker w-1: killed by signal 9" in errors["mine"]
        check_whole(client, X, y)


def test_a_hold_cancels_its_own_training_only(client: Client) -> None:
    """A worker that trains for another client is no loss for this one."""
    client.wait_for_workers(3)
    pid, kill = pid_of(client, 1), killer(client, 0)
    with (
        Client(client.scheduler.address, set_as_default=False) as other,
        clustertune.hold(client, on_lost_worker="cancel"),
    ):
        mine = client.submit(
            train_until, "go", key="_train_part-mine", workers=["w-1"], pure=False
        )
        with clustertune.hold(other, on_lost_worker="cancel"):
            theirs = other.submit(
                train_until, "x", key="_train_part-theirs", workers=["w-0"], pure=False
            )
            until(lambda: sum(executing(client)) == 2)
            kill()
            with pytest.raises(CancelledError, match="lost worker w-0"):
                theirs.result(timeout=200)
        distributed.Event("go", client=client).set()
        assert mine.result(timeout=200) == pid
    until(lambda: len(workers_of(client)) == 3)


class FailsOnOneWorker(dxgb.DaskXGBClassifier):  # type: ignore[misc]
    """Its other workers wait for that one."""

    def fit(self, X: Any, y: Any, **_: Any) -> Any:
        client = distributed.get_client()
        waiting = [
            client.submit(train_until, "x", key=f"_train_part-{w}", workers=[w])
            for w in ("w-0", "w-1")
        ]
        until(lambda: sum(executing(client)) == 2)
        raise ZeroDivisionError(str(waiting))


def test_a_library_fails_without_a_loss(client: Client) -> None:
    """Its error is raised as it is; no worker keeps a task that waits."""
    X, y = data(client)
    with pytest.raises(ZeroDivisionError):
        fit(client, FailsOnOneWorker(n_jobs=1), X, y, max_failures=1)
    check_whole(client, X, y)


class Fails(dxgb.DaskXGBClassifier):  # type: ignore[misc]
    """As with a wrong parameter."""

    def fit(self, X: Any, y: Any, **_: Any) -> Any:
        raise ZeroDivisionError


def test_another_fit_of_the_client_goes_on(client: Client) -> None:
    """An error without a loss cancels no tasks of a fit in a hold around it."""
    X, y = data(client)
    with clustertune.hold(client, on_lost_worker="cancel"):
        trains = client.submit(
            train_until, "now", key="_train_part-x", workers=["w-2"], pure=False
        )
        until(lambda: sum(executing(client)) == 1)
        with pytest.raises(ZeroDivisionError):
            fit(client, Fails(n_jobs=1), X, y)
        distributed.Event("now", client=client).set()
        assert trains.result(timeout=200) == pid_of(client, 2)
    check_whole(client, X, y)


def test_the_training_of_another_client_goes_on(client: Client) -> None:
    """A fit that has lost a worker ends its own training tasks only."""
    X, y = data(client)
    with Client(client.scheduler.address, set_as_default=False) as other:
        pid = pid_of(client, 2)
        trains = other.submit(
            train_until, "end", key="_train_part-other", workers=["w-2"], pure=False
        )
        options = {"progress": Watcher(killer(client, 0)), "workers": ["w-0", "w-1"]}
        with pytest.raises(IncompleteError, match="lost worker w-0"):
            fit(client, model("lightgbm"), X, y, **options)
        distributed.Event("end", client=other).set()
        assert trains.result(timeout=200) == pid
    check_whole(client, X, y)


@pytest.mark.parametrize("kind", KINDS)
def test_a_hold_ends_a_fit(client: Client, kind: str) -> None:
    """A fit in the block of a hold ends too, and workers are free after the block."""
    X, y = clustertune.prepare(client, *data(client))
    if kind == "lightgbm":
        ours = model(kind, n_estimators=20_000, client=client)
    else:
        ours = model(kind, n_estimators=20_000, callbacks=[Rounds()])
    kill = killer(client)

    def training() -> bool:
        if kind == "xgboost":  # all workers have connected
            return bool(client.get_events("rounds"))
        return any(client.run(is_training).values())

    def strike() -> None:
        until(training)
        kill()

    with clustertune.hold(client, on_lost_worker="cancel"):
        striker = Thread(target=strike)
        striker.start()
        with pytest.raises(Exception, match=r"\S"):
            ours.fit(X, y)
        striker.join()
    check_whole(client, X, y)


class Rounds(xgboost.callback.TrainingCallback):
    """Logs each round."""

    def after_iteration(self, model: Any, epoch: int, evals_log: Any) -> bool:
        get_worker().log_event("rounds", epoch)
        return False
