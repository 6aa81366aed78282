from __future__ import annotations

import dask.array as da
import dask.dataframe as dd
import numpy as np
import pandas as pd
import pytest
from distributed import Event, get_worker, wait
from distributed.utils_test import gen_cluster

import clustertune
from clustertune.checks.large_results import find
from clustertune.core.model import Severity
from clustertune.testing import prefix, survey, view
from tests.processes import soon

ARRAYS = "finalize-hlgfinalizecompute"


def found(*prefixes):
    return list(find(view(survey=survey(prefixes=prefixes))))


def test_silent_where_results_are_small_or_spread():
    """Pieces may be large together."""
    assert found(prefix(ARRAYS, memory=3, nbytes=2**30)) == []
    assert found(prefix(ARRAYS, waiting=3, inputs=2**30)) == []
    assert found(prefix("random", memory=3, nbytes=2**40, inputs=2**40)) == []
    assert list(find(view())) == []


@pytest.mark.parametrize("name", [ARRAYS, "repartitiontofewer"])
def test_a_large_result_in_one_place(name):
    """Each of them went through one worker's memory."""
    (finding,) = found(prefix(name, memory=2, nbytes=2**33))
    assert finding.severity is Severity.warning
    assert "2 results of 8.0 GiB in all came" in finding.message


def test_a_large_result_that_is_to_come():
    """While there is time to stop it."""
    (finding,) = found(prefix(ARRAYS, waiting=1, inputs=2**33))
    assert finding.severity is Severity.warning
    assert "1 result of 8.0 GiB in all is about to come" in finding.message


def _after(piece, gate):
    if get_worker().name == 1:
        Event(gate).wait(30)
    return piece.copy()


FRAME = pd.DataFrame(np.ones((8000, 100)))


@pytest.mark.parametrize(
    "collection",
    [
        lambda: da.random.random((8000, 100), chunks=(1000, 100)),
        lambda: dd.from_pandas(FRAME, npartitions=8),
    ],
    ids=["array", "frame"],
)
def test_live(collection):
    """As Dask names what it makes: before all pieces are joined, and after."""

    @gen_cluster(
        client=True,
        nthreads=[("127.0.0.1", 1)] * 2,
        config={"clustertune.checks.large_results.most": 5e6},
    )
    async def test(c, s, a, b):
        X = c.persist(collection())
        await wait(X)
        assert await _messages(c) == []
        gate = Event("gate", client=c)
        map_pieces = getattr(X, "map_blocks", None) or X.map_partitions
        result = c.compute(map_pieces(_after, gate=gate.name, meta=X._meta))
        # From the first piece on sizes are known; frames have other tasks between.
        await soon(
            lambda: any("after" in k[0] and t.who_has for k, t in s.tasks.items())
        )
        (message,) = await _messages(c)
        assert "1 result of 6.1 MiB in all is about to come" in message
        await gate.set()
        await wait(result)
        (message,) = await _messages(c)
        assert "1 result of 6.1 MiB in all came" in message

    test()


async def _messages(c):
    report = await clustertune.check(c)
    return [f.message for f in report.found if f.check == "large_results"]
