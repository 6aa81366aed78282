"""The command line: ``clustertune VERB [ADDRESS]``, also as ``dask tune VERB``.

Exit codes: 0 clean or done, 1 findings, or what was asked for will not work or was not
found,
2 usage, 3 the cluster was not reached, 4 refused, 5 failed or done in part,
130 interrupted.
"""

from __future__ import annotations

import asyncio
import difflib
import json
import sys
from collections.abc import Awaitable, Callable, Iterable, Iterator
from contextlib import AsyncExitStack, contextmanager
from dataclasses import asdict
from datetime import datetime
from pathlib import Path
from typing import Any, TypeVar

import click
import dask
from distributed import Client
from tabulate import tabulate

from clustertune import (
    __version__,
    adapters,
    arguments,
    checks,
    diagnosis,
    errors,
    monitor,
    operations,
    resetting,
    settings,
    workloads,
)
from clustertune.adapters import saturn
from clustertune.doctor import examine
from clustertune.model import Finding, Holding, Severity
from clustertune.report import Report
from clustertune.watcher import Monitor
from clustertune.wording import bytes_text, names_text, plural, printable

T = TypeVar("T")

UNREACHED, REFUSED, FAILED = 3, 4, 5
CONNECT = 10  # seconds
ATTACH = 60  # seconds: a manager is asked, and may forward a port

_address = click.argument("address", required=False)
_file = click.option(
    "--scheduler-file", type=click.Path(exists=True, dir_okay=False), help="Instead of "
    "ADDRESS: the file that `dask scheduler --scheduler-file` wrote."
)  # fmt: skip


def _kind_and_name(
    _context: click.Context, _parameter: click.Parameter, text: str | None
) -> tuple[str, str] | None:
    """Where a cluster is to be attached to, checked before anything is asked."""
    if text is None:
        return None
    kind, _, name = text.partition(":")
    kinds = adapters.attachable()
    if kind not in kinds or not name:
        allowed = ", ".join(f"{k}:NAME" for k in sorted(kinds))
        raise click.BadParameter(f"{text!r} is none of {allowed}")
    return kind, name


_cluster = click.option(
    "--cluster", metavar="KIND:NAME", callback=_kind_and_name, help="Instead of "
    "ADDRESS: a running cluster of a manager, which can start workers too: "
    "gateway:NAME, coiled:NAME or kubernetes:NAME."
)  # fmt: skip
_format = click.option(
    "-f", "--format", "form", type=click.Choice(["text", "json", "html"]),
    default="text", show_default=True, help="Form of the output.",
)  # fmt: skip


# Dask lists a command under the command's own name: `dask tune`
@click.group("tune", context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__)
def main() -> None:
    """Get a Dask cluster ready for machine-learning training, and keep it so.

    ADDRESS is a scheduler's, like tcp://10.0.0.5:8786; without it, Dask's configuration
    (scheduler-address, DASK_SCHEDULER_ADDRESS) says which.
    """


@main.command()
@click.option("--parquet", type=click.Path(), help="A Parquet file or folder to use.")
@click.option("--label", help="The column of it that is to be predicted.")
@click.option(
    "--workers", type=click.IntRange(2), default=2, show_default=True, help="How many "
    "workers the cluster is scaled to."
)  # fmt: skip
def demo(parquet: str | None, label: str | None, workers: int) -> None:
    """Train before and after `prepare`, on a cluster of this machine's own."""
    from clustertune import demo as code  # needs the extra "demo"
    from clustertune.demo_data import DemoError

    if (parquet is None) != (label is None):
        raise click.UsageError("--parquet and --label go together")
    with _told():
        try:
            code.run(parquet, label, workers, click.echo)
        except DemoError as error:
            raise click.UsageError(str(error)) from error


@main.command()
@_address
@_file
@_format
def doctor(address: str | None, scheduler_file: str | None, form: str) -> None:
    """What of clustertune will work on this cluster, and what is in the way."""
    found = _run(address, scheduler_file, examine)
    click.echo(_render(found, form))
    sys.exit(0 if found.healthy else 1)


@main.command()
@_address
@_file
@_format
def report(address: str | None, scheduler_file: str | None, form: str) -> None:
    """The report of the last `prepare` on this cluster."""
    found = _run(address, scheduler_file, monitor.last_report)
    if found is None:
        text = "nothing was prepared on this cluster since its scheduler started"
        click.echo(f"clustertune: {text}", err=True)
        sys.exit(1)
    click.echo(_render(found, form))


