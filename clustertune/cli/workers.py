"""Commands that change workers, now or between runs: they show a plan and ask."""

from __future__ import annotations

from collections.abc import Sequence
from time import time
from typing import TYPE_CHECKING, Any

import click

from clustertune.cli.options import (
    Consent,
    Target,
    checked,
    cluster_options,
    command,
    examples,
    form_option,
    format_option,
    other_clients_option,
    refuse_options,
    time_option,
    timeout_option,
    usage_errors,
    with_consent,
    with_options,
    worker_option,
)
from clustertune.cli.running import carry_out, change, run, text_or_json
from clustertune.core import arguments

if TYPE_CHECKING:
    from distributed import Client

    from clustertune.operations.schedules import Schedule

_unavailable = click.option(
    "--max-unavailable", metavar="N", default="1", show_default=True,
    callback=checked(arguments.part), help="Restart at most N workers at the same "
    "time: a number, or a fraction like 25%."
)  # fmt: skip
_wait = time_option(
    "--wait", default="1 minute", help="Wait at most so long for the running tasks of "
    "each worker."
)  # fmt: skip


# Each option has the name of an argument of the called function.


@command(
    "clustertune resize --nthreads 2 --memory-limit 8GiB",
    "clustertune resize --worker 3 --nthreads 4 --dry-run",
)
@cluster_options
@with_options(
    format_option,
    worker_option,
    click.option("--nthreads", type=click.IntRange(1, arguments.LARGEST),
        help="Set the threads of a worker."),
    click.option("--memory-limit", metavar="SIZE", callback=checked(arguments.nbytes),
        help="Set the memory limit of a worker, like 4GiB."),
    _unavailable,
    _wait,
    timeout_option("30 minutes"),
)  # fmt: skip
@with_consent
def resize(target: Target, form: str, consent: Consent, **options: Any) -> None:
    """Change the threads or memory of workers without losing data."""
    if not (options["nthreads"] or options["memory_limit"]):
        raise click.UsageError("give --nthreads or --memory-limit")
    from clustertune.operations import workers

    change(target, workers.resize_workers, options, form, consent)


@command(
    "clustertune merge tcp://10.0.0.5:8786 --dry-run",
    "clustertune merge --worker 0 --worker 1 --yes",
)
@cluster_options
@with_options(
    format_option,
    worker_option,
    _unavailable,
    _wait,
    timeout_option("30 minutes"),
)  # fmt: skip
@with_consent
def merge(target: Target, form: str, consent: Consent, **options: Any) -> None:
    """Replace the workers of each host by one with all their threads and memory.

    One worker keeps the data of all. The other workers are retired.
    """
    from clustertune.operations import workers

    change(target, workers.merge_workers, options, form, consent)


@command(
    "clustertune restart tcp://10.0.0.5:8786",
    'clustertune restart --worker 3 --worker 5 --yes --reason "they leak"',
    "clustertune restart --max-unavailable 25% --dry-run",
    "clustertune restart --if-needed --yes",
)
@cluster_options
@with_options(
    format_option,
    worker_option,
    _unavailable,
    click.option("--if-needed", is_flag=True, help="Trim all workers first. Restart "
        "only workers that stay above a memory threshold, or would exceed it in the "
        "next run."),
    click.option("--end-tasks", is_flag=True, help="End running tasks without losing "
        "data, such as tasks that never end."),
    click.option("--drop-data", is_flag=True, help="Restart the workers at once, and "
        "lose their data and running tasks. The plan lists the data."),
    other_clients_option,
    time_option("--wait", help="Wait at most so long for the running tasks of each "
        "worker. Default: 1 minute; with --end-tasks or --drop-data no time."),
    timeout_option("30 minutes"),
)  # fmt: skip
@with_consent
def restart(target: Target, form: str, consent: Consent, **options: Any) -> None:
    """Restart workers one at a time without losing data."""
    if options["drop_data"]:
        text = "--drop-data keeps no data and restarts at once: leave {} out"
        refuse_options(("if_needed", "end_tasks", "max_unavailable"), text)
    else:
        refuse_options(("include_other_clients",), "{} needs --drop-data")
    if options["end_tasks"]:
        text = "--end-tasks restarts all workers at once: leave {} out"
        refuse_options(("if_needed", "max_unavailable"), text)
    from clustertune.operations import workers

    change(target, workers.restart_workers, options, form, consent)


