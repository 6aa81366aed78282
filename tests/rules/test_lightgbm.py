"""LightGBM: fits that fail with unprepared data and work with prepared data."""

from __future__ import annotations

import tracemalloc
from typing import Any

import dask
import dask.dataframe as dd
import lightgbm as lgb
import numpy as np
import pandas as pd
import pytest
from distributed import get_worker

import clustertune
from clustertune.errors import AlignmentError
from tests.processes import Call, until
from tests.rules.placing import cut, gain, placed, ranking

pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore:Parameter n_jobs will be ignored:UserWarning"),
    pytest.mark.filterwarnings("ignore:The argument 'eval_set' is deprecated"),
]

OPTIONS: dict[str, Any] = {"n_estimators": 20, "min_child_samples": 5, "verbose": -1}
A, B = 0, 1  # workers


def numbers(n: int, columns: int = 5) -> Any:
    return np.random.default_rng(1).random((n, columns))


def fitted(model: Any, p: Any) -> Any:
    """Return the estimator, fitted with all prepared arguments, as a local one."""
    model.set_params(**p.estimator_params).fit(p.X, p.y, **p.fit_kwargs)
    return model.to_local()


def difference(model: Any, other: Any, X: Any) -> float:
    """Return the mean difference between the predictions of two models."""
    return float(np.abs(model.predict(X) - other.predict(X)).mean())


def accuracy(model: Any, X: Any, y: Any) -> float:
    return float((model.predict(X) == y).mean())


@pytest.mark.parametrize("frames", [False, True], ids=["arrays", "frames"])
def test_every_class_on_every_worker(client: Any, frames: bool) -> None:
    """If workers count classes separately, the model has the classes of one worker."""
    X = numbers(1200)
    y = (X[:, 0] * 3).astype(int)
    order = np.argsort(y, kind="stable")
    X, y = X[order], y[order]
    alone = accuracy(lgb.LGBMClassifier(**OPTIONS).fit(X, y), X, y)
    given = (pd.DataFrame(X), pd.Series(y)) if frames else (X, y)
    # the last class is in one partition alone, so whole partitions will not do
    rows = (500, 300, 400)
    dX, dy = (placed(client, cut(x, *rows), (A, B, B)) for x in given)

    naive = lgb.DaskLGBMClassifier(client=client, **OPTIONS).fit(dX, dy)
    assert set(naive.classes_) != {0, 1, 2}
    assert accuracy(naive.to_local(), given[0], y) < 0.8

    estimator = naive if frames else lgb.DaskLGBMClassifier
    p = clustertune.prepare(client, dX, dy, estimator=estimator)
    found = fitted(lgb.DaskLGBMClassifier(client=client, **OPTIONS), p)
    assert set(found.classes_) == {0, 1, 2}
    assert accuracy(found, given[0], y) > alone - 0.02


def test_a_class_that_is_too_rare(client: Any) -> None:
    """One row of a class is on one worker; both fixes of the error work."""
    X = numbers(600)
    y = (X[:, 0] > 0.5).astype(int)
    y[7] = 2
    dX, dy = (placed(client, cut(x, 300, 300), (A, B)) for x in (X, y))
    model = lgb.DaskLGBMClassifier
    with pytest.raises(AlignmentError, match="class 2 of y has 1 row") as error:
        clustertune.prepare(client, dX, dy, estimator=model)
    assert "or leave out the rows of that class" in str(error.value)
    assert "workers=" in str(error.value)

    kept = dy.compute() != 2
    both = [placed(client, [x[kept]], [A]) for x in (X, y)]
    p = clustertune.prepare(client, *both, estimator=model)
    assert accuracy(fitted(model(client=client, **OPTIONS), p), X, y) > 0.95

    p = clustertune.prepare(client, dX, dy, estimator=model, workers=[0])
    found = fitted(model(client=client, **OPTIONS), p)
    assert set(found.classes_) == {0, 1, 2}