_fail_on = click.option(
    "--fail-on", type=click.Choice(["info", "warning", "critical", "never"]),
    default="critical", show_default=True, help="End with exit code 1 if something is "
    "found that is at least so bad."
)  # fmt: skip
_workload = click.option("--workload", help="What will train, like xgboost.")


@main.command()
@_address
@_file
@_format
@_workload
@_fail_on
def check(
    address: str | None,
    scheduler_file: str | None,
    form: str,
    workload: str | None,
    fail_on: str,
) -> None:
    """What stands between this cluster and a fast, safe training run."""
    profile = _known_workload(workload)

    async def look(client: Client) -> Report:
        found: Report = await diagnosis.check(client, workload=profile)  # type: ignore[misc]
        return found

    found = _run(address, scheduler_file, look)
    click.echo(_render(found, form))
    sys.exit(_severe(found.found, fail_on))


@main.command()
@_address
@_file
@_workload
@click.option(
    "--interval", metavar="TIME", help="Between two looks, like 5s; by default as often"
    " as workers tell of themselves."
)  # fmt: skip
@click.option(
    "--for", "duration", metavar="TIME", help="How long; until ^C by default."
)
@click.option(
    "-f", "--format", "form", type=click.Choice(["text", "json"]), default="text",
    show_default=True, help="Form of the output: a line for each event.",
)  # fmt: skip
def watch(
    address: str | None,
    scheduler_file: str | None,
    workload: str | None,
    interval: str | None,
    duration: str | None,
    form: str,
) -> None:
    """Say when a condition begins or ends, for as long as it runs."""
    profile = _known_workload(workload)
    seconds = _duration("--for", duration)

    async def follow(client: Client) -> None:
        every = _duration("--interval", interval)
        async with Monitor(client, interval=every, workload=profile) as monitor:
            try:
                await asyncio.wait_for(_print_events(monitor, form), seconds)
            except asyncio.TimeoutError:
                return  # as long as was asked for

    _run(address, scheduler_file, follow)


async def _print_events(monitor: Monitor, form: str) -> None:
    printed = 0
    async for snapshot in monitor:
        if not printed and form == "text":
            n = len(snapshot.workers)
            click.echo(
                f"watching {printable(snapshot.scheduler)}, {plural(n, 'worker')}"
            )
            printed = 1
        for event in monitor.take_events():
            if form == "json":
                click.echo(json.dumps({"schema_version": 1} | asdict(event)))
            else:
                at = (
                    datetime.fromtimestamp(event.time).astimezone().strftime("%H:%M:%S")
                )
                click.echo(f"{at} {printable(str(event))}")


@main.command()
@click.argument("name", required=False)
def explain(name: str | None) -> None:
    """The page of a check; without NAME what checks there are."""
    known = checks.available()
    if name is None:
        rows = [[n, checks.title(module)] for n, module in known.items()]
        click.echo(tabulate(rows, headers=["check", "finds"], maxcolwidths=[None, 70]))
        return
    if name not in known:
        near = difflib.get_close_matches(name, known, n=1)
        hint = f"; did you mean {near[0]}?" if near else ""
        raise click.UsageError(
            f"there is no check {name!r}{hint} `clustertune explain` lists them"
        )
    click.echo(checks.page(name))


_worker = click.option(
    "--worker", "workers", multiple=True, metavar="NAME", help="A worker's name or "
    "address; may be given several times. All by default."
)  # fmt: skip
_dry_run = click.option(
    "--dry-run", is_flag=True, help="Show what would be done, and change nothing."
)
_yes = click.option("-y", "--yes", is_flag=True, help="Do not ask.")


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
_timeout = click.option(
    "--timeout", metavar="TIME", default="30 minutes", show_default=True, help="For "
    "everything together."
)  # fmt: skip


