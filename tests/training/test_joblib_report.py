"""Memory needs and report of ``joblib_backend``, without a cluster."""

from __future__ import annotations

from dataclasses import replace

import pytest

from clustertune.training import joblib_fits
from clustertune.training.joblib_fits import (
    ClientMachine,
    Setup,
    WorkerCapacity,
)
from clustertune.training.remote_fits import Call

MIB = 2**20
GIB = 2**30
WORKER = WorkerCapacity(
    "tcp://1", "left", "10.0.0.1", "there", threads=2, limit=0, used=0
)
HERE = ClientMachine("here", cpus=4, free=1000 * MIB)
SETUP = Setup((WORKER, WORKER), HERE, nbytes=100 * MIB, copying=0.5, nested=False)


def call(*seconds: float, took: float, name: str = "fit") -> Call:
    """Fits of so many seconds, in turns on two workers."""
    fitted = [(name, s, f"tcp://{i % 2}") for i, s in enumerate(seconds)]
    return Call(begun=1.0, ended=1.0 + took, fits=fitted)


def remarks(setup: Setup, *calls: Call) -> list[str]:
    return joblib_fits.advice(setup, joblib_fits.summarize(calls))


def test_calls_are_added_up_by_what_they_fitted() -> None:
    """One that goes on, or has failed before any fit was done, tells nothing."""
    done = joblib_fits.summarize(
        [
            call(1, 2, 6, took=4),
            call(3, took=3, name="tree\x1b[2J"),
            call(2, took=1),
            Call(begun=0.0, fits=[("fit", 9.0, "tcp://0")]),
            Call(begun=0.0, ended=1.0),
        ]
    )
    assert [work.name for work in done] == ["fit", r"tree\x1b[2J"]
    work = done[0]
    assert (work.fits, work.workers, work.widest) == (4, 2, 3)
    assert (work.median, work.longest, work.spent, work.seconds) == (2, 6, 11, 5)
    assert joblib_fits.busy_fraction(SETUP, done) == (11 + 3) / (4 * (5 + 3))


def test_short_fits_are_sooner_done_in_one_thread() -> None:
    """0.72 s of fits kept 4 threads for 2.1 s: 32 ms for each beside its 3 ms."""
    (said,) = remarks(SETUP, call(*[0.003] * 240, took=2.1))
    assert said.startswith(
        "240 fits of fit, 0.003 s each, took 0.72 s in total, and 2.1 s on 4 threads "
        "of the cluster, because each fit had an overhead of 0.032 s of a thread. One "
        "after"
    )


def test_threads_of_this_machine_may_do() -> None:
    """Not where they have no memory for what they copy, or would hardly be faster."""
    fits = call(*[1.0] * 24, took=8)
    (said,) = remarks(SETUP, fits)
    assert "4 threads of this machine would take about 6 s if" in said
    assert 'backend="threading", n_jobs=4' in said
    assert remarks(SETUP, call(*[1.0] * 24, took=7)) == []
    # two copies of 120 MiB fit: 12 s
    assert remarks(replace(SETUP, client=replace(HERE, free=300 * MIB)), fits) == []
    assert remarks(replace(SETUP, client=replace(HERE, free=100 * MIB)), fits) == []
    # the longest fit decides, and no more threads help than there are fits
    assert remarks(SETUP, call(7.0, *[1.0] * 17, took=8)) == []
    (said,) = remarks(replace(SETUP, nbytes=0), call(1.0, 1.0, 1.0, took=2.5))
    assert "3 threads of this machine would take about 1 s" in said


def test_few_fits_for_many_threads() -> None:
    one = replace(SETUP, client=replace(HERE, cpus=1))
    fits = call(4, 4, took=4.5), call(4, took=4.5)
    (said,) = remarks(one, *fits)
    assert said.startswith(
        "fit: at most 2 fits in a call, for 4 threads. With nested=True"
    )
    assert remarks(replace(one, nested=True), *fits) == []


def test_copies_that_take_longer_than_fits() -> None:
    said, _ = remarks(replace(SETUP, copying=3.0), call(0.1, took=2.0))
    assert said.startswith("copying 100.0 MiB to 2 workers took 3 s, longer than all")
    quick = call(0.1, 0.1, 0.1, 0.1, took=0.1)
    assert remarks(replace(SETUP, copying=0.9), quick) == []


@pytest.mark.parametrize(
    ("machines", "where"),
    [
        (("here", "here"), "this machine"),
        (("there", "there"), "one machine"),
        (("here", "there"), None),
        (("", ""), None),
    ],
)
def test_what_can_be_told_before(machines: tuple[str, str], where: str | None) -> None:
    workers = tuple(replace(WORKER, machine=machine) for machine in machines)
    said = remarks(replace(SETUP, workers=workers))
    assert [f"all workers are on {where}, with 4 th" in text for text in said] == (
        [True] if where else []
    )


def test_what_was_not_seen_is_unknown() -> None:
    done = joblib_fits.summarize([call(1, 1, took=1)])
    said = "\n".join(joblib_fits.report_lines(SETUP, done))
    assert "100.0 MiB copied to 2 workers in 0.5 s" in said
    assert "fitting 50% of that time" in said
    assert "4 CPUs and 1000.0 MiB free; 0 of 2 workers run on it" in said
    waiting = replace(SETUP, nested=True)
    assert joblib_fits.busy_fraction(waiting, done) is None
    assert "unknown how busy threads were" in "\n".join(
        joblib_fits.report_lines(waiting, done)
    )
    assert "nothing was fitted" in "\n".join(joblib_fits.report_lines(SETUP, []))
    assert joblib_fits.busy_fraction(SETUP, []) is None
    silent = replace(SETUP, workers=(WORKER, replace(WORKER, machine="")))
    assert "which workers run on it is unknown" in "\n".join(
        joblib_fits.report_lines(silent, [])
    )


# --- memory ---

LIMITED = WorkerCapacity(
    "tcp://1", "left", "10.0.0.1", "m", threads=2, limit=10 * GIB, used=GIB
)


def test_threads_copy_too() -> None:
    """1 GiB and 2.4 for two threads, beside 1 in use: 4.4 of 5 is allowed, not of 4."""
    assert joblib_fits.memory_problem([LIMITED], GIB, 0.5) is None
    said = joblib_fits.memory_problem([LIMITED], GIB, 0.4)
    assert said is not None
    assert said.startswith(
        "worker left: a copy of the data (1.0 GiB) and the copies of "
    )
    assert "take about 3.4 GiB; it uses 1.0 GiB and may fill 40%" in said


def test_a_worker_without_a_limit_is_not_judged() -> None:
    free = replace(LIMITED, id="free", limit=0)
    assert joblib_fits.memory_problem([free], 100 * GIB, 0.7) is None
    said = joblib_fits.memory_problem([free, LIMITED], 100 * GIB, 0.7)
    assert said is not None
    assert "free" not in said
