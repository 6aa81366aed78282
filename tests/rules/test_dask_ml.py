"""dask-ml: fits that fail with unprepared data and work with prepared data."""

from __future__ import annotations

import os
from collections import Counter
from pathlib import Path
from typing import Any

import dask.array as da
import numpy as np
import pandas as pd
import pytest
from dask_ml.cluster import KMeans
from dask_ml.linear_model import LinearRegression
from dask_ml.wrappers import Incremental, ParallelPostFit
from distributed import futures_of
from sklearn.cluster import KMeans as LocalKMeans
from sklearn.linear_model import SGDClassifier

import clustertune
from tests.integrations.libraries.models import Seen
from tests.rules.placing import cut, placed

pytestmark = [
    pytest.mark.slow,
    # of Dask and SciPy, at how dask-glm and dask-ml call them
    pytest.mark.filterwarnings("ignore:Dask configuration key:FutureWarning"),
    pytest.mark.filterwarnings("ignore:scipy.optimize:DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::RuntimeWarning"),
]

A, B = 0, 1  # workers


def numbers(n: int, columns: int = 5) -> Any:
    return np.random.default_rng(1).random((n, columns))


def test_admm_depends_on_its_partitions(client: Any) -> None:
    """Another number of partitions gives another model.

    ``prepare`` makes the requested number of them.
    """
    X = numbers(1200)
    y = X @ np.arange(5.0) + 1

    def given(*rows: int) -> list[Any]:
        return [placed(client, cut(x, *rows), (A, B) * 6) for x in (X, y)]

    def coefficients(X: Any, y: Any) -> Any:
        return LinearRegression(solver="admm", max_iter=20).fit(X, y).coef_

    before, now = given(600, 600), given(*[100] * 12)
    assert not np.allclose(coefficients(*before), coefficients(*now), rtol=1e-3)

    model = LinearRegression(solver="admm")
    first = clustertune.prepare(client, *before, estimator=model, rechunk=4)
    second = clustertune.prepare(client, *now, estimator=model, rechunk=4)
    assert "changed_partitions" in {f.check for f in second.report.left}
    assert second.X.numblocks[0] == first.X.numblocks[0] == 4
    same = [coefficients(p.X, p.y) for p in (first, second)]
    assert np.allclose(*same, rtol=1e-6)


def test_kmeans_gets_known_chunks(client: Any) -> None:
    """The number of rows after a filter is unknown until ``prepare`` counts them."""
    X = np.concatenate([numbers(400, 3) + shift for shift in (0, 4, 8)])
    frame = pd.DataFrame(X, columns=list("abc"))
    frame["keep"] = np.arange(1200) % 3 > 0
    dX = placed(client, cut(frame, 900, 300), (A, A))
    filtered = dX[dX["keep"]][["a", "b", "c"]]
    kept = X[frame["keep"]]
    with pytest.raises(TypeError, match="unknown chunk sizes"):
        KMeans(n_clusters=3, random_state=0).fit(filtered.to_dask_array())

    alone = LocalKMeans(n_clusters=3, random_state=0, n_init=3).fit(kept)
    expected = np.sort(alone.cluster_centers_, axis=0)
    for x in (filtered, filtered.to_dask_array()):
        model = KMeans(n_clusters=3, random_state=0)
        p = clustertune.prepare(client, x, estimator=model)
        assert sum(p.X.chunks[0]) == len(kept)
        model.fit(p.X)
        found = np.sort(model.cluster_centers_, axis=0)
        assert np.allclose(found, expected, atol=0.05)


def test_incremental_gets_all_columns(client: Any) -> None:
    """With two blocks of columns, Incremental learns from the first one only."""
    X = numbers(1200, 4)
    y = (X[:, 3] > 0.5).astype(int)
    blocks = da.from_array(X, chunks=(300, 2))
    labels = da.from_array(y, chunks=300)
    options = {"random_state": 0, "shuffle_blocks": False}

    def model() -> Incremental:
        return Incremental(SGDClassifier(random_state=0, alpha=1e-3), **options)

    naive = model().fit(blocks, labels, classes=[0, 1])
    assert naive.coef_.shape == (1, 2)

    p = clustertune.prepare(client, blocks, labels, estimator=model(), persist=True)
    found = model().fit(p.X, p.y, classes=[0, 1])
    alone = SGDClassifier(random_state=0, alpha=1e-3)
    for start in range(0, 1200, p.X.chunks[0][0]):
        part = slice(start, start + p.X.chunks[0][0])
        alone.partial_fit(X[part], y[part], classes=[0, 1])
    assert np.allclose(found.coef_, alone.coef_)


@pytest.mark.parametrize("kind", ["incremental", "predict"])
def test_what_is_read_once_is_left_lazy(client: Any, kind: str) -> None:
    """Lazy data that is read once stays lazy, because it would fill the memory."""
    X = da.random.default_rng(1).random((1200, 4), chunks=(300, 4))
    lazy = clustertune.prepare(client, X, estimator=kind).X
    assert not futures_of(lazy)
    loaded = clustertune.prepare(client, X, estimator=kind, persist=True).X
    assert len(futures_of(loaded)) == loaded.npartitions
    assert set(client.who_has(loaded).values()) != {()}
    assert np.array_equal(lazy.compute(), loaded.compute())


def _predict(part: Any, model: Any) -> Any:
    return model.predict(part)


@pytest.mark.parametrize("kind", ["array", "dataframe"])
def test_the_model_is_sent_once(client: Any, tmp_path: Path, kind: str) -> None:
    """``ParallelPostFit`` sends it with every partition, ``client.scatter`` once."""
    values = numbers(1200)
    partitions = cut(values, *[100] * 12)
    if kind == "dataframe":
        partitions = [pd.DataFrame(x, columns=list("abcde")) for x in partitions]
    X = placed(client, partitions, (A, B) * 6)
    workers = set(client.run(os.getpid).values())

    def reads(predict: Any) -> Counter[int]:
        notes = tmp_path / str(len(list(tmp_path.iterdir())))
        model = Seen(str(notes)).fit(values, [0, 1])
        assert np.array_equal(predict(model).compute(), model.predict(values))
        return Counter(p for p in map(int, notes.read_text().split()) if p in workers)

    def prepared(model: Any) -> Any:
        p = clustertune.prepare(client, X, estimator=ParallelPostFit(model))
        sent = client.scatter(model, broadcast=True)
        if kind == "array":
            return p.X.map_blocks(_predict, model=sent, dtype=int, drop_axis=1)
        return p.X.map_partitions(_predict, sent, meta=np.empty(0, dtype=int))

    assert sum(reads(lambda model: ParallelPostFit(model).predict(X)).values()) >= 12
    assert dict(reads(prepared)) == dict.fromkeys(workers, 1)
