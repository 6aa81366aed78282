"""Commands that change nothing: ``check``, ``watch``, ``report``, ``dashboard``, ..."""

from __future__ import annotations

import asyncio
import difflib
import json
import sys
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import datetime
from functools import partial
from html import escape
from typing import Any

import click
from distributed import Client
from tabulate import tabulate

from clustertune import checks
from clustertune.cli import examples
from clustertune.cli.options import Target, cluster_options
from clustertune.cli.running import (
    distinct_names,
    exit_on_error,
    format_option,
    parse_seconds,
    render,
    run,
    usage_errors,
    with_usage_errors,
)
from clustertune.core.model import Severity, Unknown, WorkerSnapshot
from clustertune.core.report import Report
from clustertune.core.wording import names_text, plural, printable
from clustertune.errors import (
    ConnectionLostError,
    TimedOutError,
    VersionMismatchError,
)
from clustertune.integrations import libraries, managers
from clustertune.monitor import connection, inquiry, monitor
from clustertune.operations import check as checking
from clustertune.operations import publishing
from clustertune.operations.watch import Monitor
from clustertune.remote import versions

TIMEOUT = 60.0  # seconds to read versions and names
PORT = 8790
LOOPBACK = "127.0.0.1"
#: compared on all sides, by the names of distributions
PACKAGES = (
    "xgboost",
    "xgboost-cpu",  # the modules of xgboost under another name
    "lightgbm",
    "scikit-learn",
    "dask-ml",
    "torch",
    "tensorflow",
    "pyarrow",
    "bokeh",
)
_REQUIRED = frozenset(("workers", "sending code", "placing data"))

_workload = click.option("--workload", help="Check for this library, like xgboost.")


def _known_workload(name: str | None) -> str | None:
    with usage_errors(ValueError):
        libraries.choose(name)
    return name


# --- check ----------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Feature:
    """One feature of clustertune, and whether it works on a cluster."""

    subject: str
    works: bool | None  # None: does not apply, or unknown
    detail: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Inspection:
    """The findings of all checks, and the features that work on a cluster."""

    address: str
    report: Report
    features: tuple[Feature, ...]
    datasets: tuple[str, ...] = ()

    @property
    def usable(self) -> bool:
        return all(
            f.works is not False for f in self.features if f.subject in _REQUIRED
        )

    def exit_code(self, fail_on: str) -> int:
        """Return 1 if ``prepare`` would not work, or for findings of a severity."""
        if not self.usable:
            return 1
        if fail_on == "never":
            return 0
        return int(any(f.severity >= Severity[fail_on] for f in self.report.found))

    def __str__(self) -> str:
        table = tabulate(self._rows(), maxcolwidths=[24, 4, 66])
        return f"{self.report}\n\n{self._title()}\n{table}"

    def _repr_html_(self) -> str:
        table = tabulate(self._rows(), tablefmt="html")
        title = escape(self._title())
        return f"{self.report._repr_html_()}<p>{title}</p>{table}"

    def to_json(self) -> str:
        """Return the report as JSON, with ``address`` and ``features``."""
        features = [asdict(f) for f in self.features]
        report = json.loads(self.report.to_json())
        return json.dumps(report | {"address": self.address, "features": features})

    def _title(self) -> str:
        return f"Features of clustertune on {printable(self.address)}"

    def _rows(self) -> list[list[str]]:
        marks = {True: "yes", False: "NO", None: ""}
        return [[f.subject, marks[f.works], printable(f.detail)] for f in self.features]


