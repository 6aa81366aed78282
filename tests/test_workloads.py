"""The workload is the one that was named, else the estimator's, else generic."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import xgboost
import xgboost.dask

from clustertune import workloads
from clustertune.workloads import choose


def test_every_workload_keeps_the_contract() -> None:
    """A workload is a file with a profile of its name, its figures and their source."""
    files = {p.stem for p in Path(workloads.__file__).parent.glob("*.py")}
    assert set(workloads.available()) == files - {"__init__"}
    for name, module in workloads.available().items():
        profile = module.PROFILE
        assert module.__name__ == f"clustertune.workloads.{profile.name}"
        assert profile.name == name
        assert profile.title
        assert profile.source
        assert module.__doc__
        # the data itself is part of what a fit needs
        assert all(m >= 1 for m in profile.memory_multiple.values())
        assert profile.max_pieces_per_thread >= 1


def test_generic_is_nobodys() -> None:
    """No estimator is taken for generic: not to be known is an error to be seen."""
    assert not workloads.available()["generic"].matches(object())
    assert not workloads.available()["xgboost"].matches(object())
    assert not workloads.available()["xgboost"].matches(xgboost.XGBRegressor())


def test_neither_is_generic() -> None:
    """Without a name and an estimator the workload is the generic one."""
    assert choose(None).name == "generic"


def test_by_name() -> None:
    """A name decides, also against the estimator."""
    assert choose("xgboost").name == "xgboost"
    assert choose("generic", xgboost.dask.DaskXGBRegressor()).name == "generic"


class Mine(xgboost.dask.DaskXGBClassifier):
    """A user's own subclass."""


@pytest.mark.parametrize(
    "estimator",
    [
        xgboost.dask.DaskXGBRegressor(),
        xgboost.dask.DaskXGBClassifier(),
        xgboost.dask.DaskXGBRanker(),
        Mine(),
    ],
    ids=lambda e: type(e).__name__,
)
def test_by_estimator(estimator: Any) -> None:
    """XGBoost's Dask estimators, and classes made of them, are known."""
    assert choose(None, estimator).name == "xgboost"


@pytest.mark.parametrize("name", ["xgb", "", "XGBoost", ["xgboost"], 3])
def test_a_name_that_is_not_known(name: Any) -> None:
    """The error has what was given and what is known."""
    with pytest.raises(ValueError, match=r"workload=.* known are: generic, xgboost"):
        choose(name)


def test_an_estimator_that_is_not_known() -> None:
    """The error has its class, and what to give in its place."""
    with pytest.raises(ValueError, match=r"=XGBRegressor is not .*workload= one of g"):
        choose(None, xgboost.XGBRegressor())


def test_multiples() -> None:
    """Memory is by the size of the numbers; of a size without a figure, the most."""
    profile = choose("xgboost")
    assert profile.multiple(4) == profile.memory_multiple[4]
    assert profile.multiple(8) == profile.memory_multiple[8]
    most = max(profile.memory_multiple.values())
    assert profile.multiple(None) == profile.multiple(2) == most
