"""``fit`` on real clusters: each library, arguments, errors, and data that moves."""

from __future__ import annotations

import asyncio
import gc
import json
import logging
import os
import pickle
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import dask
import dask.array as da
import dask.dataframe as dd
import dask_glm.estimators as dask_glm
import dask_ml.linear_model as dask_linear
import lightgbm as lgb
import numpy as np
import pandas as pd
import pytest
import xgboost as xgb
import xgboost.dask as dxgb
from dask_ml.cluster import KMeans
from dask_ml.preprocessing import StandardScaler
from dask_ml.wrappers import Incremental, ParallelPostFit
from distributed import (
    Client,
    Nanny,
    Scheduler,
    SpecCluster,
    futures_of,
    get_worker,
    wait,
)
from sklearn.linear_model import SGDClassifier
from sklearn.pipeline import make_pipeline

import clustertune
from clustertune.errors import IncompleteError, LeaseHeldError, VerificationError
from clustertune.integrations import libraries
from clustertune.operations.history import Record, read
from clustertune.planner import machines
from tests.processes import BLOCK, local_workers, until, workers_of

pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore:Parameter n_jobs will be ignored:UserWarning"),
]

ROWS, PARTITIONS, GROUP = 1200, 7, 20
TREES: dict[str, Any] = {"n_estimators": 5, "max_depth": 3}
QUIET: dict[str, Any] = {**TREES, "verbose": -1}
VALUES = np.random.default_rng(3).random((ROWS, 5))
LABELS = (VALUES[:, 0] > 0.5).astype("f8")
QID = np.arange(ROWS) // GROUP


@pytest.fixture(scope="module")
def client() -> Iterator[Client]:
    """A client that is not the default one, so each fit has to use the given one."""
    with local_workers(set_as_default=False) as client:
        yield client


