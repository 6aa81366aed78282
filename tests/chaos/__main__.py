"""``python -m tests.chaos``: long forms of what runs with the tests."""

from __future__ import annotations

import json
import logging
import multiprocessing
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click
import dask
from distributed.utils import get_mp_context

from tests.chaos.rounds import Log, carry_out, seeds

_state = click.option(
    "--state", type=click.Path(dir_okay=False, path_type=Path), help="File to which "
    "each round is appended; a later call goes on after its last seed."
)  # fmt: skip
_seed = click.option("--seed", type=int, help="Play this one alone.")
_first = click.option("--first", type=int, help="The first seed.")
_minutes = click.option("--minutes", type=float, default=0.0, help="For so long.")
_rounds = click.option("--rounds", type=int, default=0, help="So many, at most.")


@click.group()
def main() -> None:
    """Chaos in memory and on live clusters, a soak, and fuzz."""
    dask.config.set({"clustertune.history.enabled": False})
    dask.config.set({"distributed.admin.system-monitor.gil.enabled": False})
    for name in ("distributed", "tornado", "clustertune"):
        logging.getLogger(name).setLevel(logging.CRITICAL)


def _ended(log: Log) -> None:
    """Say what became of all of it; with exit code 1 if anything is broken."""
    click.echo(str(log))
    if log.path is not None:
        path = log.path.with_suffix(".summary.json")
        path.write_text(json.dumps(log.summary(), indent=1) + "\n")
        click.echo(f"\nas JSON: {path}")
    sys.exit(1 if log.broken else 0)


def _choice(
    log: Log, seed: int | None, first: int | None, rounds: int, minutes: float
) -> Any:
    if seed is not None:
        return [seed]
    if not (rounds or minutes):
        raise click.UsageError("give --seed, --rounds or --minutes")
    return seeds(log, first=first, rounds=rounds, minutes=minutes)


def _telling(play: Callable[[int], Any]) -> Callable[[int], Any]:
    def tell(seed: int) -> Any:
        one = play(seed)
        click.echo(str(one))
        return one

    return tell


def _fork_workers() -> None:
    """Workers start in a tenth of the time; as for the tests."""
    if "forkserver" in multiprocessing.get_all_start_methods():
        dask.config.set({"distributed.worker.multiprocessing-method": "forkserver"})
        preload = ["distributed", "dask.array", "dask.dataframe"]
        get_mp_context().set_forkserver_preload(preload)


@main.command()
@_state
@_seed
@_first
@_minutes
@_rounds
def pure(
    state: Path | None, seed: int | None, first: int | None, minutes: float, rounds: int
) -> None:
    """Thousands of clusters in memory."""
    from tests.chaos.pure import play

    log = Log(state)
    which = _choice(log, seed, first, rounds, minutes)
    carry_out(_telling(play) if seed is not None else play, log, which)
    _ended(log)


@main.command()
@_state
@_seed
@_first
@_minutes
@_rounds
def live(
    state: Path | None, seed: int | None, first: int | None, minutes: float, rounds: int
) -> None:
    """Real workers, killed, frozen, paused and slowed."""
    _fork_workers()
    from tests.chaos.live import Stage, draw, play

    log = Log(state)
    which = _choice(log, seed, first, rounds, minutes)
    with Stage() as stage:
        carry_out(_telling(lambda n: play(draw(n), stage, log)), log, which)
    _ended(log)


@main.command()
@_state
@_seed
@_first
@_minutes
@_rounds
def rescue(
    state: Path | None, seed: int | None, first: int | None, minutes: float, rounds: int
) -> None:
    """Real workers that are full, paused, or have data on disk."""
    _fork_workers()
    from tests.chaos.live import Stage, play
    from tests.chaos.rescue import Rescue, draw

    log = Log(state)
    which = _choice(log, seed, first, rounds, minutes)
    with Stage() as stage:
        carry_out(_telling(lambda n: play(draw(n), stage, log, Rescue)), log, which)
    _ended(log)


@main.command()
@click.option("--rounds", default=50, show_default=True)
def soak(rounds: int) -> None:
    """Train, leak, restart, and again."""
    _fork_workers()
    from tests.chaos.soak import soak

    _, wrong = soak(rounds, click.echo)
    click.echo("\n".join(wrong) or "memory is flat, and the data was whole each time")
    sys.exit(1 if wrong else 0)


@main.command()
@click.option("--inputs", default=1_000_000, show_default=True, help="In all.")
@click.option("--processes", default=2, show_default=True)
@click.option("--target", "names", multiple=True, help="Only this one.")
@click.option("--seed", type=int, help="Read this input of one target alone.")
@click.option("--keep", is_flag=True, help="Keep that input in the corpus.")
@_state
def fuzz(
    inputs: int,
    processes: int,
    names: tuple[str, ...],
    seed: int | None,
    keep: bool,
    state: Path | None,
) -> None:
    """Many inputs for everything that reads any."""
    from tests.chaos import fuzz
    from tests.chaos.targets import TARGETS

    if unknown := set(names) - TARGETS.keys():
        raise click.UsageError(f"{unknown}: there are {', '.join(TARGETS)}")
    if seed is not None:
        (name,) = names
        if keep:
            click.echo(str(fuzz.keep(TARGETS[name], seed)))
        data = TARGETS[name].input(seed)
        click.echo(repr(data))
        TARGETS[name].read(data)
        return
    tally = fuzz.run(list(names or TARGETS), inputs, processes, state)
    click.echo(str(tally))
    sys.exit(1 if tally.findings else 0)


if __name__ == "__main__":
    main()