@click.command(
    epilog=examples(
        "clustertune check tcp://10.0.0.5:8786",
        "clustertune check --workload xgboost --fail-on warning -f json",
        "clustertune check --dataset X --dataset y --workload xgboost",
    )
)
@cluster_options()
@format_option
@click.option(
    "--dataset", "datasets", multiple=True, metavar="NAME", callback=distinct_names,
    help="Also check this published data set: first X, then y, then others. Reading it "
    "runs code of its publisher."
)  # fmt: skip
@_workload
@click.option(
    "--fail-on", type=click.Choice(["info", "warning", "critical", "never"]),
    default="critical", show_default=True, help="Exit with code 1 if a finding has at "
    "least this severity."
)  # fmt: skip
def check(
    target: Target,
    form: str,
    datasets: tuple[str, ...],
    workload: str | None,
    fail_on: str,
) -> None:
    """Check this cluster for problems that slow down or break training.

    The result also lists versions of all sides, and which features of clustertune work
    on the cluster. Exit code 1 if `clustertune prepare` would not work there.
    """
    inspecting = partial(inspect, datasets=datasets, workload=_known_workload(workload))
    found = run(target, lambda client: with_usage_errors(inspecting(client)))
    click.echo(render(found, form))
    if found.datasets and not datasets:
        command = target.command("clustertune check --dataset NAME")
        names = names_text(found.datasets)
        click.echo(
            f"to check the rows of published data ({names}): {command}", err=True
        )
    sys.exit(found.exit_code(fail_on))


async def inspect(
    client: Client, datasets: Sequence[str] = (), workload: str | None = None
) -> Inspection:
    """Read versions without sending code; if they allow it, run all checks.

    ``datasets`` are names of published data: X, y, and others with the same rows.
    ``workload`` is the library that will train. Raise TimedOutError if the scheduler
    does not answer, or an error of :func:`~clustertune.operations.publishing.present`.
    """
    try:
        reading = _read(client)
        identity, sides, published = await asyncio.wait_for(reading, TIMEOUT)
    except asyncio.TimeoutError:
        raise TimedOutError(
            f"the scheduler did not answer within {TIMEOUT:.0f} s; see its log, or "
            "check again when it is less busy"
        ) from None
    objections = sides.objections()
    features = [*_cluster_features(client, identity, sides), *_version_features(sides)]
    features.append(
        Feature(
            subject="sending code",
            works=not objections,
            detail="; ".join(objections[:3]) or "all sides have suitable versions",
        )
    )
    try:
        await monitor.open_door(client, identity)  # before data sets are unpickled
        data = await publishing.present(client, datasets)
        diagnosed: Any = checking.check(client, *data, estimator=workload)
        report: Report = await diagnosed
        snapshot, _ = await monitor.look(client, [])
        features += [_placing(snapshot.workers), _limits(snapshot.workers)]
    except VersionMismatchError as error:
        report = Report(status="failed", seconds=0.0, error=str(error))
        features.append(Feature(subject="placing data", works=False, detail=str(error)))
    return Inspection(
        address=identity["address"],
        report=report,
        features=tuple(features),
        datasets=tuple(name for name in published if isinstance(name, str)),
    )


async def _read(client: Client) -> tuple[Any, versions.Sides, Any]:
    """Read the cluster, versions, and names of published data; send no code."""
    identity = await monitor.identify(client)
    sides = await versions.read(client, packages=PACKAGES)
    datasets: Any = client.list_datasets()
    return identity, sides, await datasets


def _cluster_features(
    client: Client, identity: Mapping[str, Any], sides: versions.Sides
) -> Iterator[Feature]:
    workers = identity["workers"]
    states = Counter(w["status"] for w in workers.values())
    counts = ", ".join(f"{n} {status}" for status, n in sorted(states.items()))
    threads = plural(sum(w["nthreads"] for w in workers.values()), "thread")
    yield Feature(
        subject="workers",
        works=states["running"] > 0,
        detail=f"{counts or 'none'}; {threads}",
    )
    bare = [address for address, w in workers.items() if w["nanny"] is None]
    why = "they were started with --no-nanny or processes=False"
    yield Feature(
        subject="restarting workers",
        works=not bare,
        detail=f"no nanny: {names_text(bare)}; {why}" if bare else "all have a nanny",
    )
    reason = managers.obstacle(client.cluster, len(workers) + 1)
    yield Feature(
        subject="scaling (n_workers=)",
        works=reason is None,
        detail=reason or f"with {type(client.cluster).__name__}",
    )
    port, bokeh = identity["services"].get("dashboard"), sides.scheduler.get("bokeh")
    detail = f"port {port}" if port else "the scheduler serves none"
    yield Feature(
        subject="dashboard",
        works=bool(port and bokeh),
        detail=detail if bokeh else f"{detail}; the scheduler has no Bokeh",
    )


