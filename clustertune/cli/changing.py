"""Commands that change workers, or let data go: they show a plan and ask."""

from __future__ import annotations

import json
import sys
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import asdict, dataclass
from typing import Any

import click
from distributed import Client
from tabulate import tabulate

from clustertune.cli.consent import Consent, with_consent
from clustertune.cli.examples import examples
from clustertune.cli.running import (
    FAILED,
    REFUSED,
    format_option,
    pairs,
    part_of,
    rendered,
    run,
    seconds_of,
    told_usage,
)
from clustertune.cli.scheduling import Later, between_runs, with_later
from clustertune.cli.target import Target, on_a_cluster
from clustertune.core import arguments
from clustertune.core.model import Holding
from clustertune.core.report import Report
from clustertune.core.wording import bytes_text, names_text, printable
from clustertune.monitor import inquiry, monitor
from clustertune.operations.calls import Call

Command = Callable[..., None]

worker_option = click.option(
    "--worker", "workers", multiple=True, metavar="NAME", help="A worker's name or "
    "address; may be given several times. All by default."
)  # fmt: skip
_unavailable = click.option(
    "--max-unavailable", metavar="N", default="1", show_default=True, help="How many "
    "workers may be away at the same time: a number, or a part like 25%."
)  # fmt: skip
_others = click.option(
    "--include-other-clients", is_flag=True, help="What other clients want kept, or "
    "is published, may be lost, too."
)  # fmt: skip
_wait = click.option(
    "--wait", metavar="TIME", default="1 minute", show_default=True, help="How long "
    "running tasks of each worker are waited for."
)  # fmt: skip


def _timeout(default: str) -> Callable[[Command], Command]:
    return click.option(
        "--timeout", metavar="TIME", default=default, show_default=True,
        help="For everything together.",
    )  # fmt: skip


@click.command(
    epilog=examples(
        "clustertune resize --nthreads 2 --memory-limit 8GiB",
        "clustertune resize --worker 3 --env OMP_NUM_THREADS=2 --dry-run",
    )
)
@on_a_cluster(manager=True)
@format_option
@worker_option
@click.option("--nthreads", type=click.IntRange(1), help="Threads of each worker.")
@click.option("--memory-limit", metavar="SIZE", help="Of each worker, like 4GiB.")
@click.option(
    "--env", "variables", multiple=True, metavar="NAME=VALUE", help="A variable of "
    "thread pools or allocators, set before the worker's process starts; may be given "
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
    wait: str,
    timeout: str,
    consent: Consent,
) -> None:
    """Give workers other threads, memory or variables, without losing data."""
    if not (nthreads or memory_limit or variables):
        raise click.UsageError("give --nthreads, --memory-limit or --env")
    named = pairs("--env", variables, "NAME=VALUE")
    try:
        arguments.nbytes("--memory-limit", memory_limit)
        env = arguments.variables("--env", named)
    except ValueError as error:
        raise click.UsageError(str(error)) from error
    options: dict[str, Any] = {
        "nthreads": nthreads,
        "memory_limit": memory_limit,
        "env": env or None,
        "max_unavailable": part_of("--max-unavailable", max_unavailable),
        "wait": seconds_of("--wait", wait),
        "timeout": seconds_of("--timeout", timeout),
    }
    change(target, call_of("resize", workers, options), form, consent)


@click.command(
    epilog=examples(
        "clustertune restart tcp://10.0.0.5:8786",
        'clustertune restart --worker 3 --worker 5 --yes --reason "they leak"',
        "clustertune restart --max-unavailable 25% --dry-run",
        "clustertune restart --if-needed --yes",
        "clustertune restart --between-runs --if leak --idle-for 1m --yes",
    )
)
@on_a_cluster(manager=True)
@format_option
@worker_option
@_unavailable
@click.option(
    "--if-needed", is_flag=True, help="Trim the workers first, and restart only the "
    "ones still above a threshold, or brought there by the next run."
)  # fmt: skip
@click.option(
    "--drop-data", is_flag=True, help="Restart all workers at once, and lose all "
    "data in memory: it is listed first."
)  # fmt: skip
@_others
@_wait
@_timeout("30 minutes")
@with_later
@with_consent
def restart(
    target: Target,
    form: str,
    workers: tuple[str, ...],
    max_unavailable: str,
    if_needed: bool,
    drop_data: bool,
    include_other_clients: bool,
    wait: str,
    timeout: str,
    later: Later | None,
    consent: Consent,
) -> None:
    """Restart workers one after the other, without losing what they hold."""
    if later is not None:
        between_runs(target, workers, form, consent, later)
        return
    if drop_data and workers:
        raise click.UsageError("--drop-data restarts all workers: leave --worker out")
    if drop_data and if_needed:
        raise click.UsageError(
            "--drop-data restarts all workers: leave --if-needed out"
        )
    if include_other_clients and not drop_data:
        raise click.UsageError("--include-other-clients is for --drop-data")
    options: dict[str, Any] = {"wait": seconds_of("--wait", wait)}
    options["timeout"] = seconds_of("--timeout", timeout)
    options["max_unavailable"] = part_of("--max-unavailable", max_unavailable)
    options["if_needed"] = if_needed
    options["drop_data"] = drop_data
    options["include_other_clients"] = include_other_clients
    change(target, call_of("restart", workers, options), form, consent)


