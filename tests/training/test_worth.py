from __future__ import annotations

from dataclasses import replace

import pytest

from clustertune.training import worth
from clustertune.training.room import Seat
from clustertune.training.worth import Block, Call, Here

MIB = 2**20
SEAT = Seat("tcp://1", "left", "10.0.0.1", "there", threads=2, limit=0, used=0)
HERE = Here("here", cpus=4, free=1000 * MIB)
BLOCK = Block((SEAT, SEAT), HERE, nbytes=100 * MIB, copying=0.5, nested=False)


def call(*seconds: float, took: float, name: str = "fit") -> Call:
    """Fits of so many seconds, in turns on two workers."""
    fitted = [(name, s, f"tcp://{i % 2}") for i, s in enumerate(seconds)]
    return Call(begun=1.0, ended=1.0 + took, fitted=fitted)


def remarks(block: Block, *calls: Call) -> list[str]:
    return worth.remarks(block, worth.works(calls))


def test_calls_are_added_up_by_what_they_fitted() -> None:
    """One that goes on, or has failed before any fit was done, tells nothing."""
    done = worth.works(
        [
            call(1, 2, 6, took=4),
            call(3, took=3, name="tree\x1b[2J"),
            call(2, took=1),
            Call(begun=0.0, fitted=[("fit", 9.0, "tcp://0")]),
            Call(begun=0.0, ended=1.0),
        ]
    )
    assert [work.name for work in done] == ["fit", r"tree\x1b[2J"]
    work = done[0]
    assert (work.fits, work.workers, work.widest) == (4, 2, 3)
    assert (work.median, work.longest, work.spent, work.seconds) == (2, 6, 11, 5)
    assert worth.busy(BLOCK, done) == (11 + 3) / (4 * (5 + 3))


def test_short_fits_are_sooner_done_in_one_thread() -> None:
    """0.72 s of fits kept 4 threads for 2.1 s: 32 ms for each beside its 3 ms."""
    (said,) = remarks(BLOCK, call(*[0.003] * 240, took=2.1))
    assert said.startswith(
        "240 fits of fit, 0.003 s each, took 0.72 s in all, and 2.1 s on 4 threads of "
        "the cluster, since each cost 0.032 s of a thread beside its work. One after"
    )


def test_threads_of_this_machine_may_do() -> None:
    """Not where they have no memory for what they copy, or would hardly be faster."""
    fits = call(*[1.0] * 24, took=8)
    (said,) = remarks(BLOCK, fits)
    assert "4 threads of this machine would take about 6 s where" in said
    assert 'backend="threading", n_jobs=4' in said
    assert remarks(BLOCK, call(*[1.0] * 24, took=7)) == []
    # two copies of 120 MiB fit: 12 s
    assert remarks(replace(BLOCK, here=replace(HERE, free=300 * MIB)), fits) == []
    assert remarks(replace(BLOCK, here=replace(HERE, free=100 * MIB)), fits) == []
    # the longest fit decides, and no more threads help than there are fits
    assert remarks(BLOCK, call(7.0, *[1.0] * 17, took=8)) == []
    (said,) = remarks(replace(BLOCK, nbytes=0), call(1.0, 1.0, 1.0, took=2.5))
    assert "3 threads of this machine would take about 1 s" in said


def test_few_fits_for_many_threads() -> None:
    one = replace(BLOCK, here=replace(HERE, cpus=1))
    fits = call(4, 4, took=4.5), call(4, took=4.5)
    (said,) = remarks(one, *fits)
    assert said.startswith("fit: at most 2 fits in a call, for 4 threads: nested=True")
    assert remarks(replace(one, nested=True), *fits) == []


def test_copies_that_take_longer_than_fits() -> None:
    said, _ = remarks(replace(BLOCK, copying=3.0), call(0.1, took=2.0))
    assert said.startswith("copying 100.0 MiB to 2 workers took 3 s, longer than all")
    quick = call(0.1, 0.1, 0.1, 0.1, took=0.1)
    assert remarks(replace(BLOCK, copying=0.9), quick) == []


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
    seats = tuple(replace(SEAT, machine=machine) for machine in machines)
    said = remarks(replace(BLOCK, seats=seats))
    assert [f"all workers are on {where}, with 4 th" in text for text in said] == (
        [True] if where else []
    )


def test_what_was_not_seen_is_unknown() -> None:
    done = worth.works([call(1, 1, took=1)])
    said = "\n".join(worth.lines(BLOCK, done))
    assert "100.0 MiB copied to 2 workers in 0.5 s" in said
    assert "fitting 50% of that time" in said
    assert "4 CPUs and 1000.0 MiB free; 0 of 2 workers run on it" in said
    waiting = replace(BLOCK, nested=True)
    assert worth.busy(waiting, done) is None
    assert "how busy threads were is unknown" in "\n".join(worth.lines(waiting, done))
    assert "nothing was fitted" in "\n".join(worth.lines(BLOCK, []))
    assert worth.busy(BLOCK, []) is None
    silent = replace(BLOCK, seats=(SEAT, replace(SEAT, machine="")))
    assert "which workers run on it is unknown" in "\n".join(worth.lines(silent, []))