def _version_features(sides: versions.Sides) -> Iterator[Feature]:
    """Return a feature for each package that some side has."""
    for name in ("python", "dask", "distributed", "cloudpickle", "numpy", *PACKAGES):
        found = {"client": sides.client.get(name)}
        found["scheduler"] = sides.scheduler.get(name)
        counts = Counter(p.get(name) for p in sides.workers.values())
        different = {*found.values(), *counts}
        if different == {None}:
            continue
        texts = [f"{side} {v or 'without'}" for side, v in found.items()]
        texts += [f"{plural(n, 'worker')} {v or 'without'}" for v, n in counts.items()]
        same = len(different) == 1
        detail = str(sides.client.get(name)) if same else f"differs: {', '.join(texts)}"
        yield Feature(subject=name, works=True if same else None, detail=detail)
    if sides.silent:
        detail = f"{names_text(sides.silent)} did not report their versions"
        yield Feature(subject="silent workers", works=None, detail=detail)


def _placing(workers: tuple[WorkerSnapshot, ...]) -> Feature:
    silent = [w.id for w in workers if isinstance(w.facts, Unknown)]
    detail = "the memory thresholds of all workers are known"
    if silent:
        detail = f"the memory thresholds of {names_text(silent)} are unknown"
    return Feature(subject="placing data", works=not silent, detail=detail)


def _limits(workers: tuple[WorkerSnapshot, ...]) -> Feature:
    unlimited = [w.id for w in workers if not w.memory_limit]
    known = [w.facts for w in workers if not isinstance(w.facts, Unknown)]
    kept = [f for f in known if f.thresholds.spill is None]
    detail = "all workers have a memory limit and spill to disk"
    if unlimited:
        detail = f"no memory limit: {names_text(unlimited)}"
    elif kept:
        detail = f"{plural(len(kept), 'worker')} cannot spill to disk"
    return Feature(subject="memory limits", works=None, detail=detail)


# --- watch, report, explain -----------------------------------------------------------


@click.command(
    epilog=examples(
        "clustertune watch tcp://10.0.0.5:8786",
        "clustertune watch --for 1h -f json > events.jsonl",
    )
)
@cluster_options()
@_workload
@click.option(
    "--interval", metavar="TIME", help="Read the cluster this often, like 5s. By "
    "default at the interval of heartbeats."
)  # fmt: skip
@click.option(
    "--for", "duration", metavar="TIME", help="End after this time. By default with ^C."
)
@click.option(
    "-f", "--format", "form", type=click.Choice(["text", "json"]), default="text",
    show_default=True, help="Print each event as a line of this form.",
)  # fmt: skip
def watch(
    target: Target,
    workload: str | None,
    interval: str | None,
    duration: str | None,
    form: str,
) -> None:
    """Print when a condition begins or ends.

    The command watches workers, and growth of memory from run to run. Only `clustertune
    check` and `clustertune prepare` read clients, tasks, names and data.
    """
    profile = _known_workload(workload)
    seconds = parse_seconds("--for", duration)

    async def follow(client: Client) -> None:
        every = parse_seconds("--interval", interval)
        async with Monitor(client, interval=every, estimator=profile) as monitoring:
            try:
                await asyncio.wait_for(_print_events(monitoring, form), seconds)
            except asyncio.TimeoutError:
                return  # the time of --for is over

    run(target, follow)


async def _print_events(monitoring: Monitor, form: str) -> None:
    begun = False
    async for snapshot in monitoring:
        if not begun and form == "text":
            workers = plural(len(snapshot.workers), "worker")
            click.echo(f"watching {printable(snapshot.scheduler)}, {workers}")
        begun = True
        for event in monitoring.take_events():
            if form == "json":
                click.echo(json.dumps({"schema_version": 1} | asdict(event)))
            else:
                at = datetime.fromtimestamp(event.time).astimezone()
                click.echo(f"{at:%H:%M:%S} {printable(str(event))}")
    raise ConnectionLostError("the scheduler does not answer, so nothing is watched")


@click.command(
    epilog=examples(
        "clustertune report tcp://10.0.0.5:8786",
        "clustertune report -f html > report.html",
    )
)
@cluster_options()
@format_option
def report(target: Target, form: str) -> None:
    """Show the last report of this cluster."""
    found = run(target, inquiry.last_report)
    if found is None:
        text = "this cluster has no report since its scheduler started"
        click.echo(f"clustertune: {text}", err=True)
        sys.exit(1)
    click.echo(render(found, form))