def training(client: Any) -> list[str]:
    """Return the states of the training tasks."""
    return client.run_on_scheduler(
        lambda dask_scheduler: [
            task.state
            for key, task in dask_scheduler.tasks.items()
            if "_train_part" in str(key)
        ]
    )


def test_early_stopping(doomed: Any) -> None:
    """Unequal eval rows make workers stop in different rounds and wait forever.

    With all rows on each worker they stop together.
    """
    X, V = numbers(1200), numbers(600)[::-1]
    y, v = X[:, 0] > 0.5, V[:, 0] > 0.5
    # the rows of the second worker cannot be learned: it stops at once
    v[300:] = np.random.default_rng(2).integers(0, 2, 300)
    X_y = [placed(doomed, cut(x, 600, 600), (A, B)) for x in (X, y * 1.0)]
    eval_set = [placed(doomed, cut(x, 300, 300), (A, B)) for x in (V, v * 1.0)]
    stop = [lgb.early_stopping(3, verbose=False)]
    options = OPTIONS | {"n_estimators": 400, "learning_rate": 0.3}

    alone = lgb.LGBMRegressor(**options)
    alone.fit(X, y, eval_X=(V,), eval_y=(v,), callbacks=stop)
    model = lgb.DaskLGBMRegressor(client=doomed, **options)
    p = clustertune.prepare(
        doomed, *X_y, eval_set=[tuple(eval_set), tuple(eval_set)], estimator=model
    )
    model.fit(p.X, p.y, callbacks=stop, **p.fit_kwargs)
    assert abs(model.best_iteration_ - alone.best_iteration_) <= 3
    assert len(model.evals_result_) == 2
    error = [((m.predict(V) - v) ** 2).mean() for m in (model.to_local(), alone)]
    assert error[0] < 1.05 * error[1]

    until(lambda: not training(doomed))
    naive = lgb.DaskLGBMRegressor(client=doomed, **options)
    fit = Call(naive.fit, *X_y, eval_set=[tuple(eval_set)], callbacks=stop)
    until(lambda: "memory" in training(doomed) or not fit.is_alive())
    # ... and the other trains on, or says that its connection is gone
    fit.join(3)
    assert fit.is_alive() or "Socket recv error" in str(fit.result)


def test_no_worker_without_rows(doomed: Any) -> None:
    """A worker with an empty partition fails, and the other one waits forever."""
    X = numbers(800)
    y = X[:, 0]

    def given() -> list[Any]:
        return [placed(doomed, cut(x, 400, 400, 0), (A, A, B)) for x in (X, y)]

    model = lgb.DaskLGBMRegressor(client=doomed, **OPTIONS)
    p = clustertune.prepare(doomed, *given(), estimator=model)
    alone = lgb.LGBMRegressor(**OPTIONS).fit(X, y)
    assert difference(fitted(model, p), alone, X) < 0.02

    until(lambda: not training(doomed))
    fit = Call(lgb.DaskLGBMRegressor(client=doomed, **OPTIONS).fit, *given())
    until(lambda: not fit.is_alive())
    assert "0 sample" in str(fit.result) or "empty" in str(fit.result)
    # the next fit waits behind the task that waits for the one that failed
    again = Call(lgb.DaskLGBMRegressor(client=doomed, **OPTIONS).fit, p.X, p.y)
    again.join(3)
    assert again.is_alive(), again.result
    assert "processing" in training(doomed)