@click.command(
    epilog=examples(
        "clustertune scale 4 tcp://10.0.0.5:8786",
        "clustertune scale 16 --cluster gateway:prod.1 --yes",
    )
)
@click.argument("n_workers", type=click.IntRange(1))
@on_a_cluster(manager=True)
@format_option
@_wait
@_timeout("10 minutes")
@with_consent
def scale(
    target: Target,
    n_workers: int,
    form: str,
    wait: str,
    timeout: str,
    consent: Consent,
) -> None:
    """Have N_WORKERS workers; those that go hand their data to those that stay.

    With an address only workers can be taken away; more are started where the cluster
    was made, or with --cluster.
    """
    options: dict[str, Any] = {"n_workers": n_workers}  # which go they decide
    options["wait"] = seconds_of("--wait", wait)
    options["timeout"] = seconds_of("--timeout", timeout)
    change(target, Call(verb="scale", options=options), form, consent)


@click.command(
    epilog=examples(
        "clustertune trim tcp://10.0.0.5:8786",
        "clustertune trim --worker 3 --yes --quiet",
    )
)
@on_a_cluster(manager=True)
@format_option
@worker_option
@with_consent
def trim(
    target: Target,
    form: str,
    workers: tuple[str, ...],
    consent: Consent,
) -> None:
    """Have workers give memory back that they do not need; nothing is at risk."""
    change(target, call_of("trim", workers), form, consent)


@click.command(
    epilog=examples(
        "clustertune release tcp://10.0.0.5:8786",
        "clustertune release --prefix random_sample --include-other-clients --dry-run",
    )
)
@on_a_cluster()
@format_option
@click.option(
    "--prefix", "prefixes", multiple=True, metavar="NAME", help="Of keys to let go, as "
    "they are listed; may be given several times."
)  # fmt: skip
@_others
@with_consent
def release(
    target: Target,
    form: str,
    prefixes: tuple[str, ...],
    include_other_clients: bool,
    consent: Consent,
) -> None:
    """Let go of data in memory, by the prefix of its keys.

    Without --prefix: list what is there, and who wants it. A command holds no data of
    its own, so whatever it lets go of is that of other clients.
    """
    if not prefixes:
        if click.get_current_context().find_object(Instead) is not None:
            raise click.UsageError("what is to be let go? give --prefix")
        listed = run(target, _holdings)
        click.echo(_render_holdings(listed, form))
        return
    options = {"include_other_clients": include_other_clients}
    call = Call(verb="release", names=prefixes, options=options)
    change(target, call, form, consent)


async def _holdings(client: Client) -> tuple[Holding, ...]:
    await monitor.open_door(client, await monitor.identify(client))
    found = [h for h in await inquiry.holdings(client, ()) if h.keys]
    return tuple(sorted(found, key=lambda h: -h.nbytes))


def _render_holdings(holdings: tuple[Holding, ...], form: str) -> str:
    if form == "json":
        rows = [asdict(h) for h in holdings]
        return json.dumps({"schema_version": 1, "holdings": rows})
    if not holdings:
        return "no data is in memory"
    table = [
        [
            printable(h.prefix or "(others)"),
            h.keys,
            bytes_text(h.nbytes),
            h.scattered,
            names_text([*h.others, *(f"{kind} {name}" for kind, name in h.shared)]),
        ]
        for h in holdings
    ]
    headers = ["prefix", "keys", "bytes", "scattered", "wanted by"]
    return tabulate(
        table, headers=headers, tablefmt="html" if form == "html" else "simple"
    )


def call_of(
    verb: str, workers: tuple[str, ...], options: Mapping[str, Any] | None = None
) -> Call:
    """A call on some workers; on all where none is named."""
    return Call(
        verb=verb, options={"workers": list(workers) or None, **(options or {})}
    )


@dataclass(frozen=True)
class Instead:
    """What ``plan`` leaves in the context of a command: to be done with its call."""

    do: Callable[[Target, Call, str, Consent], None]


def change(target: Target, call: Call, form: str, consent: Consent) -> None:
    """Make a call; where the command is one of ``plan``, only plan it."""
    instead = click.get_current_context().find_object(Instead)
    if instead is not None:
        instead.do(target, call, form, consent)
    else:
        carry_out(target, call.make, call.refused, form, consent)


def carry_out(
    target: Target,
    make: Callable[..., Awaitable[Report]],
    is_refused: Callable[[Report], bool],
    form: str,
    consent: Consent,
) -> None:
    """Show the plan, ask, carry it out, and end with the exit code of what came.

    ``is_refused`` says of a plan whether nothing of it would be done.
    """

    def made(client: Client, dry: bool) -> Awaitable[Report]:
        return told_usage(make(client, dry_run=dry, progress=consent.progress))

    if consent.dry_run or not consent.yes:
        plan = run(target, lambda client: made(client, True))
        refused = is_refused(plan)
        if consent.dry_run or refused or not plan.steps:
            click.echo(rendered(plan, form))
            sys.exit(REFUSED if refused else 0)
        consent.ask(str(plan))
    done = run(target, lambda client: made(client, False))
    click.echo(rendered(done, form))
    sys.exit(0 if done.status in ("done", "fine") else FAILED)
