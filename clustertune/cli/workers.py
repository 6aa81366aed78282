"""Commands that change workers: they show a plan and ask."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

import click

from clustertune.cli import REFUSED, command
from clustertune.cli.completion import dataset_option
from clustertune.cli.options import (
    Consent,
    Target,
    checked,
    cluster_options,
    format_option,
    other_clients_option,
    pairs,
    refuse_options,
    time_option,
    timeout_option,
    usage_errors,
    with_consent,
    with_options,
    worker_option,
)
from clustertune.cli.running import CONNECT, change, exit_on_error, render
from clustertune.cli.scheduling import (
    SCHEDULE,
    schedule_between_runs,
    take_schedule,
)
from clustertune.core import arguments
from clustertune.errors import ConnectionLostError

if TYPE_CHECKING:
    from distributed import Client

    from clustertune.core.report import Report

_unavailable = click.option(
    "--max-unavailable", metavar="N", default="1", show_default=True,
    callback=checked(arguments.part), help="Restart at most N workers at the same "
    "time: a number, or a fraction like 25%."
)  # fmt: skip
_wait = time_option(
    "--wait", default="1 minute", help="Wait at most so long for the running tasks of "
    "each worker."
)  # fmt: skip
_nthreads = click.option(
    "--nthreads", type=click.IntRange(1), help="Set the threads of a worker."
)


def _size(name: str, text: str) -> str:
    arguments.nbytes(name, text)
    return text


def _environment(name: str, texts: tuple[str, ...]) -> dict[str, str] | None:
    return arguments.variables(name, pairs(name, texts, "NAME=VALUE")) or None


# Each option has the name of an argument of the called function.


@command(
    "clustertune resize --nthreads 2 --memory-limit 8GiB",
    "clustertune resize --worker 3 --env OMP_NUM_THREADS=2 --dry-run",
)
@cluster_options(manager=True)
@with_options(
    format_option,
    worker_option,
    _nthreads,
    click.option("--memory-limit", metavar="SIZE", callback=checked(_size),
        help="Set the memory limit of a worker, like 4GiB."),
    click.option("--env", multiple=True, metavar="NAME=VALUE",
        callback=checked(_environment), help="Set a variable of thread pools or "
        "allocators before the worker's process starts; may be given several times."),
    _unavailable,
    _wait,
    timeout_option("30 minutes"),
)  # fmt: skip
@with_consent
def resize(target: Target, form: str, consent: Consent, **options: Any) -> None:
    """Change the threads, memory or variables of workers without losing data."""
    if not (options["nthreads"] or options["memory_limit"] or options["env"]):
        raise click.UsageError("give --nthreads, --memory-limit or --env")
    change(target, "resize", options, form, consent)


@command(
    "clustertune merge tcp://10.0.0.5:8786 --dry-run",
    "clustertune merge --worker 0 --worker 1 --yes",
)
@cluster_options(manager=True)
@with_options(
    format_option,
    worker_option,
    click.option("--undo", metavar="N", type=click.IntRange(1), help="Restore N "
        "workers in place of each worker. Requires --cluster."),
    _unavailable,
    _wait,
    timeout_option("30 minutes"),
)  # fmt: skip
@with_consent
def merge(target: Target, form: str, consent: Consent, **options: Any) -> None:
    """Replace the workers of each host by one with all their threads and memory.

    One worker keeps the data of all. The other workers are retired.
    """
    change(target, "merge", options, form, consent)


@command(
    "clustertune restart tcp://10.0.0.5:8786",
    'clustertune restart --worker 3 --worker 5 --yes --reason "they leak"',
    "clustertune restart --max-unavailable 25% --dry-run",
    "clustertune restart --if-needed --yes",
    "clustertune restart --between-runs --if leak --idle-for 1m --yes",
)
@cluster_options(manager=True)
@with_options(
    format_option,
    worker_option,
    _unavailable,
    click.option("--if-needed", is_flag=True, help="Trim all workers first. Restart "
        "only workers that stay above a memory threshold, or would exceed it in the "
        "next run."),
    click.option("--drop-data", is_flag=True, help="Restart all workers at once, and "
        "lose all data in memory. The plan lists the data."),
    other_clients_option,
    _wait,
    timeout_option("30 minutes"),
    *SCHEDULE,
)  # fmt: skip
@with_consent
def restart(
    target: Target,
    form: str,
    consent: Consent,
    between_runs: bool = False,
    **options: Any,
) -> None:
    """Restart workers one at a time without losing data."""
    when = take_schedule(options, between_runs)
    if between_runs:
        schedule_between_runs(target, form, consent, when)
        return
    if options["drop_data"]:
        text = "--drop-data restarts all workers: leave {} out"
        refuse_options(("workers", "if_needed"), text)
    else:
        refuse_options(("include_other_clients",), "{} needs --drop-data")
    change(target, "restart", options, form, consent)


@command(
    "clustertune scale 4 tcp://10.0.0.5:8786",
    "clustertune scale 16 --cluster gateway:prod.1 --yes",
)
@click.argument("n_workers", type=click.IntRange(1))
@cluster_options(manager=True)
@format_option
@_wait
@timeout_option("10 minutes")
@with_consent
def scale(target: Target, form: str, consent: Consent, **options: Any) -> None:
    """Scale to N_WORKERS workers; leaving workers move their data to the others.

    A command with an address can only remove workers. If workers are missing, it prints
    the `dask worker` line that starts them, and exits with code 4. With --cluster the
    manager of the cluster starts workers.
    """
    change(target, "scale", options, form, consent)


@command(
    "clustertune trim tcp://10.0.0.5:8786",
    "clustertune trim --worker 3 --yes --quiet",
)
@cluster_options(manager=True)
@format_option
@worker_option
@with_consent
def trim(target: Target, form: str, consent: Consent, **options: Any) -> None:
    """Return unused memory of workers to the operating system."""
    change(target, "trim", options, form, consent)


# --- all workers of a Saturn Cloud cluster --------------------------------------------


@command(
    "clustertune recreate --worker-size 2xlarge --dry-run",
    "clustertune recreate --save-to s3://bucket/saved --dataset X --dataset y",
)
@with_options(
    format_option,
    click.option("--worker-size", metavar="NAME", help="Use this size of Saturn."),
    click.option("--scheduler-size", metavar="NAME", help="Use this size of Saturn."),
    click.option("--n-workers", type=click.IntRange(1), help="Start N workers. By "
        "default as many as now."),
    _nthreads,
    click.option("--save-to", metavar="PATH", help="Save the data of --dataset here."),
    dataset_option("Save, load and publish this data set again; may be given several "
        "times.", shell_complete=None),
    click.option("--overwrite", is_flag=True, help="Replace an existing save in PATH."),
    click.option("--include-other-clients", is_flag=True, help="Also lose data of "
        "other clients, and other published data."),
    timeout_option("1 hour"),
)  # fmt: skip
@with_consent
def recreate(form: str, consent: Consent, **options: Any) -> None:
    """Destroy this Saturn Cloud cluster and create it again with other sizes.

    All data in its memory is lost, except data sets that --dataset names. The command
    uses the cluster of the Saturn environment in which it runs.
    """
    from clustertune.operations import recreating

    def confirm(plan: Report) -> bool:
        if not (consent.quiet and consent.yes):
            click.echo(str(plan), err=True)
        return consent.yes or click.confirm("Go on?", err=True)

    consent.refuse_without_terminal()
    options |= {"confirm": confirm, "dry_run": consent.dry_run, "progress": False}
    with exit_on_error():
        with _saturn_client() as client, usage_errors(ValueError, TypeError):
            found = recreating.recreate_cluster(client, **options)
        found.client.close()
    click.echo(render(found.report, form))
    refused = any(s.status == "refused" for s in found.report.steps)
    sys.exit(REFUSED if refused else 0)


def _saturn_client() -> Client:
    from distributed import Client

    from clustertune.integrations.managers import saturn
    from clustertune.monitor.connection import no_connection_logs

    cluster = saturn.of_this_resource()
    try:
        with no_connection_logs(everything=True):
            return Client(cluster, set_as_default=False, timeout=CONNECT)
    # the type depends on the answer of the server at that address
    except Exception as error:
        raise ConnectionLostError(
            f"the scheduler of the Saturn cluster does not answer: {error!r}"
        ) from error
