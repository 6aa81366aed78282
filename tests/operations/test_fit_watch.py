"""The watch of a fit, with a scheduler that answers as it is told."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from itertools import zip_longest
from types import SimpleNamespace
from typing import Any

import pytest
from dask_ml.cluster import KMeans
from distributed import Event, Nanny, Worker
from lightgbm import DaskLGBMRegressor
from xgboost.dask import DaskXGBRegressor

from clustertune.core.progress import Progress
from clustertune.errors import ConnectionLostError
from clustertune.integrations.libraries.boosting import Checkpoint
from clustertune.operations import fit as fits
from clustertune.operations import surviving
from clustertune.operations.checkpoints import CheckpointFile
from clustertune.operations.surviving import FitWatch, Loss
from clustertune.remote.ending import end_tasks
from tests.in_process import gen_cluster, gen_test
from tests.processes import soon


class Watch(FitWatch):
    """Keeps the requests and restarts; ``lost`` has how members are lost."""

    def __init__(self, **options: Any):
        client: Any = SimpleNamespace(status="running")
        super().__init__(client, **options)
        self.over, self.round = True, 0
        self.lost: dict[str, str] = {}
        self.asked: list[str] = []
        self.restarted: list[str] = []
        self.after_cancel: dict[str, str] | None = None
        self.saved: int | None = None
        self.failures: list[Exception] = []

    async def _ask(self, do: str, **arguments: Any) -> dict[str, Any]:
        await asyncio.sleep(0.01)
        self.asked.append(do)
        if do == "checkpoint":
            model = {"rounds": self.saved, "model": b"model", "history": {}}
            return {"checkpoint": model if self.saved else None}
        if do == "cancel" and self.failures:
            raise self.failures.pop()
        if do == "cancel" and self.after_cancel is not None:
            self.lost = self.after_cancel
        lost = [
            {"address": a, "worker": a, "how": h, "number": ord(a)}
            for a, h in self.lost.items()
        ]
        state = {
            "round": self.round,
            "rounds": 9,
            "metric": "",
            "rate": None,
            "saved": self.saved,
            "too_large": 0,
        }
        answer = {"cancelled": int(self.over), "over": self.over}
        return {**state, "lost": lost, "version": 1, **answer}

    async def _stuck(self) -> list[str]:
        return []

    async def _restart(self, addresses: list[str], *, drop_data: bool) -> None:
        self.restarted += addresses


@asynccontextmanager
async def running(watch: Watch, grace: float = 0.0) -> AsyncIterator[Watch]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(surviving, "GRACE", grace)
        task = asyncio.ensure_future(watch.run())
        try:
            yield watch
        finally:
            await end_tasks(task)


@gen_test()
async def test_each_loss_in_a_hold_ends_a_fit() -> None:
    """The user may try again in the same hold, and lose another worker."""
    async with running(Watch()) as watch:
        watch.lost = {"a": "left"}
        await soon(lambda: watch.asked.count("cancel") == 1)
        for _ in range(3):
            now = len(watch.asked)
            await soon(lambda n=now: len(watch.asked) > n)
        assert watch.asked.count("cancel") == 1
        watch.lost = {"a": "left", "b": "left"}
        await soon(lambda: watch.asked.count("cancel") == 2)


@gen_test()
async def test_a_fit_that_could_not_be_ended_is_ended_later(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """A request may fail while the scheduler is busy; the failure is logged."""
    async with running(Watch()) as watch:
        watch.failures = [OSError("no answer"), ConnectionLostError("no connection")]
        watch.lost = {"a": "left"}
        await soon(lambda: watch.asked.count("cancel") == 3)
        await soon(lambda: "a and was cancelled" in caplog.text)
    assert "no answer" in caplog.text
    assert "no connection" in caplog.text
    await watch.close()
    assert watch.asked.count("cancel") == 3


@gen_test()
async def test_a_training_that_is_not_there_yet() -> None:
    """The watch tries again until there is something to cancel."""
    async with running(Watch(workers=["a", "b"])) as watch:
        watch.over, watch.lost = False, {"a": "left"}
        await soon(lambda: watch.asked.count("cancel") == 3)
        assert not watch._handled
        watch.over = True
        await soon(lambda: watch._handled)


@gen_test()
async def test_a_display_that_fails(caplog: pytest.LogCaptureFixture) -> None:
    """Later losses are seen all the same."""

    def notify(text: str, done: float | None) -> None:
        raise OSError("no terminal")

    async with running(Watch(notify=notify)) as watch:
        watch.round = 1
        await soon(lambda: "no terminal" in caplog.text)
        watch.lost = {"a": "left"}
        await soon(lambda: watch._handled)


@gen_test()
async def test_the_client_is_closed() -> None:
    """Nothing keeps it alive."""
    watch = Watch()
    task = asyncio.ensure_future(watch.run())
    await soon(lambda: watch.asked)
    watch.client.status = "closed"
    await task


@gen_test()
async def test_a_loss_while_another_one_is_handled() -> None:
    """The end of the block ends its fit too."""
    watch = Watch()
    freeing = asyncio.Event()

    async def stuck() -> list[str]:
        watch.lost = {"a": "left", "b": "left"}
        await freeing.wait()
        return []

    watch._stuck = stuck  # type: ignore[method-assign]
    async with running(watch):
        watch.lost = {"a": "left"}
        await soon(lambda: len(watch.lost) == 2)
        closing = asyncio.ensure_future(watch.close())
        await soon(watch._finished.is_set)
    freeing.set()
    await closing
    assert watch.asked.count("cancel") == 2
    assert watch._handled == {ord("a"), ord("b")}


@gen_test()
async def test_a_store_that_hangs_hides_no_loss() -> None:
    """Checkpoints are stored apart from the watch."""
    stored: list[Checkpoint] = []

    async def store(checkpoint: Checkpoint) -> None:
        stored.append(checkpoint)
        await asyncio.Event().wait()

    async with running(Watch(keep=store)) as watch:
        watch.saved = 1
        await soon(lambda: stored)
        watch.saved, watch.lost = 2, {"a": "left"}
        await soon(lambda: "cancel" in watch.asked)
        assert [one.rounds for one in stored] == [1]
        assert watch._storing is not None
        await end_tasks(watch._storing)


@gen_test()
async def test_a_silent_member_that_answers_again() -> None:
    """The fit goes on."""
    async with running(Watch(), grace=200) as watch:
        watch.lost = {"a": "silent"}
        await soon(lambda: watch._ending)
        assert watch._lost_at
        watch.lost = {}
        await soon(lambda: watch._ending is not None and watch._ending.done())
        await watch.close()
    assert "cancel" not in watch.asked
    assert not watch._lost_at


@gen_test()
async def test_a_silent_member_that_answers_once_its_fit_is_cancelled() -> None:
    """It keeps its data; only a member that is still silent is restarted without."""
    async with running(Watch()) as watch:
        watch.lost = {"a": "silent", "b": "silent"}
        watch.after_cancel = {"a": "silent", "b": "back"}
        await soon(lambda: watch._handled)
    assert watch.restarted == ["a"]
    assert watch.asked.count("cancel") == 1
    monitor: Any = SimpleNamespace(events=[])
    assert await watch._reasons(watch.lost, monitor) == {
        "a": "it does not answer",
        "b": "it did not answer for a minute",
    }


def wait_at(name: str) -> None:
    Event(name).wait()


@gen_cluster(client=True, nthreads=[("127.0.0.1", 1)], Worker=Nanny)
async def test_a_stuck_worker_without_a_nanny(
    c: Any, s: Any, nanny: Any, caplog: pytest.LogCaptureFixture
) -> None:
    """It stays stuck and is named; the others are freed."""
    async with Worker(s.address, nthreads=1, name="bare") as bare:
        stuck = nanny.worker_address, bare.address
        waiting = [c.submit(wait_at, "gate", workers=[a], pure=False) for a in stuck]
        await soon(lambda: all(ws.processing for ws in s.workers.values()))
        await FitWatch(c)._restart(list(stuck), drop_data=False)
        assert stuck[0] not in s.workers
        assert stuck[1] in s.workers
        assert nanny.worker_address in s.workers
        assert "could not be freed" in caplog.text
        assert "bare" in caplog.text
        await Event("gate").set()
        await waiting[1]


@gen_cluster(client=True, nthreads=[("127.0.0.1", 1)] * 2, Worker=Nanny)
async def test_scattered_data_of_a_silent_member_stays(
    c: Any, s: Any, a: Any, b: Any, caplog: pytest.LogCaptureFixture
) -> None:
    """Nothing computes it again; a worker without such data restarts."""
    first, other = a.worker_address, b.worker_address
    kept = await c.scatter([1], workers=[first])
    computed = c.submit(abs, -2, workers=[other])
    await computed
    await FitWatch(c)._restart([first, other], drop_data=True)
    assert first in s.workers
    assert other not in s.workers
    assert "scattered or unknown data: kept" in caplog.text
    assert await c.gather(kept) == [1]


# --- after a loss ---------------------------------------------------------------------


class AfterLoss(fits._Work):
    """The account of a fit that has lost a worker."""

    def __init__(
        self, model: Any, *placements: Any, threads: tuple[Any, ...] = (), **values: Any
    ):
        client: Any = None
        super().__init__(
            client=client,
            model=model,
            fit_kwargs={},
            options={},
            max_failures=1,
            every=1.0,
            progress=Progress(False),
            **{"file": None, **values},
        )
        self.placement = placements[0]
        each = zip_longest(placements, threads)
        self.attempts = [SimpleNamespace(placement=p, n_threads=n) for p, n in each]


READ = CheckpointFile(path="model", about={}, data={})
HERE, THERE = {"training data": (0, 1)}, {"training data": (0, 0)}
SAVED = Checkpoint(rounds=1, model=b"", history={})


@pytest.mark.parametrize(
    ("work", "text"),
    [
        (AfterLoss(DaskXGBRegressor(), HERE, HERE), "yes"),
        (AfterLoss(DaskXGBRegressor(), HERE, HERE, checkpoint=SAVED), "yes"),
        (AfterLoss(DaskXGBRegressor(), HERE, THERE, HERE), "no, since rows"),
        (AfterLoss(DaskXGBRegressor(), HERE, HERE, threads=(2, 2)), "yes"),
        (AfterLoss(DaskXGBRegressor(), HERE, HERE, threads=(2, 1)), "unknown, since a"),
        (
            AfterLoss(DaskXGBRegressor(), HERE, HERE, checkpoint=SAVED, file=READ),
            "unknown, since its first rounds are of another call",
        ),
        (AfterLoss(DaskLGBMRegressor(), HERE, HERE), "no, since LightGBM adds"),
        (AfterLoss(KMeans(), HERE, HERE), "unknown, since the training began again"),
    ],
)
def test_whether_a_model_is_identical(work: AfterLoss, text: str) -> None:
    """The report promises it only if that is known."""
    assert work._identity().startswith(text)


def test_an_error_after_a_loss() -> None:
    """It names the loss, also if a named worker is not there any more."""
    work = AfterLoss(KMeans(), HERE)
    work.losses.append(
        Loss(
            workers=("w-1",),
            gone=frozenset({"w-1"}),
            emptied=frozenset(),
            reasons=("killed",),
            round=0,
            rounds=None,
            checkpoint=None,
            at=0.0,
        )
    )
    text = r"the fit lost worker w-1: killed .*; then workers: there is no w-2"
    with pytest.raises(ValueError, match=text), work.naming_loss():
        raise ValueError("workers: there is no w-2")
