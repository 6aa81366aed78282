"""Commands that change data: they show a plan and ask."""

from __future__ import annotations

from dataclasses import asdict
from functools import partial
from typing import TYPE_CHECKING, Any

import click
from tabulate import tabulate

from clustertune.cli import command
from clustertune.cli.completion import dataset_names, dataset_option, workload_option
from clustertune.cli.options import (
    Consent,
    Target,
    checked,
    cluster_options,
    format_option,
    other_clients_option,
    timeout_option,
    with_consent,
    with_options,
    worker_option,
)
from clustertune.cli.running import change, run, text_or_json
from clustertune.core import arguments
from clustertune.core.wording import bytes_text, names_text, plural, printable
from clustertune.errors import RefusedError

if TYPE_CHECKING:
    from distributed import Client

    from clustertune.core.model import KeyGroup


@command(
    "clustertune release tcp://10.0.0.5:8786",
    "clustertune release --row 3f2a91c0",
    "clustertune release --client Client-5bb0f8d4 --dry-run",
    "clustertune release --prefix random_sample --include-other-clients --dry-run",
)
@cluster_options()
@with_options(
    format_option,
    click.option("--prefix", "prefixes", multiple=True, metavar="NAME", help="Release "
        "the keys with this prefix; may be given several times."),
    click.option("--row", "rows", multiple=True, metavar="ID",
        callback=checked(arguments.distinct), help="Release this row of the list, also "
        "for its clients; may be given several times. If the keys or the clients of a "
        "row have changed, nothing is released."),
    click.option("--client", "user", metavar="ID", help="Release the rows that only "
        "this client uses. ID is the beginning of its id in the list."),
    other_clients_option,
)  # fmt: skip
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
        click.echo(_render_holdings(run(target, _holdings), form))
        return
    options: dict[str, Any] = {"include_other_clients": include_other_clients}
    if user:
        rows = run(target, partial(_rows_of, user))
    if rows:
        options = {"rows": list(rows)}
    from clustertune.operations.release import release_data

    change(target, release_data, options, form, consent, names=prefixes)


async def _rows_of(user: str, client: Client) -> tuple[str, ...]:
    """Return the rows that only the client uses whose id begins like this."""
    found = await _holdings(client)
    ids = sorted({id for h in found for id in h.others})
    matching = [id for id in ids if id.startswith(user)]
    if len(matching) != 1:
        number, verb = ("several clients", "have") if matching else ("no client", "has")
        there = names_text(matching or ids, most=20)
        fix = f"; give one of {there}" if there else ""
        raise click.UsageError(
            f"--client {printable(user)}: {number} with data {verb} an id that begins "
            f"like this{fix}"
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
    text = tabulate(table, headers=headers, tablefmt=style)
    rows = [asdict(h) for h in holdings]
    text = text if rows else "no data is in memory"
    return text_or_json(text, form, {"holdings": rows})


def _number_or_fit(name: str, text: str) -> int | str | None:
    return arguments.workers_wanted(name, int(text) if text.isdecimal() else text)


@command(
    "clustertune prepare --dataset X --dataset y --workload xgboost",
    "clustertune prepare --dataset X --dataset y --keep-old {name}-old --dry-run",
    "clustertune prepare --dataset X --dataset y --restart auto --yes",
)
@cluster_options(manager=True)
# Each option has the name of an argument of prepare.
@with_options(
    format_option,
    dataset_option("Prepare this published data set: first X, then y, and so on.",
        required=True),
    *(click.option(companion, metavar="NAME", shell_complete=dataset_names,
        help="Use this published data set.")
        for companion in ("--sample-weight", "--qid", "--base-margin", "--init-score")),
    click.option("--eval-set", nargs=2, multiple=True, metavar="X y",
        shell_complete=dataset_names, help="Use these two published data sets; may be "
        "given several times."),
    click.option("--keep-old", metavar="NAME", help="Publish the old collections under "
        "this name. A name for several collections contains {name}, like {name}-old. "
        "By default the old collections are released."),
    worker_option,
    workload_option("estimator", metavar="NAME", help="Prepare for this library, like "
        "xgboost."),
    click.option("--n-workers", metavar="N", callback=checked(_number_or_fit),
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
    click.option("--dtype", metavar="TYPE", callback=checked(arguments.number_type),
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
    timeout_option("10 minutes"),
)  # fmt: skip
@with_consent
def prepare(
    target: Target,
    form: str,
    datasets: tuple[str, ...],
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
    from clustertune.operations import publishing

    change(
        target,
        publishing.prepare_datasets,
        options,
        form,
        consent,
        names=datasets,
        in_part=True,
    )
