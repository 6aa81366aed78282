"""Memory needs and report of ``joblib_backend``, without a cluster."""

from __future__ import annotations

from dataclasses import replace

import pytest

from clustertune.training.joblib_fits import (
    Backend,
    ClientMachine,
    WorkerCapacity,
    memory_problem,
)
from clustertune.training.remote_fits import Call

MIB = 2**20
GIB = 2**30
WORKER = WorkerCapacity("tcp://1", "left", "10.0.0.1", "there", 2, limit=0, used=0)
HERE = ClientMachine("here", cpus=4, free=1000 * MIB)
BACKEND = Backend(
    nbytes=100 * MIB,
    copying=0.5,
    _workers=(WORKER, WORKER),
    _client=HERE,
    _nested=False,
    _calls=[],
)


def call(*seconds: float, took: float, name: str = "fit") -> Call:
    """Fits of these seconds, alternating between two workers."""
    fitted = [(name, s, f"tcp://{i % 2}") for i, s in enumerate(seconds)]
    return Call(begun=1.0, ended=1.0 + took, fits=fitted)


def after(backend: Backend, *calls: Call) -> Backend:
    return replace(backend, _calls=list(calls))


def remarks(backend: Backend, *calls: Call) -> list[str]:
    return list(after(backend, *calls).remarks)


def test_calls_are_added_up_by_function() -> None:
    """A running call, or one that failed before its first fit, does not count."""
    backend = after(
        BACKEND,
        call(1, 2, 6, took=4),
        call(3, took=3, name="tree\x1b[2J"),
        call(2, took=1),
        Call(begun=0.0, fits=[("fit", 9.0, "tcp://0")]),
        Call(begun=0.0, ended=1.0),
    )
    assert [work.name for work in backend.works] == ["fit", r"tree\x1b[2J"]
    work = backend.works[0]
    assert (work.fits, work.workers, work.widest) == (4, 2, 3)
    assert (work.median, work.longest, work.spent, work.seconds) == (2, 6, 11, 5)
    assert backend.busy == (11 + 3) / (4 * (5 + 3))


def test_short_fits_are_faster_in_one_thread() -> None:
    """0.72 s of fits occupied 4 threads for 2.1 s: 32 ms of overhead per fit."""
    (said,) = remarks(BACKEND, call(*[0.003] * 240, took=2.1))
    assert said.startswith(
        "240 fits of fit, 0.003 s each, took 0.72 s in total, and 2.1 s on 4 threads "
        "of the cluster, because each fit had an overhead of 0.032 s of a thread. One "
        "after"
    )


def test_threads_of_this_machine_may_be_faster() -> None:
    """There is no advice without memory for the copies or without a clear gain."""
    fits = call(*[1.0] * 24, took=8)
    (said,) = remarks(BACKEND, fits)
    assert "4 threads of this machine would take about 6 s if" in said
    assert 'backend="threading", n_jobs=4' in said
    assert remarks(BACKEND, call(*[1.0] * 24, took=7)) == []
    # memory for two copies of 120 MiB allows two threads, which take 12 s
    assert remarks(replace(BACKEND, _client=replace(HERE, free=300 * MIB)), fits) == []
    assert remarks(replace(BACKEND, _client=replace(HERE, free=100 * MIB)), fits) == []
    # the longest fit and the number of fits limit the gain
    assert remarks(BACKEND, call(7.0, *[1.0] * 17, took=8)) == []
    (said,) = remarks(replace(BACKEND, nbytes=0), call(1.0, 1.0, 1.0, took=2.5))
    assert "3 threads of this machine would take about 1 s" in said


def test_few_fits_for_many_threads() -> None:
    one = replace(BACKEND, _client=replace(HERE, cpus=1))
    fits = call(4, 4, took=4.5), call(4, took=4.5)
    (said,) = remarks(one, *fits)
    assert said.startswith(
        "fit: at most 2 fits in a call, for 4 threads. With nested=True"
    )
    assert remarks(replace(one, _nested=True), *fits) == []


def test_copying_takes_longer_than_fits() -> None:
    said, _ = remarks(replace(BACKEND, copying=3.0), call(0.1, took=2.0))
    assert said.startswith("copying 100.0 MiB to 2 workers took 3 s, longer than all")
    quick = call(0.1, 0.1, 0.1, 0.1, took=0.1)
    assert remarks(replace(BACKEND, copying=0.9), quick) == []


@pytest.mark.parametrize(
    ("machines", "where"),
    [
        (("here", "here"), "this machine"),
        (("there", "there"), "one machine"),
        (("here", "there"), None),
        (("", ""), None),
    ],
)
def test_advice_before_any_fit(machines: tuple[str, str], where: str | None) -> None:
    workers = tuple(replace(WORKER, machine=machine) for machine in machines)
    said = remarks(replace(BACKEND, _workers=workers))
    assert [f"all workers are on {where}, with 4 th" in text for text in said] == (
        [True] if where else []
    )


def test_unmeasured_values_are_unknown() -> None:
    text = str(after(BACKEND, call(1, 1, took=1)))
    assert "100.0 MiB copied to 2 workers in 0.5 s" in text
    assert "fitting 50% of that time" in text
    assert "4 CPUs and 1000.0 MiB free; 0 of 2 workers run on it" in text
    waiting = after(replace(BACKEND, _nested=True), call(1, 1, took=1))
    assert waiting.busy is None
    assert "unknown how busy threads were" in str(waiting)
    assert "nothing was fitted" in str(BACKEND)
    assert BACKEND.busy is None
    silent = replace(BACKEND, _workers=(WORKER, replace(WORKER, machine="")))
    assert "which workers run on it is unknown" in str(silent)


# --- memory ---------------------------------------------------------------------------

LIMITED = WorkerCapacity(
    "tcp://1", "left", "10.0.0.1", "m", threads=2, limit=10 * GIB, used=GIB
)


def test_threads_copy_too() -> None:
    """1 GiB of data, 2.4 for two threads and 1 in use fit 5 GiB but not 4."""
    assert memory_problem([LIMITED], GIB, 0.5) is None
    said = memory_problem([LIMITED], GIB, 0.4)
    assert said is not None
    assert said.startswith(
        "worker left: a copy of the data (1.0 GiB) and the copies of "
    )
    assert "take about 3.4 GiB; it uses 1.0 GiB and may fill 40%" in said


def test_a_worker_without_a_limit_has_no_problem() -> None:
    free = replace(LIMITED, id="free", limit=0)
    assert memory_problem([free], 100 * GIB, 0.7) is None
    said = memory_problem([free, LIMITED], 100 * GIB, 0.7)
    assert said is not None
    assert "free" not in said