@main.command()
@_address
@_file
@_cluster
@_format
@_worker
@click.option("--nthreads", type=click.IntRange(1), help="Threads of each worker.")
@click.option("--memory-limit", metavar="SIZE", help="Of each worker, like 4GiB.")
@click.option(
    "--env", "variables", multiple=True, metavar="NAME=VALUE", help="A variable, set "
    "before the worker's process starts; may be given several times."
)  # fmt: skip
@_unavailable
@_wait
@_timeout
@_dry_run
@_yes
def resize(
    address: str | None,
    scheduler_file: str | None,
    cluster: tuple[str, str] | None,
    form: str,
    workers: tuple[str, ...],
    max_unavailable: str,
    nthreads: int | None,
    memory_limit: str | None,
    variables: tuple[str, ...],
    wait: str,
    timeout: str,
    dry_run: bool,
    yes: bool,
) -> None:
    """Give workers other threads, memory or variables, without losing data."""
    if not (nthreads or memory_limit or variables):
        raise click.UsageError("give --nthreads, --memory-limit or --env")
    odd = [v for v in variables if not v.partition("=")[1]]
    if odd:
        raise click.UsageError(f"--env {odd[0]} is not of the form NAME=VALUE")
    try:
        arguments.nbytes("--memory-limit", memory_limit)
    except ValueError as error:
        raise click.UsageError(str(error)) from error
    options = {
        "nthreads": nthreads,
        "memory_limit": memory_limit,
        "env": dict(v.split("=", 1) for v in variables) or None,
        "max_unavailable": _part("--max-unavailable", max_unavailable),
        "wait": _duration("--wait", wait),
        "timeout": _duration("--timeout", timeout),
    }
    target = (address, scheduler_file)
    _change(target, operations.resize, workers, form, dry_run, yes, cluster, **options)


@main.command()
@_address
@_file
@_cluster
@_format
@_worker
@_unavailable
@click.option(
    "--drop-data", is_flag=True, help="Restart all workers at once, and lose all "
    "data in memory: it is listed first."
)  # fmt: skip
@_others
@_wait
@_timeout
@_dry_run
@_yes
def restart(
    address: str | None,
    scheduler_file: str | None,
    cluster: tuple[str, str] | None,
    form: str,
    workers: tuple[str, ...],
    max_unavailable: str,
    drop_data: bool,
    include_other_clients: bool,
    wait: str,
    timeout: str,
    dry_run: bool,
    yes: bool,
) -> None:
    """Restart workers one after the other, without losing what they hold."""
    if drop_data and workers:
        raise click.UsageError("--drop-data restarts all workers: leave --worker out")
    if include_other_clients and not drop_data:
        raise click.UsageError("--include-other-clients is for --drop-data")
    options: dict[str, Any] = {"wait": _duration("--wait", wait)}
    options["timeout"] = _duration("--timeout", timeout)
    options["max_unavailable"] = _part("--max-unavailable", max_unavailable)
    options["drop_data"] = drop_data
    options["include_other_clients"] = include_other_clients
    target = (address, scheduler_file)
    _change(target, operations.restart, workers, form, dry_run, yes, cluster, **options)


@main.command()
@_format
@click.option("--worker-size", metavar="NAME", help="As the manager calls it.")
@click.option("--scheduler-size", metavar="NAME", help="As the manager calls it.")
@click.option("--n-workers", type=click.IntRange(1), help="As many as now by default.")
@click.option("--nthreads", type=click.IntRange(1), help="Threads of each worker.")
@click.option("--save-to", metavar="PATH", help="Where --dataset is saved before.")
@click.option(
    "--dataset", "datasets", multiple=True, metavar="NAME", help="A published data set "
    "that is saved, loaded and published again; may be given several times."
)  # fmt: skip
@click.option("--overwrite", is_flag=True, help="Replace a save that is in PATH.")
@click.option(
    "--include-other-clients", is_flag=True, help="Lose what clients and other names "
    "have in memory."
)  # fmt: skip
@click.option(
    "--timeout", metavar="TIME", default="1 hour", show_default=True, help="For "
    "everything together."
)  # fmt: skip
@_dry_run
@_yes
def reset(form: str, timeout: str, dry_run: bool, yes: bool, **options: Any) -> None:
    """Destroy this cluster of Saturn Cloud's and make it anew, with other sizes.

    Everything in its memory is lost but for data sets that are named with --dataset. It
    is the cluster of the environment in which this is typed.
    """
    options["timeout"] = _duration("--timeout", timeout)
    if not (dry_run or yes or _is_terminal()):
        raise click.UsageError("nobody can be asked here: give --yes, or --dry-run")
    with _told():
        found = _reset(yes, dry_run, options)
    click.echo(_render(found.report, form))
    refused = any(s.status == "refused" for s in found.report.steps)
    sys.exit(REFUSED if refused else 0)