def data(n: int = ROWS // 3) -> tuple[Any, Any]:
    """X and y, by default with different partitions."""
    X = da.from_array(VALUES, chunks=(ROWS // PARTITIONS, 5))
    return X, da.from_array(LABELS, chunks=n)


def rows(values: Any, n: int = 250) -> Any:
    return da.from_array(values, chunks=n)


def fit(client: Client, model: Any, *data: Any, **options: Any) -> Any:
    return clustertune.fit(client, model, *data, progress=False, **options)


def by_hand(client: Client, model: Any, *data: Any, **options: Any) -> Any:
    """The model, fitted with ``prepare`` and its own ``fit``."""
    own = {name: options.pop(name) for name in ("classes",) if name in options}
    p = clustertune.prepare(client, *data, estimator=model, progress=False, **options)
    if isinstance(model, dxgb.DaskScikitLearnBase):
        model.client = client
    with client.as_current():
        model.set_params(**p.estimator_params)
        return model.fit(p.X, p.y, **p.fit_kwargs, **own)


def predicted(model: Any) -> Any:
    """Predictions in this process."""
    if isinstance(model, dxgb.DaskScikitLearnBase):
        return model.get_booster().inplace_predict(VALUES)
    if hasattr(model, "to_local"):
        return model.to_local().predict(VALUES)
    if isinstance(model, KMeans):
        return model.cluster_centers_
    if hasattr(model, "coef_"):
        return model.coef_
    return np.asarray(model.predict(VALUES))


def test_loaded_data_is_released_at_once(client: Client) -> None:
    """It does not wait for the garbage collector, which may come much later."""
    gc.collect()
    known = set(client.futures)
    gc.disable()
    try:
        fit(client, MODELS["dask-ml glm"](), *data())
        until(lambda: set(client.futures) <= known, seconds=20)
    finally:
        gc.enable()


# --- each library ---------------------------------------------------------------------

GLM: dict[str, Any] = {"max_iter": 5}
MODELS = {
    "xgboost": lambda: dxgb.DaskXGBClassifier(**TREES),
    "xgboost-approx": lambda: dxgb.DaskXGBRegressor(tree_method="approx", **TREES),
    "lightgbm": lambda: lgb.DaskLGBMClassifier(**QUIET),
    "dask-ml glm": lambda: dask_linear.LogisticRegression(
        solver="gradient_descent", **GLM
    ),
    "dask-ml admm": lambda: dask_linear.LinearRegression(**GLM),
    "dask-glm": lambda: dask_glm.LogisticRegression(solver="newton", **GLM),
    "dask-ml kmeans": lambda: KMeans(2, init="random", random_state=0, **GLM),
    "dask-ml incremental": lambda: Incremental(
        SGDClassifier(random_state=0), random_state=0
    ),
}
OWN: dict[str, dict[str, Any]] = {
    "dask-ml incremental": {"classes": [0.0, 1.0]},
    # with several workers, the model depends on the order in which they connect
    "lightgbm": {"workers": [0]},
}


@pytest.mark.parametrize("name", MODELS)
def test_the_model_is_that_of_prepare_and_fit(client: Client, name: str) -> None:
    """It is fitted in place and has a report; X and y remain usable."""
    model, other, own = MODELS[name](), MODELS[name](), OWN.get(name, {})
    # dask-ml's Incremental reads lazy data, which is not cut
    X, y = data(*[ROWS // PARTITIONS] * (name == "dask-ml incremental"))
    assert fit(client, model, X, y, **own) is model
    by_hand(client, other, X, y, **own)
    np.testing.assert_allclose(predicted(model), predicted(other), atol=1e-5)
    report = model.clustertune_report_
    found = {f.check for f in report.found}
    assert ("misaligned_partitions" in found) == (name != "dask-ml incremental")
    assert "held for " in str(report)
    assert report.notes[-1].startswith("held for ")
    X, y = client.gather(client.compute([X, y]))
    np.testing.assert_array_equal(X, VALUES)
    np.testing.assert_array_equal(y, LABELS)


def nthread(model: Any) -> int:
    """Return the threads with which XGBoost has trained."""
    config = json.loads(model.get_booster().save_config())
    return int(config["learner"]["generic_param"]["nthread"])


@pytest.mark.parametrize("given", [None, 1])
def test_xgboost_uses_the_host(client: Client, given: int | None) -> None:
    """One worker of a host trains with the threads of both, unless n_jobs is given."""
    where = list(workers_of(client))
    with dask.annotate(workers=lambda key: where[key[1] % 2]):
        X, y = client.persist(data(ROWS // PARTITIONS))
    with client.as_current():
        wait([X, y])
    before = placed(client, X, y)
    assert len(before) == 2
    model = dxgb.DaskXGBRegressor(n_jobs=given, **TREES)
    fit(client, model, X, y, eval_set=[(X, y)], verbose=False)
    assert model.n_jobs == given
    note = "one worker of each host trained, with 2 threads"
    assert nthread(model) == (2 if given is None else 1)
    assert (note in model.clustertune_report_.notes) == (given is None)
    # the data of the caller stays in place; Dask drops replicas a little later
    until(lambda: placed(client, X, y) == before)
    alone = xgb.XGBRegressor(**TREES).fit(VALUES, LABELS)
    assert np.abs(predicted(model) - alone.predict(VALUES)).mean() < 0.02


def placed(client: Client, *collections: Any) -> dict[str, int]:
    """How many partitions each worker holds, without replicas of them elsewhere."""
    wanted = {f.key for f in futures_of(list(collections))}
    held = client.has_what()
    return {w: len(wanted.intersection(keys)) for w, keys in held.items()}


def test_one_worker_of_the_host_trains(local_cluster: Any) -> None:
    """It trains on copies, which are dropped after the fit.

    Other workers of its host idle, and steal no partitions.
    """

    class Noting(xgb.callback.TrainingCallback):
        def before_training(self, model: Any) -> Any:
            worker = get_worker()
            worker.log_event("trained", worker.address)
            return model

    # tasks of unknown duration seem long, so idle workers take them at once
    stealing = {"work-stealing-interval": "1ms", "unknown-task-duration": "60s"}
    with dask.config.set(
        {f"distributed.scheduler.{name}": x for name, x in stealing.items()}
    ):
        _, client = local_cluster(3)
        X, y = client.persist([rows(VALUES, 20), rows(LABELS, 20)])
        X, y = clustertune.prepare(client, X, y, estimator="xgboost", progress=False)
        before = placed(client, X, y)
        assert len(before) == 3
        assert min(before.values()) > 30
        model = dxgb.DaskXGBRegressor(callbacks=[Noting()], **TREES)
        fit(client, model, X, y)
    notes = "\n".join(model.clustertune_report_.notes)
    assert "one worker of each host trained" in notes
    assert len(client.get_events("trained")) == 1
    # Dask's memory manager drops the replicas that the copies were made of
    until(lambda: placed(client, X, y) == before)
    until(lambda: sum(map(len, client.has_what().values())) == 120)
    np.testing.assert_array_equal(client.gather(client.compute(X)), VALUES)


@pytest.mark.parametrize("metric", ["logloss", ["error", "logloss"]])
def test_a_model_fitted_by_fit_is_a_whole_model(
    client: Client, tmp_path: Path, metric: Any
) -> None:
    """Parameters and attributes are those of a model that was fitted by itself."""
    X, y = client.persist([rows(VALUES), rows(LABELS)])
    options = {"eval_metric": metric, **TREES}
    ours, theirs = (dxgb.DaskXGBClassifier(**options) for _ in range(2))
    fit(client, ours, X, y)
    with client.as_current():
        theirs.fit(X, y)
    own = {"clustertune_report_", "_Booster", "_client", "_asynchronous"}
    assert {*vars(ours)} - own == {*vars(theirs)} - own
    assert str(ours.get_params()) == str(theirs.get_params())
    assert ours.get_booster().attributes() == theirs.get_booster().attributes()
    pickle.loads(pickle.dumps(ours))
    ours.save_model(tmp_path / "model.ubj")
    with client.as_current():
        found = [model.predict_proba(X).compute() for model in (ours, theirs)]
    np.testing.assert_allclose(*found, atol=0.2)


def test_xgboost_on_two_hosts(monkeypatch: pytest.MonkeyPatch) -> None:
    """One worker of each host trains. With unlike hosts, all workers train."""
    # both addresses are of this machine
    monkeypatch.setattr(machines, "with_host_names", tuple)
    names = [f"127.0.0.{1 + i // 2}" for i in range(4)]
    options = {"nthreads": 1, "memory_limit": "1GiB", "dashboard": False}
    scheduler = {"host": "127.0.0.1", "dashboard_address": "127.0.0.1:0"}
    with (
        SpecCluster(
            {
                i: {"cls": Nanny, "options": {**options, "host": name}}
                for i, name in enumerate(names)
            },
            {"cls": Scheduler, "options": scheduler},
            scheduler_sync_interval="100 ms",
        ) as cluster,
        Client(cluster, set_as_default=False) as client,
    ):
        client.wait_for_workers(4)
        X, y = client.persist(data(ROWS // PARTITIONS))
        model = dxgb.DaskXGBRegressor(**TREES)
        fit(client, model, X, y)
        (after,) = model.clustertune_report_.after
        trained = {names[w.worker]: w.rows for w in after.workers if w.rows}
        assert trained.keys() == {*names}
        assert sum(trained.values()) == ROWS
        assert max(trained.values()) <= 1.05 * ROWS / 2
        assert sum(w.rows > 0 for w in after.workers) == 2
        assert nthread(model) == 2
        alone = xgb.XGBRegressor(**TREES).fit(VALUES, LABELS)
        assert np.abs(predicted(model) - alone.predict(VALUES)).mean() < 0.02
        clustertune.scale(client, 3, progress=False)
        fit(client, model, X, y)
        assert nthread(model) == 1
        np.testing.assert_array_equal(client.gather(client.compute(X)), VALUES)


@pytest.mark.parametrize("options", [{"device": "cuda"}, {"n_jobs": 2}, {"nthread": 2}])
def test_xgboost_does_not_use_the_host(options: Any) -> None:
    """Each GPU has its worker, and a given number of threads is kept."""
    assert libraries.can_use_host(dxgb.DaskXGBRegressor())
    assert not libraries.can_use_host(dxgb.DaskXGBRegressor(**options))
    assert not libraries.can_use_host(lgb.DaskLGBMRegressor())


def test_frames_and_no_labels(client: Client) -> None:
    """A scaler of dask-ml needs X only."""
    frame = pd.DataFrame(VALUES, columns=list("abcde"))
    scaler = fit(client, StandardScaler(), dd.from_pandas(frame, npartitions=5))
    np.testing.assert_allclose(np.asarray(scaler.mean_), VALUES.mean(axis=0))


def test_a_pipeline(client: Client) -> None:
    """The last step is fitted by this client; other steps are fitted before it."""
    model = make_pipeline(StandardScaler(), dxgb.DaskXGBRegressor(**TREES))
    weights = rows(VALUES[:, 1])
    named = {"daskxgbregressor__verbose": False}
    fit(client, model, *data(), sample_weight=weights, **named)
    with client.as_current():
        assert model[-1].client is client
    scaled = (VALUES - VALUES.mean(axis=0)) / VALUES.std(axis=0)
    alone = xgb.XGBRegressor(**TREES).fit(scaled, LABELS, sample_weight=VALUES[:, 1])
    found = model[-1].get_booster().inplace_predict(scaled)
    assert np.abs(found - alone.predict(scaled)).mean() < 0.02
    assert model.clustertune_report_.workload == "xgboost"


def test_data_in_memory_is_not_kept(client: Client) -> None:
    """After the fit, the cluster only has the caller's data."""
    X, y = client.persist(data())
    own = {f.key for f in futures_of([X, y])}
    model = fit(client, lgb.DaskLGBMRegressor(**QUIET), X, y)
    gc.collect()
    until(lambda: set(client.futures) == own)
    assert model.clustertune_report_.status == "done"


# --- arguments of the libraries -------------------------------------------------------


def evals(model: Any) -> dict[str, float]:
    """The last score of each eval set."""
    found = getattr(model, "evals_result_", None) or model.evals_result()
    return {name: next(iter(s.values()))[-1] for name, s in found.items()}


def test_eval_sets_of_xgboost(client: Client) -> None:
    """The training data is recognized, and weights go to their eval sets."""
    X, y = data()
    w, v = rows(VALUES[:, 1]), rows(VALUES[:, 2], 400)
    other = rows(VALUES[:, ::-1], 333), rows(LABELS, 500)
    model, hand = (dxgb.DaskXGBRegressor(**TREES) for _ in range(2))
    pairs = [(X, y, {"sample_weight": w}), (*other, {"sample_weight": v})]
    fit(client, model, X, y, sample_weight=w, eval_set=pairs, verbose=False)
    by_hand(client, hand, X, y, sample_weight=w, eval_set=pairs)
    assert evals(model) == pytest.approx(evals(hand), abs=1e-6)
    alone = xgb.XGBRegressor(**TREES)
    alone.fit(
        VALUES, LABELS, sample_weight=VALUES[:, 1],
        eval_set=[(VALUES, LABELS), (VALUES[:, ::-1], LABELS)],
        sample_weight_eval_set=[VALUES[:, 1], VALUES[:, 2]], verbose=False,
    )  # fmt: skip
    assert evals(model) == pytest.approx(evals(alone), abs=0.01)


def test_the_ranker_of_xgboost(client: Client) -> None:
    """With ``allow_group_split=True`` it takes Arrays of prepared groups."""
    X, y = data()
    q = rows(QID, 311)
    # on both workers, as by hand: bins depend on the number of workers
    options = TREES | {"n_jobs": 1, "allow_group_split": True}
    model = dxgb.DaskXGBRanker(**options)
    fit(client, model, X, y, qid=q, eval_set=[(X, y, {"qid": q})], verbose=False)
    assert model.allow_group_split is True
    hand = by_hand(client, dxgb.DaskXGBRanker(**options), X, y, qid=q)
    np.testing.assert_allclose(predicted(model), predicted(hand), atol=1e-5)
    assert list(evals(model)) == ["validation_0"]


def test_the_ranker_of_lightgbm(client: Client) -> None:
    """It takes sizes of groups, also those of eval sets."""
    X, y = data()
    sizes = rows(np.full(ROWS // GROUP, GROUP), 7)
    model = lgb.DaskLGBMRanker(**QUIET)
    one: dict[str, Any] = {"workers": [1]}
    pair = [(X, y, {"group": sizes})]
    fit(client, model, X, y, group=sizes, eval_set=pair, **one)
    hand = by_hand(client, lgb.DaskLGBMRanker(**QUIET), X, y, qid=rows(QID), **one)
    np.testing.assert_allclose(predicted(model), predicted(hand), atol=1e-5)
    assert model.client is None
    assert list(evals(model)) == ["valid_0"]


# --- refused before anything changes --------------------------------------------------

NO_FILE = "/proc/no-such-folder/model.checkpoint"
PAIR = [tuple(rows(x) for x in (VALUES, LABELS))]
WRONG: list[tuple[Any, dict[str, Any], type[Exception], str]] = [
    ("xgboost", {}, TypeError, "estimator='xgboost' is no estimator"),
    (None, {}, TypeError, "estimator=None is no estimator"),
    (dxgb.DaskXGBRegressor, {}, TypeError, "estimator=DaskXGBRegressor is no"),
    (xgb.XGBClassifier(), {}, ValueError, "xgboost.dask.DaskXGBClassifier"),
    (ParallelPostFit(SGDClassifier()), {}, ValueError, "fetch all data.*X_sample"),
    (KMeans(), {"n_worker": 2}, TypeError, "KMeans.fit takes n_worker="),
    (KMeans(), {"dry_run": True}, TypeError, "prepare.*dry_run=.*model.fit"),
    (lgb.DaskLGBMRegressor(), {"release_inputs": True}, TypeError, "no release_inputs"),
    (
        dxgb.DaskXGBRanker(),
        {"qid": rows(QID)},
        ValueError,
        r"X, y and qid are Arrays: .*takes frames only\. Set allow_group_split=True",
    ),
    (
        lgb.DaskLGBMRegressor(),
        {"eval_X": PAIR[0][0], "eval_y": PAIR[0][1]},
        ValueError,
        "eval_X= has rows",
    ),
    (
        dxgb.DaskXGBRegressor(),
        {"eval_set": PAIR, "sample_weight_eval_set": [LABELS]},
        ValueError,
        r"sample_weight_eval_set= has rows.*eval_set=\[\(X_valid, y_valid, {",
    ),
    (KMeans(), {"sample_weight": PAIR[0][1]}, ValueError, "takes no sample_weight="),
    (KMeans(), {"n_workers": 0}, ValueError, "n_workers=0"),
    (
        dxgb.DaskXGBClassifier(),
        {"max_failures": -2},
        ValueError,
        "max_failures=-2 must be an integer from -1",
    ),
    (
        dxgb.DaskXGBClassifier(),
        {"max_failures": 1.5},
        ValueError,
        "max_failures=1.5 must be an integer from -1",
    ),
    (
        dxgb.DaskXGBClassifier(),
        {"checkpoint_every": "soon"},
        ValueError,
        "checkpoint_every",
    ),
    (
        dxgb.DaskXGBClassifier(),
        {"checkpoint_every": "5s"},
        TypeError,
        "for fits with max_failures= or checkpoint_path=",
    ),
    (
        lgb.DaskLGBMClassifier(boosting_type="dart"),
        {"max_failures": 1},
        ValueError,
        "dart.*changes earlier trees",
    ),
    (
        dxgb.DaskXGBClassifier(),
        {"checkpoint_path": NO_FILE},
        OSError,
        f"checkpoint_path='{NO_FILE}' cannot be written: ",
    ),
]


@pytest.mark.parametrize(("model", "options", "error", "text"), WRONG)
def test_wrong_arguments(
    client: Client, model: Any, options: Any, error: Any, text: str
) -> None:
    gc.collect()  # data of an earlier test would be released during this one
    until(lambda: not client.run_on_scheduler(task_keys))
    before = transitions(client)
    with pytest.raises(error, match=text):
        fit(client, model, *data(), **options)
    assert transitions(client) == before


def task_keys(dask_scheduler: Any) -> list[str]:
    return [str(key) for key in dask_scheduler.tasks]


def transitions(client: Client) -> Any:
    """How often a task has changed its state."""
    return client.run_on_scheduler(
        lambda dask_scheduler: dask_scheduler.transition_counter
    )


def test_a_model_with_another_client(client: Client) -> None:
    """It could not use the prepared data; the fix in the message works."""
    with Client(client.scheduler.address, set_as_default=False) as other:
        model = dxgb.DaskXGBRegressor(**TREES)
        model.client = other
        with pytest.raises(ValueError, match=r"estimator\.client = client"):
            fit(client, model, *data())
        with pytest.raises(ValueError, match="another client"):
            fit(client, lgb.DaskLGBMRegressor(client=other), *data())
    model.client = client
    assert fit(client, model, *data()) is model


# --- asynchronous clients -------------------------------------------------------------


def test_an_asynchronous_client(client: Client) -> None:
    """It is refused, for all libraries."""

    async def run() -> None:
        address = client.scheduler.address
        async with Client(address, asynchronous=True, set_as_default=False) as c:
            pipeline = make_pipeline(StandardScaler(), dxgb.DaskXGBClassifier())
            models = (dxgb.DaskXGBClassifier(), lgb.DaskLGBMRegressor(), KMeans())
            for model in (*models, pipeline):
                with pytest.raises(ValueError, match="fit is synchronous"):
                    await fit(c, model, *data())

    asyncio.run(run())


# --- fits that fail -------------------------------------------------------------------


class Mine(KMeans):
    """A model whose fit is a function of a test."""

    def __init__(self, work: Any = None):
        super().__init__()
        self.work = work

    def fit(self, X: Any, y: Any = None) -> Any:
        self.fitted_ = self.work(X, y)
        return self


@pytest.fixture
def history(tmp_path: Path) -> Iterator[Path]:
    path = tmp_path / "history.jsonl"
    with dask.config.set(
        {"clustertune.history.enabled": True, "clustertune.history.path": str(path)}
    ):
        yield path


def fits(history: Path) -> list[Record]:
    return [record for record in read(history)[0] if record.call == "fit"]


def notes(error: BaseException, caplog: pytest.LogCaptureFixture) -> str:
    """Notes of an error, which are in the log before Python 3.11."""
    return "\n".join(getattr(error, "__notes__", [caplog.text]))


def holds(client: Client) -> Any:
    return client.run_on_scheduler(
        lambda dask_scheduler: dask_scheduler.plugins["clustertune"].holds.active()
    )


def test_a_fit_that_raises(
    client: Client, history: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Its error is raised unchanged, with a note; the hold ends, the history has it."""
    fault = ZeroDivisionError("of the model")

    def work(X: Any, y: Any) -> None:
        assert len(holds(client)) == 1
        raise fault

    model = Mine(work)
    with pytest.raises(ZeroDivisionError) as error:
        fit(client, model, *data())
    assert error.value is fault
    assert "loaded 2 collections" in notes(fault, caplog)
    assert holds(client) == []
    assert not hasattr(model, "clustertune_report_")
    assert clustertune.last_report(client).status == "done"
    (run,) = fits(history)
    assert (run.status, run.workload) == ("failed", "kmeans")
    assert run.error == "ZeroDivisionError: of the model"


def test_a_worker_that_is_killed(
    client: Client, history: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The error names the worker, its cause is the library's, the data is there.

    XGBoost itself may wait for a killed worker without end, so another model is used.
    """
    first = min(workers_of(client))

    def work(X: Any, y: Any) -> None:
        (pid,) = client.run(os.getpid, workers=[first]).values()
        os.kill(pid, signal.SIGKILL)
        until(lambda: first not in workers_of(client))
        raise ValueError("a worker is gone")

    X, y = data()
    with pytest.raises(IncompleteError, match="killed by signal 9") as error:
        fit(client, Mine(work), X, y)
    assert str(error.value.__cause__) == "a worker is gone"
    assert "clustertune had prepared the data: " in notes(error.value, caplog)
    (run,) = fits(history)
    assert run.status == "failed"
    client.wait_for_workers(2)
    np.testing.assert_array_equal(client.gather(client.compute(X)), VALUES)
    fit(client, dxgb.DaskXGBRegressor(**TREES), X, y)
    _, run = fits(history)
    assert (run.status, run.workload, run.rows) == ("done", "xgboost", ROWS)


def test_interrupted(local_cluster: Any) -> None:
    """After ^C, the hold has ended and adaptive scaling has its bounds."""
    cluster, client = local_cluster(2, processes=False, protocol="tcp://")
    cluster.adapt(minimum=1, maximum=3)
    bounds: list[int] = []

    def work(X: Any, y: Any) -> None:
        bounds.append(cluster._adaptive.minimum)
        signal.raise_signal(signal.SIGINT)

    with pytest.raises(KeyboardInterrupt):
        fit(client, Mine(work), *data(), n_workers=2)
    assert bounds == [2]
    assert (cluster._adaptive.minimum, cluster._adaptive.maximum) == (1, 3)
    assert holds(client) == []


def test_a_hold_that_cannot_begin(
    local_cluster: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Adaptive scaling gets its bounds back."""
    monkeypatch.setattr("clustertune.operations.hold.WAIT_SECONDS", 0.3)
    cluster, client = local_cluster(1, processes=False, protocol="tcp://")
    cluster.adapt(minimum=1, maximum=3)
    p = clustertune.prepare(client, *data(), n_workers=2, progress=False)
    assert cluster._adaptive.minimum == 2
    with Client(client.scheduler.address, set_as_default=False) as other:
        plugin = cluster.scheduler.plugins["clustertune"]
        plugin.acquire(other.id, "a plan", "t")
        with pytest.raises(LeaseHeldError, match="a plan"), p:
            raise AssertionError
        plugin.lease.release("t")
    assert (cluster._adaptive.minimum, cluster._adaptive.maximum) == (1, 3)


# --- data that moves during the fit ---------------------------------------------------


def test_moved_data(client: Client, caplog: pytest.LogCaptureFixture) -> None:
    """It is a warning and a note, because each row still has its label."""

    def work(X: Any, y: Any) -> None:
        client.amm.stop()  # it could drop the other replicas first
        client.replicate(futures_of(X), n=2)
        keys = [f.key for f in futures_of(X)]
        client.run_on_scheduler(drop, address=min(workers_of(client)), keys=keys)
        client.amm.start()

    with caplog.at_level(logging.WARNING, "clustertune"):
        model = fit(client, Mine(work), *data())
    assert "data moved during the fit" in caplog.text
    report = model.clustertune_report_
    assert "data moved during the fit" in report.notes[-1]
    # the text is wrapped
    assert report.notes[-1] in " ".join(str(report).split())


async def drop(dask_scheduler: Any, address: str, keys: list[Any]) -> None:
    """Drop the replicas of a worker."""
    await dask_scheduler.delete_worker_data(
        worker_address=address, keys=keys, stimulus_id="test"
    )


def test_rows_that_change(client: Client, tmp_path: Path) -> None:
    """A file changed and a worker died, so Dask loaded other rows: that is an error."""
    file = tmp_path / "rows.npy"
    np.save(file, VALUES)

    def load() -> Any:
        return np.load(file)

    def work(X: Any, y: Any) -> str:
        np.save(file, VALUES[:-5])
        before = workers_of(client)
        for pid in client.run(os.getpid).values():
            os.kill(pid, signal.SIGKILL)
        until(lambda: len(set(workers_of(client)) - set(before)) == 2)
        return "fitted"

    chunk = dask.delayed(load, pure=True)()
    X = da.from_delayed(chunk, shape=(np.nan, 5), dtype="f8")
    model = Mine(work)
    with pytest.raises(VerificationError, match="rows changed during the fit") as error:
        fit(client, model, X, rechunk=False)
    assert error.value.report is not None
    assert model.fitted_ == "fitted"


def test_a_cluster_that_cannot_be_verified(local_cluster: Any) -> None:
    """The model is fitted, so that is only a note."""
    cluster, client = local_cluster(1)

    def work(X: Any, y: Any) -> str:
        cluster.close()
        return "fitted"

    model = fit(client, Mine(work), *data())
    assert model.fitted_ == "fitted"
    assert "could not be verified" in model.clustertune_report_.notes[-1]


# --- the fitted model -----------------------------------------------------------------


def test_a_pickled_model_needs_no_clustertune(client: Client, tmp_path: Path) -> None:
    """The report of the model is text after that; a copy keeps it."""
    model = fit(client, lgb.DaskLGBMRegressor(**QUIET), *data())
    file = tmp_path / "model.pickle"
    file.write_bytes(pickle.dumps(model))
    code = f"""{BLOCK}
import pickle
model = pickle.load(open(sys.argv[1], "rb"))
print(model.clustertune_report_)
"""
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", code, str(file)],
        capture_output=True,
        text=True,
        check=True,
        timeout=120,
    )
    assert done.stdout.strip() == str(model.clustertune_report_).strip()