@command(
    "clustertune scale 4 tcp://10.0.0.5:8786",
    "clustertune scale 2 --yes --quiet",
)
@click.argument("n_workers", type=click.IntRange(1, arguments.LARGEST))
@cluster_options
@format_option
@_wait
@timeout_option("10 minutes")
@with_consent
def scale(target: Target, form: str, consent: Consent, **options: Any) -> None:
    """Scale to N_WORKERS workers; leaving workers move their data to the others.

    A command has only the scheduler's address, so it can only remove workers. If
    workers are missing, it prints the lines that start them, and exits with code 4.
    """
    from clustertune.operations import workers

    change(target, workers.scale, options, form, consent)


@command(
    "clustertune trim tcp://10.0.0.5:8786",
    "clustertune trim --worker 3 --yes --quiet",
)
@cluster_options
@format_option
@worker_option
@with_consent
def trim(target: Target, form: str, consent: Consent, **options: Any) -> None:
    """Return unused memory of workers to the operating system."""
    from clustertune.operations import workers

    change(target, workers.trim_memory, options, form, consent)


# --- restarts between runs ------------------------------------------------------------


def _rendered(found: Schedule | Sequence[Schedule], form: str) -> str:
    schedules = found if isinstance(found, Sequence) else [found]
    text = "\n".join(map(str, schedules)) or "no restart is scheduled"
    return text_or_json(text, form, {"schedules": [s.plain() for s in schedules]})


@click.group(
    epilog=examples(
        "clustertune schedule restart --if-needed --yes tcp://10.0.0.5:8786",
        "clustertune schedule list tcp://10.0.0.5:8786",
        "clustertune schedule cancel b8f0a8 tcp://10.0.0.5:8786",
    )
)
def schedule() -> None:
    """Restart workers in a gap between runs; list or cancel such restarts."""


@schedule.command(
    "restart",
    epilog=examples(
        "clustertune schedule restart --if-needed --idle-for 1m --yes",
        'clustertune schedule restart --cron "0 3 * * *" --expires 30days --yes',
    ),
)
@cluster_options
@with_options(
    form_option,
    worker_option,
    click.option("--if-needed", is_flag=True, help="Restart only workers above a "
        "memory threshold then, or that would exceed it in the next run."),
    click.option("--idle-for", metavar="TIME", default="30s", show_default=True,
        help="Define a gap as this long without a task."),
    click.option("--cron", metavar="EXPRESSION", help="Restart once after each of "
        'these times, like "0 3 * * *".'),
    click.option("--tz", metavar="ZONE", help="Set the time zone of --cron, like "
        "Europe/Berlin. Default: this machine's."),
    click.option("--expires", metavar="TIME", default="12h", show_default=True,
        help="Give up so long after now, or after the first time of --cron."),
)  # fmt: skip
@with_consent
def later(target: Target, form: str, consent: Consent, **options: Any) -> None:
    """Restart workers in the next gap between runs.

    The scheduler waits for the gap, so this command may end.
    """
    from clustertune.operations.schedules import checked_terms, schedule_restart

    with usage_errors(ValueError, TypeError):  # before it connects
        checked_terms(time(), **options)

    async def make(client: Client, *, dry_run: bool, **_: Any) -> Schedule:
        answer: Any = schedule_restart(client, dry_run=dry_run, **options)
        made: Schedule = await answer
        return made

    made = carry_out(target, make, form, consent, lambda _: True, _rendered)
    if not (consent.dry_run or consent.quiet):
        line = target.command(f"clustertune schedule cancel {made.id}")
        click.echo(f"to cancel it: {line}", err=True)


@schedule.command(
    "list", epilog=examples("clustertune schedule list -f json tcp://10.0.0.5:8786")
)
@cluster_options
@form_option
def list_(target: Target, form: str) -> None:
    """List waiting restarts with the reason, and the last ended ones."""
    from clustertune.operations import schedules

    click.echo(_rendered(run(target, schedules.listed), form))


@schedule.command(
    epilog=examples("clustertune schedule cancel b8f0a8 tcp://10.0.0.5:8786")
)
@click.argument("id")
@cluster_options
@form_option
def cancel(target: Target, id: str, form: str) -> None:
    """Cancel the scheduled restart ID. A worker that is restarting comes back first."""
    from clustertune.operations import schedules

    async def end(client: Client) -> Schedule:
        with usage_errors(LookupError):
            return await schedules.cancel(client, id)

    click.echo(_rendered(run(target, end), form))
