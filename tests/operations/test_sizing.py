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
import dask.array as da
import dask.dataframe as dd
import numpy as np
import pandas as pd
import pytest
from dask.utils import parse_bytes
from distributed import Client, LocalCluster
from distributed.cli import dask_worker
from hypothesis import given
from hypothesis import strategies as st

import clustertune
from clustertune import errors
from clustertune.core.model import Profile
from clustertune.operations import sizing
from clustertune.operations.sizing import (
    Fit,
    Host,
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
COPIES = replace(WHOLE, name="copies", eval_copies=True)
STREAMS = replace(SERIAL, name="streams", persist=False, max_partition_bytes=2**27)
PROFILES = (WHOLE, POOLS, SERIAL, COPIES, STREAMS)

GIB = 2**30


def sized(
    rows: int,
    profile: Profile = WHOLE,
    host: Host | None = None,
    *,
    columns: int = 50,
    dtype: str = "float32",
    eval_fraction: float = 0.0,
    n_hosts: int | None = None,
) -> Sizing:
    return decide(
        sizing.dense(rows, columns, dtype),
        profile,
        host or Host(cpus=16, memory=64 * GIB),
        eval_fraction=eval_fraction,
        memory_fraction=0.7,
        n_hosts=n_hosts,
    )


def rows_of(gib: float) -> int:
    """Return the number of rows with 50 columns of float32 in so many GiB."""
    return int(gib * GIB / 200)


# --- the rules hold -------------------------------------------------------------------


@given(
    rows=st.integers(1, 10**11),
    profile=st.sampled_from(PROFILES),
    host=st.builds(
        Host, cpus=st.integers(1, 256), memory=st.integers(2 * GIB, 4096 * GIB)
    ),
    eval_fraction=st.sampled_from([0.0, 0.25, 1.0]),
    n_hosts=st.none() | st.integers(1, 50),
)
def test_a_plan_keeps_the_rules(
    rows: int,
    profile: Profile,
    host: Host,
    eval_fraction: float,
    n_hosts: int | None,
) -> None:
    """The rules are for memory of the fit, managed and reserved memory, and CPUs."""
    try:
        found = sized(rows, profile, host, eval_fraction=eval_fraction, n_hosts=n_hosts)
    except errors.CapacityError:
        return  # no number of them would do: the next test says when
    data = found.data.nbytes
    least = data / found.workers
    least += data * eval_fraction / (1 if profile.eval_copies else found.workers)
    if profile is STREAMS:
        least = min(least, 2 * found.threads * profile.max_partition_bytes)
    assert found.worker_data >= math.floor(least)
    assert found.worker_bytes >= 300 * 2**20 + math.floor(1.8 * least)
    assert found.worker_bytes <= 0.7 * found.memory_limit + 1
    if profile.persist:
        assert 2 * found.worker_data <= 0.6 * found.memory_limit + 1
    assert found.workers_per_host * found.threads == host.cpus
    assert found.workers_per_host * found.memory_limit <= 0.9 * host.memory
    assert found.hosts >= (n_hosts or 1)
    assert found.enough == (n_hosts is None or found.hosts == n_hosts)


@given(
    rows=st.integers(1, 10**10),
    more=st.integers(1, 10**10),
    profile=st.sampled_from(PROFILES),
    cpus=st.integers(1, 64),
    gib=st.integers(8, 512),
    eval_fraction=st.sampled_from([0.0, 0.25]),
)
def test_more_rows_never_need_less(
    rows: int, more: int, profile: Profile, cpus: int, gib: int, eval_fraction: float
) -> None:
    """More rows need at least as many hosts."""
    host = Host(cpus=cpus, memory=gib * GIB)

    def hosts(n: int) -> float:
        try:
            return sized(n, profile, host, eval_fraction=eval_fraction).hosts
        except errors.CapacityError:
            return math.inf

    assert hosts(rows) <= hosts(rows + more)
    assert hosts(rows) >= sized(rows, profile, Host(cpus=cpus, memory=1024 * GIB)).hosts


@given(
    shared=st.floats(1, 2**60),
    limit=st.integers(GIB, 2**40),
    workers=st.integers(1, 64),
)
def test_fewer_hosts_are_not_enough(shared: float, limit: int, workers: int) -> None:
    """The number of hosts is the least on which the fullest worker has room."""
    shape = sizing.Shape(workers=workers, threads=1, limit=limit)
    fit = Fit(
        shared=shared,
        copied=0,
        base=300 * 2**20,
        multiple=1.8,
        held=2,
        partition=None,
        fraction=0.7,
    )
    n = fit.hosts(shape)
    assert n is not None
    assert fit.data(n * workers, 1) <= fit.most(limit)
    if n > 1:
        fewer = fit.data((n - 1) * workers, 1)
        assert fewer > fit.most(limit) * (1 - 1e-6)


# --- shapes ---------------------------------------------------------------------------


def test_a_library_that_takes_all_threads_has_one_worker_a_host() -> None:
    """More processes would only divide the memory."""
    found = sized(rows_of(100))
    assert (found.workers_per_host, found.threads) == (1, 16)
    assert found.hosts > 1
    assert any("takes all threads of its worker" in r for r in found.reasons)


def test_thread_pools_use_a_whole_worker() -> None:
    """PyTorch trains in the threads of one worker, if its pool has them."""
    found = sized(rows_of(1), POOLS)
    assert (found.workers_per_host, found.threads) == (1, 16)
    assert any("torch.set_num_threads" in r for r in found.reasons)


def test_others_have_a_worker_for_each_cpu() -> None:
    """Other libraries get one worker per CPU."""
    found = sized(rows_of(1), SERIAL)
    assert (found.workers_per_host, found.threads) == (16, 1)


def test_fewer_hosts_come_before_single_threads() -> None:
    """If processes take much of the memory, there are fewer of them."""
    host = Host(cpus=16, memory=16 * GIB)
    found = sized(rows_of(3), SERIAL, host)
    assert found.hosts == 1
    assert found.threads > 1
    assert any("more hosts would be needed" in r for r in found.reasons)
    few, *_ = shapes(SERIAL, host)
    assert few.threads == 1


def test_small_hosts() -> None:
    """If a host is too small for a process, no number of hosts is enough."""
    with pytest.raises(errors.CapacityError, match=r"no number of hosts .* 300.0 MiB"):
        sized(10, host=Host(cpus=2, memory=900 * 2**20))
    with pytest.raises(errors.CapacityError, match="more memory"):
        sized(10, host=Host(cpus=2, memory=100 * 2**20))


def test_copied_eval_sets() -> None:
    """More workers do not make these eval sets smaller."""
    shared = sized(rows_of(60), eval_fraction=0.2)
    copied = sized(rows_of(60), COPIES, eval_fraction=0.2)
    assert copied.hosts > shared.hosts
    assert copied.worker_data > 12 * GIB
    with pytest.raises(errors.CapacityError, match=r"40.0 GiB of eval sets"):
        sized(rows_of(200), COPIES, eval_fraction=0.2)


def test_data_that_is_not_persisted() -> None:
    """Only the partitions in work take memory."""
    found = sized(rows_of(1000), STREAMS)
    assert found.hosts == 1
    assert found.worker_data == 2 * 2**27
    assert any("partition by partition" in r for r in found.reasons)


def test_columns_that_are_joined() -> None:
    """A library that joins columns converts them to the widest type."""
    mixed = replace(sizing.dense(10**9, 50, "float32"), itemsize=8)
    hosts = [
        decide(
            mixed,
            replace(WHOLE, one_number_type=joins),
            Host(cpus=16, memory=64 * GIB),
            eval_fraction=0,
            memory_fraction=0.7,
        ).hosts
        for joins in (False, True)
    ]
    assert hosts[1] > hosts[0]


def test_the_profile_is_in_the_reasons() -> None:
    """Reasons mention wide numbers, frugal workloads and child processes."""
    other = replace(WHOLE, name="other")
    wide = replace(WHOLE, feature_bytes=4, frugal=other, frugal_parameters="ask so")
    text = "\n".join(sized(100, wide, dtype="float64").reasons)
    assert 'dtype="float32"' in text
    assert "other: ask so" in text
    assert 'dtype="float32"' not in "\n".join(sized(100, wide).reasons)
    text = "\n".join(sized(100, replace(WHOLE, starts_processes=True)).reasons)
    assert "distributed.worker.daemon" in text
    with pytest.raises(errors.RefusedError, match="train it alone"):
        sized(100, replace(WHOLE, refused="train it alone"))


# --- one machine ----------------------------------------------------------------------


def test_one_machine_comes_first() -> None:
    """One machine is enough if the data and its copies fit."""
    found = sized(rows_of(1))
    assert found.one_machine
    assert str(found).startswith("One machine without Dask is enough")
    assert found.reasons[0].startswith("one process without Dask would need 2.1 GiB")
    assert found.reasons[0].endswith("it may be faster")


def test_one_machine_is_not_enough() -> None:
    """The machine is too small; how many hosts are available does not matter."""
    large = sized(rows_of(100))
    assert not large.one_machine
    assert "too much for one machine" in large.reasons[-1]
    many = sized(rows_of(1), n_hosts=4)
    assert many.one_machine
    assert many.hosts == 4


def test_one_machine_may_be_enough() -> None:
    """Dask counts data twice that one process has once."""
    found = sized(rows_of(20))
    assert found.hosts == 2
    assert found.one_machine


def test_too_few_hosts() -> None:
    """The result is for the needed hosts, and states that they are more."""
    found = sized(rows_of(100), n_hosts=2)
    assert not found.enough
    assert found.hosts > 2
    assert str(found).startswith("Too large for 2 such hosts. Needed: ")
    assert any("(2 were given)" in r for r in found.reasons)


# --- what is shown --------------------------------------------------------------------


def test_json() -> None:
    """JSON has all fields, with a schema version."""
    found = json.loads(sized(rows_of(100)).to_json())
    assert found["schema_version"] == 1
    assert found["workers"] == found["hosts"] * found["workers_per_host"]
    assert found["data"]["rows"] == rows_of(100)
    assert set(found["lines"]) == {"SLURMCluster", "dask worker"}
    assert found["enough"] is True


def test_html_is_escaped() -> None:
    """Names of columns are untrusted."""
    found = replace(sized(10), reasons=("<script>\x1b",))
    assert "<script>" not in found._repr_html_()
    assert "&lt;script&gt;" in found._repr_html_()
    assert "\x1b" not in found._repr_html_() + str(found)
    assert repr(found).startswith("<Sizing: 1 worker x 16 threads")


@given(st.integers(1, 2**20))
def test_sizes_are_read_back_as_they_were(mib: int) -> None:
    """Dask reads the text as exactly the same bytes."""
    limit = sizing._rounded(mib * 2**20)
    assert parse_bytes(sizing.size_text(limit)) == limit
    assert 0 <= mib * 2**20 - limit < mib * 2**20 / 10


# --- lines to paste -------------------------------------------------------------------


@pytest.fixture
def small() -> Sizing:
    """Return a cluster that this machine can start."""
    return sized(1000, SERIAL, Host(cpus=2, memory=2 * GIB))


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
    return LocalCluster(dashboard_address="127.0.0.1:0", **options)


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


# --- collections ----------------------------------------------------------------------


def test_arrays() -> None:
    """Lazy arrays have all that is needed."""
    X = da.ones((1000, 5), chunks=(100, 5), dtype="float32")
    y = da.ones(1000, chunks=100, dtype="float64")
    found = recommend_size(X, y).data
    assert (found.rows, found.columns, found.itemsize) == (1000, 6, 8)
    assert found.nbytes == X.nbytes + y.nbytes
    assert recommend_size(X, y, dtype="float32").data.nbytes == 1000 * 6 * 4
    with pytest.raises(ValueError, match="different numbers of rows"):
        recommend_size(X, y[:500])
    for both in ({"rows": 999}, {"columns": 5}):
        with pytest.raises(ValueError, match="rows and columns, and not both"):
            recommend_size(X, **both)


def test_frames() -> None:
    """Times have a fixed width, too."""
    frame = pd.DataFrame({"a": np.ones(100, "f4"), "t": pd.Timestamp(0)})
    found = recommend_size(dd.from_pandas(frame, npartitions=4), estimator="xgboost")
    assert (found.data.rows, found.data.columns) == (100, 2)
    assert (found.data.nbytes, found.data.itemsize) == (100 * (4 + 8), 4)


def test_unknown_bytes() -> None:
    """Rows that only tasks could count and texts are named, with what to give."""
    X = da.ones((1000, 5), chunks=(100, 5))
    text = dd.from_pandas(pd.DataFrame({"s": ["x"] * 100}), npartitions=4)
    for unknown in (X[X[:, 0] > 0], text):
        with pytest.raises(ValueError, match=r"bytes of X are unknown.*give rows= and"):
            recommend_size(unknown)


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
    yield {}, "rows=None and columns=None go together"
    yield {"rows": 10}, "columns=None go together"
    yield {"columns": 10}, "rows=None and columns=10 go together"
    yield {"rows": -1, "columns": 2}, "rows=-1 must be a whole number of at least 1"
    yield {"rows": 10**18, "columns": 10**6}, "more than any cluster has"
    yield data | {"dtype": "str"}, "dtype='str' must be float32"
    yield (
        data | {"estimator": "nope"},
        "estimator='nope' is no known workload; choose from",
    )
    yield data | {"estimator": object()}, "name its workload instead"
    yield data | {"eval_fraction": -0.1}, "eval_fraction=-0.1 must be"
    yield data | {"host_cpus": 0}, "host_cpus=0 must be"
    yield data | {"host_memory": "much"}, "host_memory='much' must be a size"
    yield data | {"n_hosts": 0}, "n_hosts=0 must be"


@pytest.mark.parametrize(("arguments", "text"), list(wrong()))
def test_wrong_arguments(arguments: dict[str, Any], text: str) -> None:
    """Errors have the value, the allowed values and a fix."""
    with pytest.raises(ValueError, match=re.escape(text)):
        recommend_size(**arguments)
