"""A few tests of Dask; ``python -m tests.chaos stress`` runs more."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import dask
import dask.array as da
import numpy as np
import pytest

from tests.chaos.stress import CALLS
from tests.processes import local_workers

DASK = Path(dask.__file__).parent
REPOSITORY = Path(__file__).parents[2]
TESTS = (
    "array/tests/test_overlap.py::test_overlap_internal",
    "array/tests/test_rechunk.py::test_rechunk_2d",
    "array/tests/test_routines.py::test_bincount",
    "dataframe/tests/test_dataframe.py::test_clip",
    "dataframe/tests/test_dataframe.py::test_isna",
)


@pytest.mark.slow
@pytest.mark.timeout(900)  # a busy machine starts processes slowly
def test_results_are_equal_during_restarts() -> None:
    """Tests of Dask pass while another process makes all calls."""
    command = [sys.executable, "-m", "tests.chaos", "stress", "--seed", "0"]
    command += [str(DASK / test) for test in TESTS]
    ended = subprocess.run(
        command, cwd=REPOSITORY, capture_output=True, text=True, check=False
    )
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert "7 equal, mixed up by Dask alone: none" in ended.stdout
    assert all(f"x {call}" in ended.stdout for call in CALLS), ended.stdout


def test_dask_alone_mixes_up_data_of_one_key() -> None:
    """While a key exists, other data of this key has the values of the first."""
    with local_workers(1, processes=False) as client:
        kept = client.persist(da.from_array(np.zeros(4), chunks=2, name="x"))
        other = da.from_array(np.ones(4), chunks=2, name="x")
        assert list(client.compute(other).result()) == [0, 0, 0, 0]
        del kept
