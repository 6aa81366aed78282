"""Recommended clusters keep the rules by which checks judge running ones."""

from __future__ import annotations

import json
import math
import re
import shlex
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import dask
import pytest
from dask.utils import parse_bytes
from distributed import Client, LocalCluster
from distributed.cli import dask_worker
from hypothesis import given
from hypothesis import strategies as st

import clustertune
from clustertune import errors
from clustertune.core.model import Profile
from clustertune.integrations import libraries
from clustertune.integrations.libraries.boosting import hist_memory
from clustertune.operations import sizing
from clustertune.operations.sizing import (
    Fit,
    Sizing,
    decide,
    recommend_size,
    shapes,
)
from clustertune.remote.worker import probe

WHOLE = Profile(
    name="whole",
    title="a library that takes a worker's threads",
    memory_multiple={4: 1.8, 8: 1.4},
    threads="worker",
    source="made up",
)
POOLS = replace(WHOLE, name="pools", threads="pools")
SERIAL = replace(WHOLE, name="serial", threads="")
PROFILES = (WHOLE, POOLS, SERIAL)

GIB = 2**30
HOST = (16, 64 * GIB)  # its CPUs and memory


def sized(
    rows: int,
    profile: Profile = WHOLE,
    host: tuple[int, int] = HOST,
    *,
    columns: int = 50,
    dtype: str = "float32",
) -> Sizing:
    return decide(
        sizing.dense(rows, columns, dtype),
        profile,
        *host,
        memory_fraction=0.7,
    )


def rows_of(gib: float) -> int:
    """Return the number of rows with 50 columns of float32 in so many GiB."""
    return int(gib * GIB / 200)


# --- the rules hold -------------------------------------------------------------------


@given(
    rows=st.integers(1, 10**11),
    profile=st.sampled_from(PROFILES),
    host=st.tuples(st.integers(1, 256), st.integers(2 * GIB, 4096 * GIB)),
)
def test_a_plan_keeps_the_rules(
    rows: int,
    profile: Profile,
    host: tuple[int, int],
) -> None:
    """The rules are for memory of the fit, managed and reserved memory, and CPUs."""
    try:
        found = sized(rows, profile, host)
    except errors.CapacityError:
        return  # no number of them would do: the next test says when
    data = found.data.nbytes
    least = data / found.workers
    assert found.worker_data >= math.floor(least)
    assert found.worker_bytes >= 300 * 2**20 + math.floor(1.8 * least)
    assert found.worker_bytes <= 0.7 * found.memory_limit + 1
    assert 2 * found.worker_data <= 0.6 * found.memory_limit + 1
    cpus, memory = host
    assert found.workers_per_host * found.threads == cpus
    assert found.workers_per_host * found.memory_limit <= 0.9 * memory


@given(
    rows=st.integers(1, 10**10),
    more=st.integers(1, 10**10),
    profile=st.sampled_from(PROFILES),
    cpus=st.integers(1, 64),
    gib=st.integers(8, 512),
)
def test_more_rows_never_need_less(
    rows: int, more: int, profile: Profile, cpus: int, gib: int
) -> None:
    """More rows need at least as many hosts."""
    host = cpus, gib * GIB

    def hosts(n: int) -> float:
        try:
            return sized(n, profile, host).hosts
        except errors.CapacityError:
            return math.inf

    assert hosts(rows) <= hosts(rows + more)
    assert hosts(rows) >= sized(rows, profile, (cpus, 1024 * GIB)).hosts


@given(
    rows=st.integers(1, 2**50),
    limit=st.integers(GIB, 2**40),
    workers=st.integers(1, 64),
)
def test_fewer_hosts_are_not_enough(rows: int, limit: int, workers: int) -> None:
    """The number of hosts is the least on which the fullest worker has room."""
    shape = sizing.Shape(workers_per_host=workers, threads=1, memory_limit=limit)
    fit = Fit(data=sizing.dense(rows, 50, "float32"), profile=WHOLE, fraction=0.7)
    n = int(fit.hosts(shape))
    assert fit.suffices(shape, n)
    assert n == 1 or not fit.suffices(shape, n - 1)


