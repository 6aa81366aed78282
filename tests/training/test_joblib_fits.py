"""scikit-learn on workers: the same models as without Dask, and no leftovers."""

from __future__ import annotations

import asyncio
import os
import re
import signal
from collections.abc import Sequence
from pathlib import Path
from threading import Lock
from typing import Any

import cloudpickle
import dask.array as da
import distributed
import numpy as np
import pytest
from dask.sizeof import sizeof
from distributed.core import Status
from joblib import Parallel, delayed, effective_n_jobs
from sklearn.base import clone
from sklearn.datasets import load_digits
from sklearn.ensemble import (
    BaggingClassifier,
    RandomForestClassifier,
    VotingClassifier,
)
from sklearn.linear_model import Ridge
from sklearn.model_selection import GridSearchCV, cross_val_score
from sklearn.multioutput import (
    ClassifierChain,
    MultiOutputClassifier,
    MultiOutputRegressor,
)
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.tree import DecisionTreeClassifier

from clustertune.errors import CapacityError, FunctionError, NoWorkersError
from clustertune.remote import ship
from clustertune.training import joblib_backend, joblib_parallel
from clustertune.training.joblib_fits import _refuse_full
from tests.in_process import gen_cluster
from tests.processes import until

PAGE = Path(__file__).parents[2] / "docs" / "howto" / "search-parameters.md"
(EXAMPLE,) = re.findall(
    r"<!-- joblib: search -->\n```python\n(.*?)```", PAGE.read_text(), re.DOTALL
)


def forest() -> Any:
    return RandomForestClassifier(3, random_state=0, n_jobs=-1)


def tree() -> Any:
    return DecisionTreeClassifier(max_depth=4, random_state=0)


def bits(y: Any) -> Any:
    """Return labels of three outputs: the digits as binary numbers."""
    return np.stack([y >> i & 1 for i in range(3)], axis=1)


def cross_validation(X: Any, y: Any) -> Any:
    return cross_val_score(tree(), X, y, n_jobs=-1)


def search(X: Any, y: Any) -> Any:
    model = make_pipeline(StandardScaler(), forest())
    grid = {"randomforestclassifier__max_depth": [3, 6]}
    return GridSearchCV(model, grid, cv=2).fit(X, y).cv_results_["mean_test_score"]


def numbers(X: Any, y: Any) -> Any:
    return MultiOutputRegressor(Ridge(), n_jobs=-1).fit(X, X[:, 2:4]).predict(X)


def classes(X: Any, y: Any) -> Any:
    return MultiOutputClassifier(tree(), n_jobs=-1).fit(X, bits(y)).predict(X)


def chain(X: Any, y: Any) -> Any:
    model = ClassifierChain(tree(), random_state=0)
    return cross_val_score(model, X, bits(y), cv=2, n_jobs=-1)


def ensemble(X: Any, y: Any) -> Any:
    return forest().fit(X, y).predict_proba(X)


def voting(X: Any, y: Any) -> Any:
    members = [("tree", tree()), ("forest", forest())]
    model = VotingClassifier(members, voting="soft", n_jobs=-1)
    return model.fit(X, y).predict_proba(X)


def bagging(X: Any, y: Any) -> Any:
    return BaggingClassifier(tree(), 4, random_state=0, n_jobs=-1).fit(X, y).predict(X)


WORK = [
    search,
    numbers,
    classes,
    chain,
    ensemble,
    voting,
    bagging,
]


def state(client: Any) -> Any:
    """Return tasks, policies of the memory manager, and plugins of the scheduler."""

    def read(dask_scheduler: Any) -> Any:
        policies = dask_scheduler.extensions["amm"].policies
        names = sorted(type(p).__name__ for p in policies)
        return list(dask_scheduler.tasks), names, sorted(dask_scheduler.plugins)

    return client.run_on_scheduler(read)