def _reset(yes: bool, dry_run: bool, options: dict[str, Any]) -> resetting.Recreated:
    def confirm(plan: Report) -> bool:
        click.echo(str(plan), err=True)
        return yes or click.confirm("Go on?", err=True)

    with Client(
        saturn.of_this_resource(), set_as_default=False, timeout=CONNECT
    ) as client:
        try:
            found = resetting.reset(
                client, confirm=confirm, dry_run=dry_run, progress=False, **options
            )
        except (ValueError, TypeError) as error:
            text = printable(str(error), longest=2000)
            raise click.UsageError(text) from error
    found.client.close()
    return found


@main.command()
@click.argument("n_workers", type=click.IntRange(1))
@_address
@_file
@_cluster
@_format
@_wait
@_timeout
@_dry_run
@_yes
def scale(
    n_workers: int,
    address: str | None,
    scheduler_file: str | None,
    cluster: tuple[str, str] | None,
    form: str,
    wait: str,
    timeout: str,
    dry_run: bool,
    yes: bool,
) -> None:
    """Have N_WORKERS workers; those that go hand their data to those that stay.

    With an address only workers can be taken away; more are started where the cluster
    was made, or with --cluster.
    """
    options = {"wait": _duration("--wait", wait)}
    options["timeout"] = _duration("--timeout", timeout)

    def operation(client: Client, **others: Any) -> Any:
        del others["workers"]  # which go is decided by what they hold
        return operations.scale(client, n_workers, **others)

    target = (address, scheduler_file)
    _change(target, operation, (), form, dry_run, yes, cluster, **options)


@main.command()
@_address
@_file
@_cluster
@_format
@_worker
@_dry_run
@_yes
def trim(
    address: str | None,
    scheduler_file: str | None,
    cluster: tuple[str, str] | None,
    form: str,
    workers: tuple[str, ...],
    dry_run: bool,
    yes: bool,
) -> None:
    """Have workers give memory back that they do not need; nothing is at risk."""
    target = (address, scheduler_file)
    _change(target, operations.trim, workers, form, dry_run, yes, cluster)


@main.command()
@_address
@_file
@_format
@click.option(
    "--prefix", "prefixes", multiple=True, metavar="NAME", help="Of keys to let go, as "
    "they are listed; may be given several times."
)  # fmt: skip
@_others
@_dry_run
@_yes
def release(
    address: str | None,
    scheduler_file: str | None,
    form: str,
    prefixes: tuple[str, ...],
    include_other_clients: bool,
    dry_run: bool,
    yes: bool,
) -> None:
    """Let go of data in memory, by the prefix of its keys.

    Without --prefix: list what is there, and who wants it. A command holds no data of
    its own, so whatever it lets go of is that of other clients.
    """

    def operation(client: Client, **others: Any) -> Any:
        del others["workers"]
        return operations.release(
            client, *prefixes, include_other_clients=include_other_clients, **others
        )

    if not prefixes:
        listed = _run(address, scheduler_file, _holdings)
        click.echo(_render_holdings(listed, form))
        return
    _change((address, scheduler_file), operation, (), form, dry_run, yes)


async def _holdings(client: Client) -> tuple[Holding, ...]:
    await monitor.open_door(client, await monitor.identify(client))
    found = [h for h in await monitor.holdings(client, ()) if h.keys]
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


def _change(
    target: tuple[str | None, str | None],
    operation: Callable[..., Any],
    workers: tuple[str, ...],
    form: str,
    dry_run: bool,
    yes: bool,
    cluster: tuple[str, str] | None = None,
    **options: Any,
) -> None:
    """Show the plan, ask, carry it out, and end with the exit code of what came."""

    def call(client: Client, dry: bool) -> Awaitable[Report]:
        names = list(workers) or None
        work: Awaitable[Report] = operation(
            client, workers=names, dry_run=dry, **options
        )
        return _told_usage(work)

    if dry_run or not yes:
        plan = _run(*target, lambda client: call(client, True), cluster)
        refused = [s for s in plan.steps if s.status == "refused"]
        if dry_run or refused:
            click.echo(_render(plan, form))
            sys.exit(REFUSED if refused else 0)
        click.echo(str(plan), err=True)
        _ask()
    done = _run(*target, lambda client: call(client, False), cluster)
    click.echo(_render(done, form))
    sys.exit(0 if done.status in ("done", "fine") else FAILED)


async def _told_usage(work: Awaitable[Report]) -> Report:
    """A worker that is not there was typed wrongly."""
    try:
        return await work
    except ValueError as error:
        raise click.UsageError(printable(str(error), longest=2000)) from error