@click.command(
    epilog=examples("clustertune explain", "clustertune explain uneven_rows")
)
@click.argument("name", required=False)
def explain(name: str | None) -> None:
    """Describe a check; without NAME, list all checks."""
    known = checks.available()
    if name is None:
        rows = [[n, checks.title(module)] for n, module in known.items()]
        click.echo(tabulate(rows, headers=["check", "finds"], maxcolwidths=[None, 70]))
        return
    if name not in known:
        near = difflib.get_close_matches(name, known, n=1)
        hint = f"did you mean {near[0]}? " if near else ""
        raise click.UsageError(
            f"there is no check {name!r}; {hint}`clustertune explain` lists them"
        )
    click.echo(checks.page(name))


# --- the page, the demo ---------------------------------------------------------------


@click.command(
    epilog=examples(
        "clustertune dashboard tcp://10.0.0.5:8786",
        "clustertune dashboard --serve --port 8790 tcp://10.0.0.5:8786",
    )
)
@cluster_options(manager=True)
@click.option(
    "--serve", is_flag=True, help="Serve the page from this machine until ^C. Use it "
    "for schedulers without Bokeh, or with another Python."
)  # fmt: skip
@click.option(
    "--port", type=click.IntRange(0, 65535), help="With --serve: listen on this port; "
    f"0 chooses a free one. [default: {PORT}]"
)  # fmt: skip
@click.option(
    "--listen", metavar="ADDRESS", help="With --serve: listen on this address. Anyone "
    f"who reaches it can see the page. [default: {LOOPBACK}]"
)  # fmt: skip
@click.option(
    "--allow-websocket-origin", "origins", metavar="HOST[:PORT]", multiple=True,
    help="With --serve: let this proxy or page show it; may be given several times."
)  # fmt: skip
def dashboard(
    target: Target,
    serve: bool,
    port: int | None,
    listen: str | None,
    origins: tuple[str, ...],
) -> None:
    """Show the page of a cluster, on its dashboard or served from this machine."""
    if not serve:
        from clustertune.dashboard.link import add_page

        for name, value in (
            ("--port", port),
            ("--listen", listen),
            ("--allow-websocket-origin", origins),
        ):
            if value:
                raise click.UsageError(f"{name} needs --serve")
        click.echo(printable(run(target, add_page).url, longest=2000))
        return
    number = PORT if port is None else port
    run(
        target,
        partial(_serve, port=number, address=listen or LOOPBACK, origins=origins),
    )


async def _serve(
    client: Client, *, port: int, address: str, origins: tuple[str, ...]
) -> None:
    from clustertune.dashboard import server

    scheduler: Any = client.scheduler
    connect = partial(
        connection.connected,
        scheduler.address,
        security=client.security,
        seconds=server.CONNECT,
    )
    source = server.Source(connect)
    try:
        async with server.serving(
            source, port=port, address=address, origins=origins
        ) as url:
            click.echo(f"{url} shows the cluster until ^C")
            await asyncio.Event().wait()
    except OSError as error:
        raise click.UsageError(
            f"cannot listen on {address}:{port} ({error}); give another --port, or "
            "0 for a free one"
        ) from error


@click.command(
    epilog=examples(
        "clustertune demo",
        "clustertune demo --parquet flights.parquet --label delay --workers 4",
    )
)
@click.option("--parquet", type=click.Path(), help="Use this Parquet file or folder.")
@click.option("--label", help="Predict this column of it.")
@click.option(
    "--workers", type=click.IntRange(2), default=2, show_default=True, help="Scale the "
    "cluster to this number of workers."
)  # fmt: skip
def demo(parquet: str | None, label: str | None, workers: int) -> None:
    """Train before and after `prepare`, on a local cluster."""
    from clustertune.cli import demo as code  # imports pandas

    if (parquet is None) != (label is None):
        raise click.UsageError("--parquet and --label go together")
    with exit_on_error():
        try:
            code.run(parquet, label, workers, click.echo)
        except code.DemoError as error:
            raise click.UsageError(str(error)) from error