# --- shapes ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("profile", "gib", "shape"),
    [(WHOLE, 100, (1, 16)), (POOLS, 1, (1, 16)), (SERIAL, 1, (16, 1))],
)
def test_shapes(profile: Profile, gib: int, shape: tuple[int, int]) -> None:
    """A library that takes all threads has one worker a host, others one per CPU."""
    found = sized(rows_of(gib), profile)
    assert (found.workers_per_host, found.threads) == shape
    assert (found.hosts > 1) == (gib == 100)
    takes_all = any("takes all threads of its worker" in r for r in found.reasons)
    assert takes_all == (profile is not SERIAL)


def test_fewer_hosts_come_before_single_threads() -> None:
    """If processes take much of the memory, there are fewer of them."""
    host = (16, 16 * GIB)
    found = sized(rows_of(3), SERIAL, host)
    assert found.hosts == 1
    assert found.threads > 1
    assert any("more hosts would be needed" in r for r in found.reasons)
    few, *_ = shapes(SERIAL, *host)
    assert few.threads == 1


def test_small_hosts() -> None:
    """If a host is too small for a process, no number of hosts is enough."""
    with pytest.raises(errors.CapacityError, match=r"no number of hosts .* 300.0 MiB"):
        sized(10, host=(2, 900 * 2**20))
    with pytest.raises(errors.CapacityError, match="more memory"):
        sized(10, host=(2, 100 * 2**20))


def test_a_library_that_no_cluster_helps() -> None:
    """It keeps no data in memory."""
    with pytest.raises(errors.RefusedError, match="memory for two partitions per"):
        sized(100, replace(SERIAL, persist=False))


# --- parameters of the model ----------------------------------------------------------

WIDE: dict[str, Any] = {"rows": 10**6, "columns": 1000, "dtype": "float32"}


def deep(depth: int, gib: int = 64, **params: Any) -> Sizing:
    """Return the size for a depth of XGBoost's trees; a node takes 4.1 MB here."""
    memory = hist_memory({"max_depth": depth, **params})
    profile = replace(libraries.choose("xgboost"), fit_memory=memory)
    return decide(sizing.dense(**WIDE), profile, 16, gib * GIB, memory_fraction=0.7)


def test_deep_trees() -> None:
    """They need memory on each worker, which the check counts in the same way."""
    small, large = deep(6).worker_bytes, deep(12).worker_bytes
    assert large - small > (2**12 - 2**6) * 4_000_000
    with pytest.raises(errors.CapacityError, match=r"smaller max_depth, .* or max_bin"):
        deep(16)
    assert deep(16, 1024).hosts == 1
    (reason,) = (r for r in deep(12).reasons if r.startswith("memory: "))
    assert "takes up to 19." in reason


def test_trees_that_may_stay_small() -> None:
    """If only the most that the model allows is too much, the reasons have it."""
    found = deep(16, min_child_weight=5)
    assert found.hosts == 1
    assert any(r.startswith("trees: a worker takes up to 2") for r in found.reasons)
    assert not any(r.startswith("trees: ") for r in deep(12).reasons)


def test_the_model_is_taken() -> None:
    """Its parameters count, not only its class."""
    xgboost = pytest.importorskip("xgboost.dask")
    model = xgboost.DaskXGBRegressor(max_depth=16)
    host: dict[str, Any] = {"host_cpus": 16, "host_memory": "64 GiB"}
    with pytest.raises(errors.CapacityError, match="max_depth"):
        recommend_size(estimator=model, **WIDE, **host)


# --- one machine ----------------------------------------------------------------------


def test_one_machine_comes_first() -> None:
    """One machine is enough if the data and its copies fit."""
    found = sized(rows_of(1))
    assert found.one_machine
    assert str(found).startswith("One machine without Dask is enough")
    assert found.reasons[0].startswith("one process without Dask: would need 2.1 GiB")


def test_one_machine_is_not_enough() -> None:
    """The machine is too small."""
    large = sized(rows_of(100))
    assert not large.one_machine
    assert large.reasons[0].endswith("would need 180.3 GiB of one machine's 64.0 GiB")
    assert str(large).startswith(f"{large.workers} workers x 16 threads")


def test_one_machine_may_be_enough() -> None:
    """Dask counts data twice that one process has once."""
    found = sized(rows_of(20))
    assert found.hosts == 2
    assert found.one_machine


# --- what is shown --------------------------------------------------------------------


