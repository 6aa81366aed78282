"""``python -m tests.chaos``: long runs of the random tests."""

from __future__ import annotations

import functools
import logging
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import click
import dask

from tests.chaos.rounds import Log, play_all, seeds
from tests.processes import fork_workers


def _rounds(function: Callable[..., None]) -> Callable[..., None]:
    """Add the options of commands that play rounds; they become a log and its seeds."""
    options = (
        click.option("--state", type=click.Path(dir_okay=False, path_type=Path),
            help="File to which each round is appended. A later call continues after "
            "its last seed."),
        click.option("--seed", type=int, help="Play only the round of this seed."),
        click.option("--first", type=int, help="First seed."),
        click.option("--minutes", type=float, default=0.0, help="Longest run."),
        click.option("--rounds", type=int, default=0, help="Largest number of rounds."),
    )  # fmt: skip

    @functools.wraps(function)
    def command(
        state: Path | None,
        seed: int | None,
        first: int | None,
        minutes: float,
        rounds: int,
        **more: Any,
    ) -> None:
        log = Log(state)
        if seed is None and not (rounds or minutes):
            raise click.UsageError("give --seed, --rounds or --minutes")
        which = [seed]
        if seed is None:
            which = seeds(log, first=first, rounds=rounds, minutes=minutes)
        function(log, which, **more)
        click.echo(str(log))
        sys.exit(1 if log.broken else 0)

    for option in reversed(options):
        command = option(command)
    return command


@click.group()
def main() -> None:
    """Run random tests: clusters with faults, a soak, and fuzzing."""
    dask.config.set({"clustertune.history.enabled": False})
    dask.config.set({"distributed.admin.system-monitor.gil.enabled": False})
    for name in ("distributed", "tornado", "clustertune"):
        logging.getLogger(name).setLevel(logging.CRITICAL)


def _printing(play: Callable[[int], Any]) -> Callable[[int], Any]:
    def play_and_print(seed: int) -> Any:
        one = play(seed)
        click.echo(str(one))
        return one

    return play_and_print


@main.command()
@_rounds
def simulated(log: Log, which: Iterable[int]) -> None:
    """Inject faults into simulated clusters in memory."""
    from tests.chaos.simulated_rounds import play

    play_all(play, log, which)


@main.command()
@_rounds
def live(log: Log, which: Iterable[int]) -> None:
    """Inject faults into real clusters."""
    fork_workers()
    from tests.chaos.live import ClusterPool, draw, play

    with ClusterPool() as pool:
        play_all(_printing(lambda n: play(draw(n), pool, log)), log, which)


@main.command()
@_rounds
def low_memory(log: Log, which: Iterable[int]) -> None:
    """Restart real workers that are full, paused, or have spilled keys."""
    fork_workers()
    from tests.chaos.live import ClusterPool, play
    from tests.chaos.low_memory import FilledWorkers, draw

    with ClusterPool() as pool:
        play_all(
            _printing(lambda n: play(draw(n), pool, log, FilledWorkers)), log, which
        )


@main.command()
@_rounds
def fits(log: Log, which: Iterable[int]) -> None:
    """Kill, freeze and retire workers of real fits."""
    fork_workers()
    from tests.chaos.fits import draw, play

    play_all(_printing(lambda n: play(draw(n))), log, which)


@main.command()
@_rounds
def hosts(log: Log, which: Iterable[int]) -> None:
    """Inject faults of hosts and links, as root on Linux."""
    from tests.chaos.hosts import draw, opened

    with opened() as player:
        play_all(_printing(lambda n: player.play(draw(n))), log, which)


@main.command()
@_rounds
@click.argument("tests", nargs=-1)
def stress(log: Log, which: Iterable[int], tests: tuple[str, ...]) -> None:
    """Run tests of Dask while another process restarts workers.

    TESTS are files or tests of Dask. Without them, each round draws 200.
    """
    fork_workers()
    from tests.chaos.stress import play

    play_all(_printing(lambda n: play(n, tests)), log, which)


@main.command()
@click.option("--rounds", default=50, show_default=True)
def soak(rounds: int) -> None:
    """Repeat training, a memory leak and a restart."""
    fork_workers()
    from tests.chaos.soak import soak

    _, problems = soak(rounds, click.echo)
    click.echo("\n".join(problems) or "memory is flat, and the data is complete")
    sys.exit(1 if problems else 0)


@main.command()
@click.option(
    "--inputs",
    default=100_000,
    show_default=True,
    help="Number of inputs of each target.",
)
@click.option("--target", "names", multiple=True, help="Fuzz only this target.")
def fuzz(inputs: int, names: tuple[str, ...]) -> None:
    """Feed random inputs to every parser."""
    from tests.chaos.targets import TARGETS, fuzz

    if unknown := set(names) - TARGETS.keys():
        raise click.UsageError(
            f"unknown targets {unknown}; choose from {', '.join(TARGETS)}"
        )
    for name in names or TARGETS:
        fuzz(TARGETS[name], inputs, same=False)
        click.echo(f"{name}: {inputs:,} inputs, no finding")


if __name__ == "__main__":
    main()