@pytest.mark.slow
def test_the_same_models_as_without_dask(
    local_cluster: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Data is sent once; policies are restored, also after errors."""
    X, y = load_digits(return_X_y=True)
    X, y = X[:300].astype(np.float32), y[:300]
    _, client = local_cluster(2)
    before = state(client)
    sent: list[int] = []
    scatter = client.scatter

    def counted(data: Any, **options: Any) -> Any:
        sent.append(sizeof(data))
        return scatter(data, **options)

    monkeypatch.setattr(client, "scatter", counted)
    with joblib_backend(client, X, y):
        assert {len(holders) for holders in client.who_has().values()} == {2}
        found = {cross_validation: cross_validation(X, y)}
        assert max(sent[3:], default=0) < X.nbytes  # without the data and the runner
        found |= {work: work(X, y) for work in WORK}
        assert state(client)[1] == ["KeepReplicas"]
    until(lambda: state(client) == before)
    for work, result in found.items():
        assert np.allclose(result, work(X, y), rtol=1e-4, atol=1e-4), work

    example = {"client": client, "X": X, "y": y}
    exec(EXAMPLE, example)
    alone = clone(example["search"]).fit(X, y)
    assert example["search"].best_score_ == pytest.approx(alone.best_score_)

    with pytest.raises(ZeroDivisionError), joblib_backend(client, X):
        1 / 0  # noqa: B018
    until(lambda: state(client) == before)
    big = np.empty(10**9)  # the kernel never allocates its pages
    with pytest.raises(CapacityError, match="a copy of the data"):
        joblib_backend(client, big).__enter__()
    with pytest.raises(TypeError, match=r"arrays\[1\] is a Array, .* compute\(\)"):
        joblib_backend(client, X, da.ones(3)).__enter__()
    assert state(client) == before


def test_one_thread_is_a_cluster_too(local_cluster: Any) -> None:
    """In this case, joblib alone would run fits in the client, which is no worker."""
    _, client = local_cluster(1, processes=False)
    with joblib_backend(client):
        assert len(set(Parallel()(delayed(where)() for _ in range(2)))) == 1


def test_a_worker_that_does_not_answer(
    local_cluster: Any, monkeypatch: pytest.MonkeyPatch, caplog: Any
) -> None:
    """It gets no data in advance. Without any answer, the block does not begin."""
    _, client = local_cluster(2, processes=False)
    frozen, alive = client.nthreads()
    silent = {frozen}

    async def answers(client: Any, function: Any, workers: Any, **_: Any) -> Any:
        return {a: OSError("silent") if a in silent else None for a in workers}

    monkeypatch.setattr(ship, "on_workers", answers)
    X = np.ones(3)
    with joblib_backend(client, X):
        assert {h for holders in client.who_has().values() for h in holders} == {alive}
    assert "the data is not sent to worker" in caplog.text
    silent.add(alive)
    with pytest.raises(NoWorkersError, match="did not answer within 30 s"):
        joblib_backend(client, X).__enter__()
    until(lambda: not client.who_has())  # the client releases them a little later


def test_a_cluster_without_workers(local_cluster: Any) -> None:
    _, client = local_cluster(0, processes=False)
    with pytest.raises(NoWorkersError, match=r"no running worker .*wait_for_workers"):
        joblib_backend(client, np.ones(3)).__enter__()


@gen_cluster(client=True)
async def test_an_asynchronous_client_is_refused(
    c: Any, s: Any, a: Any, b: Any
) -> None:
    with pytest.raises(TypeError, match=r"scikit-learn cannot await"):
        joblib_backend(c, np.ones(3)).__enter__()


def inner(_: int) -> tuple[str, int, list[str]]:
    """Return where a fit runs, and where its own joblib calls run."""
    return where(), effective_n_jobs(), Parallel()(delayed(where)() for _ in range(3))


def total(shared: Any, mark: Path, i: int) -> float:
    """The first call ends its process and marks that for the next attempt."""
    if i == 0 and not mark.exists():
        mark.touch()
        os._exit(1)
    return float(shared.sum())


def can_be_passed_on(dask_worker: Any) -> bool:
    values = [v for k, v in dask_worker.data.items() if str(k).startswith("joblib-")]
    return all(cloudpickle.dumps(value) for value in values)


@pytest.mark.slow
def test_faults_of_fits(local_cluster: Any, tmp_path: Path) -> None:
    """A lost worker costs only its fits; values that do not pickle raise an error."""
    _, client = local_cluster(3)
    before = state(client)
    # used by several fits and a separate task, but not passed to the block
    shared = np.ones(2 * joblib_parallel.LARGE // 8)
    with joblib_backend(client, np.ones(3)):
        mark = tmp_path / "mark"
        found = Parallel()(delayed(total)(shared, mark, i) for i in range(20))
        assert found == [len(shared)] * 20
        assert mark.exists()
        # workers that join later copy these values from other workers
        assert all(client.run(can_be_passed_on).values())
        with pytest.raises(TypeError, match="Could not serialize"):
            Parallel()(delayed(where)(lock) for lock in [Lock()])
        with pytest.raises(TypeError, match="Could not serialize"):
            Parallel()([delayed(Lock)()])
        with pytest.raises(ZeroDivisionError):
            Parallel()(delayed(divmod)(1, i) for i in range(20))
    until(lambda: state(client) == before)


class OwnExit(BaseException):
    """An error that is no Exception."""


def fail(error: type[BaseException]) -> None:
    raise error


@pytest.mark.parametrize("error", [asyncio.CancelledError, OwnExit])
def test_a_fit_may_raise_any_error(
    local_cluster: Any, error: type[BaseException]
) -> None:
    """The call raises it, and later calls of the block work."""
    _, client = local_cluster(1, processes=False)
    with joblib_backend(client):
        with pytest.raises(error):
            Parallel()(delayed(fail)(error) for _ in range(8))
        assert len(Parallel()(delayed(where)() for _ in range(2))) == 2


class KillsWorkers(DecisionTreeClassifier):  # type: ignore[misc]
    """Kill all workers in the first fit, or this worker in each fit."""

    def __init__(self, mark: Path | None = None, pids: Sequence[int] = ()):
        super().__init__(max_depth=3, random_state=0)
        self.mark, self.pids = mark, pids

    def fit(self, X: Any, y: Any) -> Any:
        if self.mark is None:
            os.kill(os.getpid(), signal.SIGKILL)
        elif self.pids and not self.mark.exists():
            self.mark.touch()
            for pid in sorted(self.pids, key=lambda pid: pid == os.getpid()):
                os.kill(pid, signal.SIGKILL)
        return super().fit(X, y)


@pytest.mark.slow
def test_fits_run_again_after_all_data_was_lost(
    local_cluster: Any, tmp_path: Path
) -> None:
    """The scores are those without a loss; a fit that ends its workers is given up."""
    _, client = local_cluster(2)
    before = state(client)
    X, y = load_digits(return_X_y=True)
    calm = cross_val_score(KillsWorkers(tmp_path), X, y, cv=6)
    mark = tmp_path / "mark"
    pids = list(client.run(os.getpid).values())
    with joblib_backend(client, X, y):
        scores = cross_val_score(KillsWorkers(mark, pids), X, y, cv=6)
        assert mark.exists()
        assert np.array_equal(scores, calm)
        with pytest.raises(FunctionError, match="ended while running this fit") as got:
            cross_val_score(KillsWorkers(), X, y, cv=2)
        assert got.value.worker
        assert got.value.worker in str(got.value)
        assert "its process ended" in str(got.value)
        client.restart()
        assert np.array_equal(cross_val_score(KillsWorkers(mark), X, y, cv=6), calm)
    until(lambda: state(client) == before)


@pytest.mark.slow
def test_no_worker_comes_back(
    local_cluster: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All fits end with one error if all workers are gone for longer than allowed."""
    monkeypatch.setattr(joblib_parallel, "RETURN_TIMEOUT", 1)
    cluster, client = local_cluster(2)
    X, y = load_digits(return_X_y=True)
    pids = list(client.run(os.getpid).values())

    async def stay_away() -> Status:
        return Status.failed

    for nanny in cluster.workers.values():
        nanny.instantiate = stay_away
    fits = KillsWorkers(tmp_path / "mark", pids)
    with (
        pytest.raises(NoWorkersError, match="all workers ended during the fits"),
        joblib_backend(client, X, y),
    ):
        cross_val_score(fits, X, y, cv=6)


def where() -> str:
    return distributed.get_worker().id


@pytest.mark.slow
def test_joblib_calls_inside_a_fit(local_cluster: Any) -> None:
    """They stay in the thread of the fit."""
    _, client = local_cluster(1, processes=False, threads_per_worker=2)
    with joblib_backend(client):
        ((here, jobs, all_there),) = Parallel()([delayed(inner)(0)])
    assert jobs == 1
    assert set(all_there) == {here}
    names = client.run_on_scheduler(
        lambda dask_scheduler: list(dask_scheduler.task_prefixes)
    )
    assert not [name for name in names if name.startswith("batch_of")]


# --- memory ---------------------------------------------------------------------------


def test_a_copy_that_does_not_fit_is_refused() -> None:
    """Only workers with a limit are full; their present data counts, too."""
    gib = 2**30

    def entry(limit: int | None, used: int) -> dict[str, Any]:
        about = {"memory_limit": limit, "metrics": {"memory": used}}
        return {"name": f"w{limit}", "nanny": None, **about}

    running = {"tcp://1": entry(None, gib), "tcp://2": entry(10 * gib, gib)}
    _refuse_full(running, 6 * gib)
    with pytest.raises(CapacityError, match=r"^worker w10737418240: .* \(7\.0 GiB\)"):
        _refuse_full(running, 7 * gib)