def test_json() -> None:
    """JSON has all fields, with a schema version."""
    found = json.loads(sized(rows_of(100)).to_json())
    assert found["schema_version"] == 1
    assert found["workers"] == found["hosts"] * found["workers_per_host"]
    assert found["data"]["rows"] == rows_of(100)
    assert set(found["lines"]) == {"dask worker"}


def test_text_is_escaped() -> None:
    """Names of columns are untrusted; a notebook shows the same text."""
    found = replace(sized(10), reasons=("<script>\x1b",))
    assert "\x1b" not in str(found)
    assert repr(found) == str(found)


@given(st.integers(2**29, 2**40), st.integers(1, 64))
def test_sizes_are_read_back_as_they_were(memory: int, cpus: int) -> None:
    """Dask reads the text as exactly the same bytes, of nearly all of the memory."""
    free = memory - sizing._reserved(memory)
    for shape in shapes(SERIAL, cpus, memory):
        limit = shape.memory_limit
        assert parse_bytes(sizing.size_text(limit)) == limit
        assert 0 <= free / shape.workers_per_host - limit < sizing.STEP


# --- lines to paste -------------------------------------------------------------------


@pytest.fixture
def small() -> Sizing:
    """Return a cluster that this machine can start."""
    return sized(1000, SERIAL, (2, 2 * GIB))


@pytest.mark.slow
def test_the_line_of_a_local_cluster(small: Sizing) -> None:
    """The line starts workers of that size."""
    with dask.config.set({"distributed.dashboard.link": ""}):
        # the line is ours: names are those of distributed
        made = eval(small.lines["LocalCluster"], {"LocalCluster": _local})
    with made as cluster, Client(cluster):
        specs = list(cluster.scheduler.workers.values())
        assert [w.nthreads for w in specs] == [small.threads] * small.workers
        assert {w.memory_limit for w in specs} == {small.memory_limit}


def _local(**options: Any) -> LocalCluster:
    return LocalCluster(processes=False, dashboard_address="127.0.0.1:0", **options)


def test_the_line_of_a_worker(small: Sizing) -> None:
    """``dask worker`` accepts every option."""
    words = shlex.split(small.lines["dask worker"])
    assert words[:2] == ["dask", "worker"]
    context = dask_worker.main.make_context("dask worker", words[2:])
    assert context.params["nthreads"] == small.threads
    assert int(context.params["n_workers"]) == small.workers_per_host
    assert parse_bytes(context.params["memory_limit"]) == small.memory_limit


def test_no_local_cluster_of_several_hosts() -> None:
    """A cluster of several hosts has no line for one."""
    found = sized(rows_of(100))
    assert "LocalCluster" not in found.lines
    assert f"on each of {found.hosts} hosts" in str(found)


# --- the public function --------------------------------------------------------------


def test_the_default_host_is_this_machine() -> None:
    """The defaults respect affinity, quotas and limits of this process."""
    found = clustertune.recommend_size(rows=10, columns=2, estimator="xgboost")
    assert found.host_cpus == probe.usable_cpus()
    assert found.host_memory == probe.host_memory()
    assert found.data.itemsize == 8
    other = recommend_size(rows=10, columns=2, host_cpus=3, host_memory="8 GiB")
    assert (other.host_cpus, other.host_memory) == (3, 8 * GIB)
    assert other.workload == "generic"


def wrong() -> Iterator[tuple[dict[str, Any], str]]:
    data = {"rows": 10, "columns": 2}
    yield data | {"columns": None}, "columns=None must be a whole number"
    yield {"rows": -1, "columns": 2}, "rows=-1 must be a whole number of at least 1"
    yield data | {"dtype": "str"}, "dtype='str' must be float32"
    yield (
        data | {"estimator": "nope"},
        "estimator='nope' is no known workload; choose from",
    )
    yield data | {"estimator": object()}, "name its workload instead"
    yield data | {"host_cpus": 0}, "host_cpus=0 must be"
    yield data | {"host_memory": "much"}, "host_memory='much' must be a size"


@pytest.mark.parametrize(("arguments", "text"), list(wrong()))
def test_wrong_arguments(arguments: dict[str, Any], text: str) -> None:
    """Errors have the value, the allowed values and a fix."""
    with pytest.raises(ValueError, match=re.escape(text)):
        recommend_size(**arguments)