def test_one_float_type(client: Any) -> None:
    """LightGBM copies a frame with an integer column to numbers of twice the width."""
    frame = pd.DataFrame(numbers(40_000, 9).astype("f4"), columns=list("abcdefghi"))
    frame["n"] = np.arange(40_000) % 100
    dX = placed(client, cut(frame, 20_000, 20_000), (A, B))
    dy = placed(client, cut(frame["a"], 20_000, 20_000), (A, B))
    narrow = dX.astype("float32")
    p = clustertune.prepare(client, narrow, dy, estimator=lgb.DaskLGBMRegressor)

    def peak(X: Any) -> float:
        """Return the bytes for each number while LightGBM reads a partition."""
        partition = X.partitions[0].compute()
        tracemalloc.start()
        lgb.Dataset(partition).construct()
        found = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        return found / partition.size

    assert peak(dX) > 8
    assert peak(p.X) < 8
    assert p.X.compute().equals(frame.astype("f4"))
    model = lgb.DaskLGBMRegressor(client=client, **OPTIONS)
    alone = lgb.LGBMRegressor(**OPTIONS).fit(frame, frame["a"].copy())
    assert difference(fitted(model, p), alone, frame) < 0.02


def test_companions_with_other_partitions(client: Any) -> None:
    """Weights and scores with other partitions fail; prepared they work."""
    X = numbers(900)
    y, w, score = X[:, 0], 1 - X[:, 1], X[:, 2]
    dX, dy = (placed(client, cut(x, 300, 300, 300), (A, A, A)) for x in (X, y))
    dw = placed(client, cut(w, 500, 400), (B, A))
    ds = placed(client, cut(score, 100, 700, 100), (B, B, A))
    naive = lgb.DaskLGBMRegressor(client=client, **OPTIONS)
    with pytest.raises(IndexError):
        naive.fit(dX, dy, sample_weight=dw)

    model = lgb.DaskLGBMRegressor(client=client, **OPTIONS)
    p = clustertune.prepare(
        client, dX, dy, sample_weight=dw, init_score=ds, estimator=model
    )
    assert np.array_equal(p.sample_weight.compute(), w)
    assert np.array_equal(p.init_score.compute(), score)
    alone = lgb.LGBMRegressor(**OPTIONS)
    alone.fit(X, y.copy(), sample_weight=w, init_score=score.copy())
    assert difference(fitted(model, p), alone, X) < 0.02


def test_rows_in_random_order(client: Any) -> None:
    """Workers make bins from their own rows, which is wrong for sorted rows.

    The code of the check's remedy mixes them.
    """
    X = numbers(3000, 4)
    X = X[np.argsort(X[:, 0])]
    y = 3 * X[:, 0] + np.sin(20 * X[:, 0])
    dX, dy = (placed(client, cut(x, 1500, 1500), (A, B)) for x in (X, y))
    options = OPTIONS | {"n_estimators": 50}

    def error(model: Any) -> float:
        return float(((model.predict(X) - y) ** 2).mean())

    alone = error(lgb.LGBMRegressor(**options).fit(X, y))
    model = lgb.DaskLGBMRegressor(client=client, **options)
    p = clustertune.prepare(client, dX, dy, estimator=model)
    assert error(fitted(model, p)) > 20 * alone
    (finding,) = [f for f in p.report.left if f.check == "unshuffled_rows"]
    names = {"X": dX, "y": dy, "numpy": np}
    exec(finding.remedy.split("`")[1], names)

    model = lgb.DaskLGBMRegressor(client=client, **options)
    p = clustertune.prepare(client, names["X"], names["y"], estimator=model)
    assert "unshuffled_rows" not in {f.check for f in p.report.left}
    assert error(fitted(model, p)) < 2 * alone


def listening(label: Any, score: Any, weight: Any, group: Any) -> tuple[Any, Any]:
    """Return an objective that records the groups of each worker."""
    get_worker().log_event("groups", list(map(int, group)))
    return score - label, np.ones(len(label))


