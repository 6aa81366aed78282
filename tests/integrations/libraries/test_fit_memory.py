"""Memory of fits by the source of the libraries, without a cluster."""

from __future__ import annotations

from dataclasses import replace

import pytest

from clustertune.core.profiles import TrainingShare
from clustertune.integrations import libraries
from clustertune.integrations.libraries.fit_memory import hist_memory, pool_memory

SHARE = TrainingShare(
    rows=100_000, all_rows=200_000, columns=4000, itemsize=8, threads=1, workers=2
)
MATRIX = 2 * 100_000 * 4000 + 16 * 100_000  # bins by rows and by columns
NODE = 4000 * 256 * 16  # histogram of XGBoost
LEAF = 4000 * 255 * 16  # histogram of LightGBM


@pytest.mark.parametrize(
    ("params", "nodes"),
    [
        ({}, 63),
        ({"max_depth": 4}, 15),
        ({"max_depth": 0, "max_leaves": 20}, 39),
        ({"max_depth": 3, "max_leaves": 20}, 7),
    ],
)
def test_histograms_of_xgboost(params: dict[str, int], nodes: int) -> None:
    """The trees are larger than the sketches, which may stay."""
    found = hist_memory(params)
    assert found is not None
    least, most = found(SHARE)
    assert least == max(MATRIX + nodes * NODE, most - MATRIX - nodes * NODE)
    more = found(replace(SHARE, threads=3))
    assert more.most == most + 2 * NODE


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
    copied, samples = 8 * 100_000 * 4000, 12 * 100_000 * 4000
    trees = 2 * 100_000 * 4000 + 40 * 100_000 + (31 + 3) * LEAF
    assert found(SHARE) == (copied + max(samples, trees), copied + samples + trees)
    assert limited(SHARE).most == found(SHARE).most - (31 - 10) * LEAF


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
