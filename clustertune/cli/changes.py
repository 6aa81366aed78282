"""Commands that change workers or data: they show a plan and ask."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import asdict
from functools import partial
from typing import TYPE_CHECKING, Any

import click
from tabulate import tabulate

from clustertune.cli import examples
from clustertune.cli.completion import dataset_names, workload_names
from clustertune.cli.options import (
    Command,
    Consent,
    Target,
    cluster_options,
    with_consent,
)
from clustertune.cli.running import (
    PlanOnly,
    change,
    distinct_names,
    format_option,
    parse_pairs,
    parse_part,
    parse_seconds,
    run,
    usage_errors,
)
from clustertune.cli.scheduling import (
    ScheduleOptions,
    between_runs,
    with_schedule_options,
)
from clustertune.core import arguments
from clustertune.core.wording import bytes_text, names_text, plural, printable
from clustertune.errors import RefusedError
from clustertune.integrations import libraries

if TYPE_CHECKING:
    from distributed import Client

    from clustertune.core.model import KeyGroup

worker_option = click.option(
    "--worker", "workers", multiple=True, metavar="NAME", help="Use only the worker "
    "with this name or address; may be given several times."
)  # fmt: skip
_unavailable = click.option(
    "--max-unavailable", metavar="N", default="1", show_default=True, help="Restart at "
    "most N workers at the same time: a number, or a fraction like 25%."
)  # fmt: skip
_others = click.option(
    "--include-other-clients", is_flag=True, help="Also lose data of other clients, "
    "and published data."
)  # fmt: skip
_wait = click.option(
    "--wait", metavar="TIME", default="1 minute", show_default=True, help="Wait at "
    "most so long for the running tasks of each worker."
)  # fmt: skip


def _timeout(default: str) -> Callable[[Command], Command]:
    return click.option(
        "--timeout", metavar="TIME", default=default, show_default=True,
        help="Limit the time of the whole command.",
    )  # fmt: skip


# --- workers --------------------------------------------------------------------------


@click.command(
    epilog=examples(
        "clustertune resize --nthreads 2 --memory-limit 8GiB",
        "clustertune resize --worker 3 --env OMP_NUM_THREADS=2 --dry-run",
    )
)
@cluster_options(manager=True)
@format_option
@worker_option
@click.option("--nthreads", type=click.IntRange(1), help="Set the threads of a worker.")
@click.option(
    "--memory-limit", metavar="SIZE", help="Set the memory limit of a worker, like "
    "4GiB."
)  # fmt: skip
@click.option(
    "--env", "variables", multiple=True, metavar="NAME=VALUE", help="Set a variable of "
    "thread pools or allocators before the worker's process starts; may be given "
    "several times."
)  # fmt: skip
@_unavailable
@_wait
@_timeout("30 minutes")
@with_consent
def resize(
    target: Target,
    form: str,
    workers: tuple[str, ...],
    max_unavailable: str,
    nthreads: int | None,
    memory_limit: str | None,
    variables: tuple[str, ...],
    consent: Consent,
    **limits: str,
) -> None:
    """Change the threads, memory or variables of workers without losing data."""
    if not (nthreads or memory_limit or variables):
        raise click.UsageError("give --nthreads, --memory-limit or --env")
    pairs = parse_pairs("--env", variables, "NAME=VALUE")
    with usage_errors(ValueError):
        arguments.nbytes("--memory-limit", memory_limit)
        env = arguments.variables("--env", pairs)
    options: dict[str, Any] = _seconds(limits) | {
        "nthreads": nthreads,
        "memory_limit": memory_limit,
        "env": env or None,
        "max_unavailable": parse_part("--max-unavailable", max_unavailable),
    }
    change(target, "resize", _on_workers(workers, options), form, consent)


@click.command(
    epilog=examples(
        "clustertune merge tcp://10.0.0.5:8786 --dry-run",
        "clustertune merge --worker 0 --worker 1 --yes",
    )
)
@cluster_options(manager=True)
@format_option
@worker_option
@click.option(
    "--undo", metavar="N", type=click.IntRange(1), help="Restore N workers in place of "
    "each worker. Requires --cluster."
)  # fmt: skip
@_unavailable
@_wait
@_timeout("30 minutes")
@with_consent
def merge(
    target: Target,
    form: str,
    workers: tuple[str, ...],
    undo: int | None,
    max_unavailable: str,
    consent: Consent,
    **limits: str,
) -> None:
    """Replace the workers of each host by one with all their threads and memory.

    One worker keeps the data of all. The other workers are retired.
    """
    options: dict[str, Any] = _seconds(limits) | {
        "undo": undo,
        "max_unavailable": parse_part("--max-unavailable", max_unavailable),
    }
    change(target, "merge", _on_workers(workers, options), form, consent)


@click.command(
    epilog=examples(
        "clustertune restart tcp://10.0.0.5:8786",
        'clustertune restart --worker 3 --worker 5 --yes --reason "they leak"',
        "clustertune restart --max-unavailable 25% --dry-run",
        "clustertune restart --if-needed --yes",
        "clustertune restart --between-runs --if leak --idle-for 1m --yes",
    )
)
@cluster_options(manager=True)
@format_option
@worker_option
@_unavailable
@click.option(
    "--if-needed", is_flag=True, help="Trim all workers first. Restart only workers "
    "that stay above a memory threshold, or would exceed it in the next run."
)  # fmt: skip
@click.option(
    "--drop-data", is_flag=True, help="Restart all workers at once, and lose all data "
    "in memory. The plan lists the data."
)  # fmt: skip
@_others
@_wait
@_timeout("30 minutes")
@with_schedule_options
@with_consent
def restart(
    target: Target,
    form: str,
    workers: tuple[str, ...],
    max_unavailable: str,
    if_needed: bool,
    drop_data: bool,
    include_other_clients: bool,
    scheduled: ScheduleOptions | None,
    consent: Consent,
    **limits: str,
) -> None:
    """Restart workers one at a time without losing data."""
    if scheduled is not None:
        between_runs(target, workers, form, consent, scheduled)
        return
    for value, option in ((workers, "--worker"), (if_needed, "--if-needed")):
        if drop_data and value:
            raise click.UsageError(
                f"--drop-data restarts all workers: leave {option} out"
            )
    if include_other_clients and not drop_data:
        raise click.UsageError("--include-other-clients needs --drop-data")
    options: dict[str, Any] = _seconds(limits) | {
        "max_unavailable": parse_part("--max-unavailable", max_unavailable),
        "if_needed": if_needed,
        "drop_data": drop_data,
        "include_other_clients": include_other_clients,
    }
    change(target, "restart", _on_workers(workers, options), form, consent)


@click.command(
    epilog=examples(
        "clustertune scale 4 tcp://10.0.0.5:8786",
        "clustertune scale 16 --cluster gateway:prod.1 --yes",
    )
)
@click.argument("n_workers", type=click.IntRange(1))
@cluster_options(manager=True)
@format_option
@_wait
@_timeout("10 minutes")
@with_consent
def scale(
    target: Target, n_workers: int, form: str, consent: Consent, **limits: str
) -> None:
    """Scale to N_WORKERS workers; leaving workers move their data to the others.

    A command with an address can only remove workers. If workers are missing, it prints
    the `dask worker` line that starts them, and exits with code 4. With --cluster the
    manager of the cluster starts workers.
    """
    options = {"n_workers": n_workers, **_seconds(limits)}
    change(target, "scale", options, form, consent)


@click.command(
    epilog=examples(
        "clustertune trim tcp://10.0.0.5:8786",
        "clustertune trim --worker 3 --yes --quiet",
    )
)
@cluster_options(manager=True)
@format_option
@worker_option
@with_consent
def trim(target: Target, form: str, workers: tuple[str, ...], consent: Consent) -> None:
    """Return unused memory of workers to the operating system."""
    change(target, "trim", _on_workers(workers, {}), form, consent)


def _seconds(limits: Mapping[str, str]) -> dict[str, float | None]:
    return {name: parse_seconds(f"--{name}", text) for name, text in limits.items()}


def _on_workers(workers: tuple[str, ...], options: Mapping[str, Any]) -> dict[str, Any]:
    """Return options for the named workers, or for all workers."""
    return {"workers": list(workers) or None, **options}


# --- data -----------------------------------------------------------------------------


@click.command(
    epilog=examples(
        "clustertune release tcp://10.0.0.5:8786",
        "clustertune release --row 3f2a91c0",
        "clustertune release --client Client-5bb0f8d4 --dry-run",
        "clustertune release --prefix random_sample --include-other-clients --dry-run",
    )
)
@cluster_options()
@format_option
@click.option(
    "--prefix", "prefixes", multiple=True, metavar="NAME", help="Release the keys with "
    "this prefix; may be given several times."
)  # fmt: skip
@click.option(
    "--row", "rows", multiple=True, metavar="ID", callback=distinct_names,
    help="Release this row of the list, also for its clients; may be given several "
    "times. If the keys or the clients of a row have changed, nothing is released.",
)  # fmt: skip
@click.option(
    "--client", "user", metavar="ID", help="Release the rows that only this client "
    "uses. ID is the beginning of its id in the list."
)  # fmt: skip
@_others
@with_consent
def release(
    target: Target,
    form: str,
    prefixes: tuple[str, ...],
    rows: tuple[str, ...],
    user: str | None,
    include_other_clients: bool,
    consent: Consent,
) -> None:
    """Release data in memory, by row, client or prefix.

    Without --row, --client and --prefix, list the data and the clients that use it.
    This command's own client holds no data, so all data belongs to other clients.
    """
    choices = (("--prefix", prefixes), ("--row", rows), ("--client", user))
    given = [option for option, value in choices if value]
    if len(given) > 1:
        raise click.UsageError(f"{given[0]} and {given[1]} do not go together")
    if include_other_clients and (rows or user):
        raise click.UsageError(f"{given[0]} needs no --include-other-clients")
    if not given:
        if click.get_current_context().find_object(PlanOnly) is not None:
            raise click.UsageError("no data is named: give --row, --client or --prefix")
        click.echo(_render_holdings(run(target, _holdings), form))
        return
    options: dict[str, Any] = {"include_other_clients": include_other_clients}
    if user:
        rows = run(target, partial(_rows_of, user))
    if rows:
        options = {"rows": list(rows)}
    change(target, "release", options, form, consent, names=prefixes)


async def _rows_of(user: str, client: Client) -> tuple[str, ...]:
    """Return the rows that only the client uses whose id begins like this."""
    found = await _holdings(client)
    ids = sorted({id for h in found for id in h.others})
    matching = [id for id in ids if id.startswith(user)]
    if len(matching) != 1:
        number = (
            "several clients with data have" if matching else "no client with data has"
        )
        there = names_text(matching or ids, most=20)
        raise click.UsageError(
            f"--client {printable(user)}: {number} an id that begins like this"
            + (f"; give one of {there}" if there else "")
        )
    (id,) = matching
    own = [h for h in found if h.row and h.others == (id,) and not (h.shared or h.mine)]
    staying = [h for h in found if id in h.others and h not in own]
    if unlisted := sum(h.keys for h in staying if not h.row):
        text = f"{plural(unlisted, 'key')} of {printable(id)} stay, because they have "
        text += "no row id; use --prefix with --include-other-clients"
        click.echo(text, err=True)
    if shared := sum(h.keys for h in staying if h.row):
        text = f"{plural(shared, 'key')} of {printable(id)} stay, which others use, too"
        click.echo(f"{text}; --row releases them", err=True)
    if not own:
        raise RefusedError(f"no data is used by {printable(id)} alone")
    return tuple(h.row for h in own)


async def _holdings(client: Client) -> tuple[KeyGroup, ...]:
    from clustertune.monitor import inquiry, monitor

    await monitor.install_plugin(client, await monitor.identify(client))
    found = [h for h in await inquiry.holdings(client, ()) if h.keys]
    return tuple(sorted(found, key=lambda h: -h.nbytes))


def _render_holdings(holdings: tuple[KeyGroup, ...], form: str) -> str:
    if form == "json":
        rows = [asdict(h) for h in holdings]
        return json.dumps({"schema_version": 1, "holdings": rows})
    if not holdings:
        return "no data is in memory"
    table = [
        [
            h.row or "-",
            printable(h.prefix or "(others)"),
            h.keys,
            bytes_text(h.nbytes),
            h.scattered,
            names_text([*h.others, *(f"{kind} {name}" for kind, name in h.shared)]),
        ]
        for h in holdings
    ]
    headers = ["row", "prefix", "keys", "bytes", "scattered", "used by"]
    style = "html" if form == "html" else "simple"
    return tabulate(table, headers=headers, tablefmt=style)


def _checked(
    check: Callable[[str, Any], Any],
) -> Callable[[click.Context, click.Parameter, Any], Any]:
    """Return a callback that checks an option like the argument of ``prepare``."""

    def callback(_context: click.Context, option: click.Parameter, value: Any) -> Any:
        if value is None:
            return None
        with usage_errors(ValueError):
            return check(option.opts[0], value)

    return callback


def _number_or_fit(name: str, text: str) -> int | str | None:
    return arguments.workers_wanted(name, int(text) if text.isdecimal() else text)


def _known_workload(_name: str, text: str) -> str:
    return libraries.choose(text).name


# Each option has the name of an argument of prepare.
_PREPARE = (
    click.option("--workload", "estimator", metavar="NAME",
        callback=_checked(_known_workload), shell_complete=workload_names,
        help="Prepare for this library, like xgboost."),
    click.option("--n-workers", metavar="N", callback=_checked(_number_or_fit),
        help="Scale to N workers first, or to `fit`: as many as the fit's memory "
        "needs. Requires --cluster."),
    click.option("--restart", type=click.Choice(["auto", "all"]), help="First restart "
        "leaking workers, or all workers, without losing data."),
    click.option("--merge-workers", is_flag=True, help="First replace the workers of "
        "each host by one, without losing data."),
    click.option("--rechunk", type=click.IntRange(1), metavar="N", help="Rechunk the "
        "training data into N partitions. By default only if needed."),
    click.option("--no-rechunk", is_flag=True, help="Never rechunk. Fail if the fit "
        "needs it."),
    click.option("--to", type=click.Choice(["array"]), help="Convert DataFrames to "
        "arrays."),
    click.option("--dtype", metavar="TYPE", callback=_checked(arguments.number_type),
        help="Convert the features to a number type, like float32."),
    click.option("--persist/--no-persist", default=None, help="Load lazy data, or "
        "leave it lazy. By default as the workload needs it."),
    click.option("--shuffle", type=click.Choice(["rows", "partitions"]),
        help="Put rows, or whole partitions, in random order."),
    click.option("--random-state", type=click.IntRange(0), default=0, metavar="SEED",
        help="Set the seed of the shuffle."),
    click.option("--sort", is_flag=True, help="Sort rows by query group (--qid)."),
    click.option("--on-low-memory", type=click.Choice(["report", "raise"]),
        default="report", show_default=True, help="Report that the fit needs more "
        "memory, or refuse to prepare."),
    click.option("--timeout", metavar="TIME", callback=_checked(arguments.duration),
        default="10 minutes", show_default=True, help="Limit the time of the whole "
        "command."),
)  # fmt: skip


def _companion(option: str) -> Callable[[Command], Command]:
    return click.option(
        option, metavar="NAME", shell_complete=dataset_names,
        help="Use this published data set.",
    )  # fmt: skip


def _with_prepare_options(command: Command) -> Command:
    for option in reversed(_PREPARE):
        command = option(command)
    return command


@click.command(
    epilog=examples(
        "clustertune prepare --dataset X --dataset y --workload xgboost",
        "clustertune prepare --dataset X --dataset y --keep-old {name}-old --dry-run",
        "clustertune prepare --dataset X --dataset y --restart auto --yes",
    )
)
@cluster_options(manager=True)
@format_option
@click.option(
    "--dataset", "datasets", multiple=True, required=True, metavar="NAME",
    callback=distinct_names, shell_complete=dataset_names, help="Prepare this "
    "published data set: first X, then y, and so on."
)  # fmt: skip
@_companion("--sample-weight")
@_companion("--qid")
@_companion("--base-margin")
@_companion("--init-score")
@click.option(
    "--eval-set", nargs=2, multiple=True, metavar="X y", shell_complete=dataset_names,
    help="Use these two published data sets; may be given several times.",
)  # fmt: skip
@click.option(
    "--keep-old", metavar="NAME", help="Publish the old collections under this name. "
    "A name for several collections contains {name}, like {name}-old. By default the "
    "old collections are released."
)  # fmt: skip
@worker_option
@_with_prepare_options
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
    """Prepare published data for a fit; its names then refer to the new data.

    All workers get an even share of rows, and companions stay with their rows. All
    names change at once, or none does.
    """
    if no_rechunk and rechunk:
        raise click.UsageError("--rechunk and --no-rechunk exclude each other")
    options["rechunk"] = False if no_rechunk else rechunk or True
    options["shuffle"] = options["shuffle"] or False
    options["restart"] = {None: False, "auto": "auto", "all": True}[restart]
    options["workers"] = list(workers) or None
    change(target, "prepare", options, form, consent, names=datasets)
