"""``clustertune prepare``: collections by the names under which they are published."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import click

from clustertune.cli.changing import change, worker_option
from clustertune.cli.consent import Consent, with_consent
from clustertune.cli.examples import examples
from clustertune.cli.running import format_option, once
from clustertune.cli.target import Target, on_a_cluster
from clustertune.core import arguments
from clustertune.integrations import libraries
from clustertune.operations.planfile import Call

Check = Callable[[str, Any], Any]


def _checked(check: Check) -> Callable[[click.Context, click.Parameter, Any], Any]:
    """The check of an argument of ``prepare`` for the option of that name."""

    def callback(_context: click.Context, option: click.Parameter, value: Any) -> Any:
        if value is None:
            return None
        try:
            return check(option.opts[0], value)
        except ValueError as error:
            raise click.UsageError(str(error)) from error

    return callback


def _number_or_fit(name: str, text: str) -> int | str | None:
    return arguments.workers_wanted(name, int(text) if text.isdecimal() else text)


def _known_workload(_name: str, text: str) -> str:
    return libraries.choose(text).name


def _fraction_from_zero(name: str, number: float) -> float:
    return arguments.fraction(name, number, zero=True)


# Each is named like the argument of prepare that it is handed on as.
_options = (
    click.option("--workload", metavar="NAME", callback=_checked(_known_workload),
        help="What will train, like xgboost."),
    click.option("--n-workers", metavar="N", callback=_checked(_number_or_fit),
        help="Have so many workers first, or `fit`: as many as the fit's memory needs. "
        "Needs --cluster."),
    click.option("--restart", type=click.Choice(["auto", "all"]), help="First restart "
        "the workers that leak, or all; without losing what they hold."),
    click.option("--rechunk", type=click.IntRange(1), metavar="N", help="Cut the "
        "training data into N pieces; else it is cut where needed."),
    click.option("--no-rechunk", is_flag=True, help="Never cut; it is an error where "
        "it would be needed."),
    click.option("--to", type=click.Choice(["array"]), help="Make arrays of frames."),
    click.option("--dtype", metavar="TYPE", callback=_checked(arguments.number_type),
        help="Number type of the features, like float32."),
    click.option("--persist/--no-persist", default=None, help="Load what is not in "
        "memory, or leave it; by default as the workload needs it."),
    click.option("--shuffle", type=click.Choice(["rows", "pieces"]),
        help="Put rows in a random order, or only whole pieces."),
    click.option("--random-state", type=click.IntRange(0), default=0, metavar="SEED",
        help="Of the shuffle."),
    click.option("--sort", is_flag=True, help="Sort rows by query group (--qid)."),
    click.option("--tolerance", type=float, callback=_checked(_fraction_from_zero),
        default=0.05, show_default=True, help="By how much the fullest worker may "
        "exceed its share of rows."),
    click.option("--memory-fraction", type=float,
        callback=_checked(arguments.fraction), default=0.7, show_default=True,
        help="How much of a worker's memory the fit may fill."),
    click.option("--strict", is_flag=True, help="Refuse if the fit will lack memory."),
    click.option("--timeout", metavar="TIME", callback=_checked(arguments.duration),
        default="10 minutes", show_default=True, help="For everything together."),
)  # fmt: skip


def _options_of_prepare(command: Callable[..., None]) -> Callable[..., None]:
    for option in reversed(_options):
        command = option(command)
    return command


@click.command(
    epilog=examples(
        "clustertune prepare --dataset X --dataset y --workload xgboost",
        "clustertune prepare --dataset X --dataset y --keep-old {name}-old --dry-run",
        "clustertune prepare --dataset X --dataset y --restart auto --yes",
    )
)
@on_a_cluster(manager=True)
@format_option
@click.option(
    "--dataset", "datasets", multiple=True, required=True, metavar="NAME",
    callback=once, help="A published data set: the first is X, the second y, and so on."
)  # fmt: skip
@click.option("--sample-weight", metavar="NAME", help="A published data set.")
@click.option("--qid", metavar="NAME", help="A published data set.")
@click.option("--base-margin", metavar="NAME", help="A published data set.")
@click.option("--init-score", metavar="NAME", help="A published data set.")
@click.option(
    "--eval-set", nargs=2, multiple=True, metavar="X y", help="Two published data "
    "sets; may be given several times."
)  # fmt: skip
@click.option(
    "--keep-old", metavar="NAME", help="Publish the old collections under this name; "
    "of several it has {name} in it, like {name}-old. By default they are freed."
)  # fmt: skip
@worker_option
@_options_of_prepare
@with_consent
def prepare(
    target: Target,
    form: str,
    datasets: tuple[str, ...],
    workers: tuple[str, ...],
    rechunk: int | None,
    no_rechunk: bool,
    restart: str | None,
    consent: Consent,
    **options: Any,
) -> None:
    """Get published data ready for a fit; the names point to the new pieces then.

    On all workers, rows even, pairs together. All names change in one moment, or none.
    """
    if no_rechunk and rechunk:
        raise click.UsageError("--rechunk and --no-rechunk exclude each other")
    options["rechunk"] = False if no_rechunk else rechunk or True
    options["shuffle"] = options["shuffle"] or False
    options["restart"] = {None: False, "auto": "auto", "all": True}[restart]
    options["workers"] = list(workers) or None
    change(target, Call(verb="prepare", names=datasets, options=options), form, consent)
