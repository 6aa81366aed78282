"""Environment variables that a file or a command may set for workers."""

from __future__ import annotations

import pytest
from dask.utils import parse_bytes

from clustertune.core import environment

ALLOWED = [
    ("OMP_NUM_THREADS", "2"),
    ("MKL_DOMAIN_NUM_THREADS", "MKL_BLAS=4"),
    ("NUMBA_NUM_THREADS", "1"),
    ("OMP_PLACES", "{0:4}:8:4"),
    ("OMP_SCHEDULE", "dynamic,4"),
    ("KMP_AFFINITY", "granularity=fine,proclist=[0,3],explicit"),
    ("GOMP_CPU_AFFINITY", "0-3 5"),
    ("MALLOC_TRIM_THRESHOLD_", "65536"),
]
# each of them runs a command, loads code, reads or writes a file
DANGEROUS = [
    "BASH_ENV",
    "BROWSER",
    "DASK_DISTRIBUTED__WORKER__PRELOAD",
    "GLIBC_TUNABLES",
    "KMP_CPUINFO_FILE",
    "LD_PRELOAD",
    "MALLOC_CONF",
    "MALLOC_TRACE",
    "MKL_VERBOSE_OUTPUT_FILE",
    "NUMBA_CACHE_DIR",
    "NUMCODECS_ALLOW_UNSAFE_PICKLE_DECODE",
    "NUMEXPR_SANITIZE",
    "OMP_TOOL_LIBRARIES",
    "OMP_TOOL_VERBOSE_INIT",
    "PATH",
    "PYTHONPATH",
    "PYTHONSTARTUP",
    "PYTHONWARNINGS",
    "omp_num_threads",
    "X;Y_NUM_THREADS",
    "_NUM_THREADS",
    "OMP_NUM_THREADS\n",
]


@pytest.mark.parametrize(("name", "value"), ALLOWED)
def test_what_tunes(name: str, value: str) -> None:
    """Variables of thread pools and allocators, with values from their manuals."""
    assert environment.objection({name: value}) == ""
    assert environment.text({name: value}) == [f"{name}={value}"]


@pytest.mark.parametrize("name", DANGEROUS)
def test_what_may_run_code(name: str) -> None:
    """The error names it and lists the allowed ones; it does not show the value."""
    problem = environment.objection({"OMP_NUM_THREADS": "1", name: "1"})
    assert "is not a variable of thread pools or allocators" in problem
    assert "MALLOC_TRIM_THRESHOLD_" in problem
    assert "hunter2" not in "".join(environment.text({name: "hunter2"}))


@pytest.mark.parametrize("value", ["/tmp/x.so", "a\nb", "$(x)", "`x`", "é", "1" * 201])
def test_values(value: str) -> None:
    """No paths, no commands, no text of unlimited length."""
    assert "may contain only" in environment.objection({"OMP_PLACES": value})


def test_a_name_that_is_close() -> None:
    """The error suggests the nearest name."""
    assert "(did you mean OMP_PLACES?)" in environment.objection({"OMP_PLACE": "cores"})


def test_what_dask_sets_may_be_set() -> None:
    """Files may set the variables that Dask sets for new workers."""
    from dask import config

    for name, value in config.get("distributed.nanny.pre-spawn-environ").items():
        assert environment.objection({name: str(parse_bytes(value))}) == "", name