def test_groups_are_whole(client: Any) -> None:
    """LightGBM ranks the halves of a cut group separately."""
    n_groups, size = 60, 20
    X, y, qid = ranking(n_groups, size)
    rows = (310, 290, 600)  # the first ends within a group
    dX, dy, dq = (placed(client, cut(x, *rows), (A, B, A)) for x in (X, y, qid))
    sizes = [np.unique(q, return_counts=True)[1] for q in cut(qid, *rows)]

    def groups(fit: Any) -> set[tuple[int, ...]]:
        """Return the sizes of the groups, one list for each worker."""
        before = len(client.get_events("groups"))
        model = lgb.DaskLGBMRanker(client=client, **OPTIONS)
        fit(model.set_params(objective=listening))
        return {tuple(event) for _, event in client.get_events("groups")[before:]}

    dg = placed(client, sizes, (A, B, A))
    seen = groups(lambda model: model.fit(dX, dy, group=dg))
    assert sum(map(len, seen)) == n_groups + 1

    model = lgb.DaskLGBMRanker(client=client, **OPTIONS)
    p = clustertune.prepare(client, dX, dy, qid=dq, estimator=model)
    seen = groups(lambda model: fitted(model, p))
    assert seen == {(size,) * (n_groups // 2)}
    alone = lgb.LGBMRanker(**OPTIONS).fit(X, y, group=np.full(n_groups, size))
    expected = gain(alone.predict(X), y, n_groups)
    assert gain(fitted(model, p).predict(X), y, n_groups) > expected - 0.01


def test_groups_in_several_places(client: Any) -> None:
    """They are an error, and the code of its remedy sorts the rows."""
    n_groups, size = 40, 10
    X, y, qid = ranking(n_groups, size)
    mixed = np.random.default_rng(8).permutation(len(X))
    X, y, qid = X[mixed], y[mixed], qid[mixed]
    frame = dd.from_pandas(pd.DataFrame(X, columns=list("abcd")), npartitions=3)
    whole = frame.assign(y=dd.from_pandas(pd.Series(y), npartitions=3))
    whole = whole.assign(qid=dd.from_pandas(pd.Series(qid), npartitions=3))
    by = np.argsort(qid, kind="stable")
    alone = lgb.LGBMRanker(**OPTIONS).fit(X[by], y[by], group=np.full(40, 10))
    expected = gain(alone.predict(X[by]), y[by], n_groups)
    for given in (
        [placed(client, cut(x, 250, 150), (A, B)) for x in (X, y, qid)],
        [whole[list("abcd")], whole["y"], whole["qid"]],
    ):
        names = dict(zip(("X", "y", "qid"), given), numpy=np)
        model = lgb.DaskLGBMRanker(client=client, **OPTIONS)
        with pytest.raises(AlignmentError, match="come back") as error:
            clustertune.prepare(client, *given[:2], qid=given[2], estimator=model)
        exec(str(error.value).split("`")[1], names)
        X2, y2, qid2 = (names[n] for n in ("X", "y", "qid"))
        p = clustertune.prepare(client, X2, y2, qid=qid2, estimator=model)
        groups = np.asarray(p.qid.compute())
        assert np.array_equal(groups, np.sort(qid))
        predicted = fitted(model, p).predict(p.X.compute())
        # rows of a group may be in any order
        assert gain(predicted, np.asarray(p.y.compute()), n_groups) > expected - 0.01


def test_prepared_for_any_library(client: Any) -> None:
    """The first line of the report names the wrong workload."""
    X = numbers(600)
    y = (X[:, 0] > 0.5).astype(int)
    order = np.argsort(y, kind="stable")
    X, y = X[order], y[order]
    n = int((y == 0).sum())
    dX, dy = (placed(client, cut(x, n, 600 - n), (A, B)) for x in (X, y))
    with dask.config.set({"clustertune.prepare.tolerance": 0.5}):
        p = clustertune.prepare(client, dX, dy)
    assert "prepared for any library" in p.report.details
    assert "estimator=model" in p.report.details
    naive = lgb.DaskLGBMClassifier(client=client, **OPTIONS).fit(p.X, p.y)
    assert len(naive.classes_) == 1
    p = clustertune.prepare(client, dX, dy, estimator=lgb.DaskLGBMClassifier)
    assert "prepared for any library" not in p.report.details