def _ask() -> None:
    if not _is_terminal():
        raise click.UsageError("nobody can be asked here: give --yes, or --dry-run")
    if not click.confirm("Go on?", err=True):
        click.echo("nothing was changed", err=True)
        sys.exit(REFUSED)


def _is_terminal() -> bool:
    return sys.stdin.isatty()


def _known_workload(name: str | None) -> str | None:
    try:
        workloads.choose(name)
    except ValueError as error:
        raise click.UsageError(str(error)) from error
    return name


def _part(option: str, text: str) -> float:
    try:
        return arguments.part(option, text)
    except ValueError as error:
        raise click.UsageError(str(error)) from error


def _duration(option: str, text: str | None) -> float | None:
    try:
        return None if text is None else arguments.duration(option, text)
    except ValueError as error:
        raise click.UsageError(str(error)) from error


def _severe(found: Iterable[Finding], fail_on: str) -> int:
    """1 where a finding is at least as bad as was asked about; unknown is not."""
    if fail_on == "never":
        return 0
    return int(any(f.severity >= Severity[fail_on] for f in found))


def _render(thing: Any, form: str) -> str:
    if form == "json":
        return str(thing.to_json())
    return str(thing._repr_html_()) if form == "html" else str(thing)


def _run(
    address: str | None,
    scheduler_file: str | None,
    work: Callable[[Client], Awaitable[T]],
    cluster: tuple[str, str] | None = None,
) -> T:
    """Connect, work, and turn what goes wrong into one line and an exit code."""
    if cluster and (address or scheduler_file):
        raise click.UsageError("--cluster stands instead of ADDRESS, not beside it")
    target = address or dask.config.get("scheduler-address", None)
    if not cluster and target is None and scheduler_file is None:
        raise click.UsageError(
            "which cluster? give ADDRESS or --scheduler-file, or set "
            "DASK_SCHEDULER_ADDRESS"
        )
    try:
        settings.of_checks()
    except ValueError as error:
        raise click.UsageError(str(error)) from error
    with _told():
        if cluster:
            return asyncio.run(_attached(*cluster, work))
        return asyncio.run(_connected(target, scheduler_file, work))


async def _connected(
    target: str | None,
    scheduler_file: str | None,
    work: Callable[[Client], Awaitable[T]],
) -> T:
    try:
        where = _address_in(scheduler_file) if scheduler_file else target
        client = Client(where, asynchronous=True, timeout=CONNECT, set_as_default=False)
    except (OSError, ValueError, LookupError, TypeError) as error:
        raise _unreached(scheduler_file or target, error) from error
    try:
        await client
    # what Dask raises for an address of tls:// without certificates is a TypeError
    except (OSError, asyncio.TimeoutError, ValueError, TypeError) as error:
        await client.close()
        raise _unreached(scheduler_file or target, error) from error
    async with client:
        return await work(client)


async def _attached(kind: str, name: str, work: Callable[[Client], Awaitable[T]]) -> T:
    async with AsyncExitStack() as stack:
        try:
            attaching = adapters.attach(kind, name, stack)
            client = await asyncio.wait_for(attaching, ATTACH)
        except ValueError as error:
            raise click.UsageError(printable(str(error), longest=2000)) from error
        except (OSError, asyncio.TimeoutError) as error:
            raise _unreached(f"{kind}:{name}", error) from error
        return await work(client)


def _address_in(scheduler_file: str) -> str:
    return str(json.loads(Path(scheduler_file).read_text())["address"])


def _unreached(where: str | None, error: Exception) -> errors.ConnectionLostError:
    return errors.ConnectionLostError(f"no scheduler answers at {where}: {error!r}")


@contextmanager
def _told() -> Iterator[None]:
    """Errors that a user can mend come out as one line; others are bugs."""
    try:
        yield
    except KeyboardInterrupt:
        click.echo("interrupted", err=True)
        sys.exit(130)
    except errors.ClustertuneError as error:
        click.echo(f"clustertune: {printable(str(error), longest=2000)}", err=True)
        sys.exit(_code(error))


def _code(error: errors.ClustertuneError) -> int:
    if isinstance(error, errors.ConnectionLostError):
        return UNREACHED
    refused = (
        errors.AlignmentError,
        errors.CapacityError,
        errors.LeaseHeldError,
        errors.NoWorkersError,
        errors.RefusedError,
        errors.ScaleError,
        errors.VersionMismatchError,
    )
    return REFUSED if isinstance(error, refused) else FAILED
