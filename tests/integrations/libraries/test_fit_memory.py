"""Memory of fits by the source of the libraries, without a cluster."""

from __future__ import annotations

from dataclasses import replace

import pytest

from clustertune.core.profiles import TrainingShare
from clustertune.integrations import libraries
from clustertune.integrations.libraries.boosting import (
    hist_memory,
    phases,
    pool_memory,
)

SHARE = TrainingShare(
    rows=100_000, all_rows=200_000, columns=4000, itemsize=8, threads=1, workers=2
)
LEAF = 4000 * 255 * 16  # histogram of LightGBM


FEW = replace(SHARE, rows=1000, all_rows=20_000, columns=10)


@pytest.mark.parametrize(
    ("params", "nodes"),
    [
        ({}, 63),
        ({"max_depth": 7}, 127),
        ({"max_depth": 0, "max_leaves": 40}, 79),
        ({"max_depth": 6, "max_leaves": 200}, 63),
    ],
)
def test_histograms_of_xgboost(params: dict[str, int], nodes: int) -> None:
    """The trees are larger than the sketches, which may stay."""
    found = hist_memory(params)
    assert found is not None
    node, matrix = 10 * 256 * 16, 2 * 1000 * 10 + 16 * 1000
    assert found(FEW).least == matrix + nodes * node
    more = found(replace(FEW, threads=3))
    assert more.most == found(FEW).most + 2 * node


def test_sketches_of_xgboost() -> None:
    """With many rows the sketches are larger: six levels of 12,289 entries."""
    found = hist_memory({"max_depth": 1})
    assert found is not None
    sketch = 12_289 * (8 * 2 + 16 * 2 + 16 * 6)
    summaries = 16 * (2048 * 3 + 2048 * 2)
    long = replace(SHARE, rows=600_000, all_rows=1_200_000, columns=100)
    assert found(long).least == 100 * (sketch + summaries)


def test_gradients_of_several_classes() -> None:
    """Each class has its own tree in a round; the histograms are shared."""
    for found, each in ((hist_memory({}), 12), (pool_memory({}), 16)):
        assert found is not None
        more = found(replace(FEW, outputs=5)).least - found(FEW).least
        assert more == 4 * each * 1000


def test_free_memory_is_used_again() -> None:
    assert phases(10, 30) == (30, 40)
    assert phases(30, 20) == (30, 35)
    assert phases(30, 10) == (30, 30)


def test_trees_may_end_early() -> None:
    """Few rows for each node, and parameters, make the least smaller."""
    found = hist_memory({"max_depth": 10})
    ending = hist_memory({"max_depth": 10, "gamma": 1.0})
    few = replace(SHARE, rows=5000, all_rows=10_000)
    assert found is not None
    assert ending is not None
    assert ending(few).least < found(few).least < found(few).most
    assert ending(few).most == found(few).most


def test_a_pool_of_lightgbm() -> None:
    """31 leaves, two buffers of the network and one of the thread."""
    found = pool_memory({})
    limited = pool_memory({"histogram_pool_size": 160, "num_leaves": 64})
    assert found is not None
    assert limited is not None
    wide = replace(SHARE, rows=5000)
    copied, samples = 8 * 5000 * 4000, 12 * 5000 * 4000
    trees = 2 * 5000 * 4000 + 40 * 5000 + (31 + 3) * LEAF
    least, most = phases(samples, trees)
    assert found(wide) == (copied + least, copied + most)
    assert limited(wide).least == found(wide).least - (31 - 10) * LEAF


def test_what_is_not_modelled() -> None:
    """A GPU, wide bins and a linear booster leave the measured multiple."""
    assert hist_memory({"device": "cuda"}) is None
    assert hist_memory({"booster": "gblinear"}) is None
    assert pool_memory({"max_bin": 511}) is None
    assert pool_memory({"device_type": "gpu"}) is None
    assert libraries.choose("xgboost_dmatrix").fit_memory is None


def test_parameters_of_the_model_count() -> None:
    lightgbm = pytest.importorskip("lightgbm")
    xgboost = pytest.importorskip("xgboost.dask")
    deep = libraries.choose(xgboost.DaskXGBRegressor(max_depth=3, max_bin=64))
    assert deep.fit_memory == hist_memory({"max_depth": 3, "max_bin": 64})
    wide = libraries.choose(lightgbm.DaskLGBMRegressor(num_leaves=7, max_bin=63))
    assert wide.fit_memory == pool_memory({"num_leaves": 7, "max_bin": 63})
    assert libraries.choose(xgboost.DaskXGBRegressor).fit_memory == hist_memory({})
