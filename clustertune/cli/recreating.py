"""``recreate``: destroy a Saturn Cloud cluster and create it again."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

import click

from clustertune.cli import REFUSED, examples
from clustertune.cli.options import Consent, with_consent
from clustertune.cli.running import (
    CONNECT,
    distinct_names,
    exit_on_error,
    format_option,
    parse_seconds,
    render,
    usage_errors,
)
from clustertune.errors import ConnectionLostError

if TYPE_CHECKING:
    from distributed import Client

    from clustertune.core.report import Report
    from clustertune.operations.recreating import Recreated


@click.command(
    epilog=examples(
        "clustertune recreate --worker-size 2xlarge --dry-run",
        "clustertune recreate --save-to s3://bucket/saved --dataset X --dataset y",
    )
)
@format_option
@click.option("--worker-size", metavar="NAME", help="Use this size of Saturn.")
@click.option("--scheduler-size", metavar="NAME", help="Use this size of Saturn.")
@click.option(
    "--n-workers", type=click.IntRange(1), help="Start N workers. By default as many "
    "as now."
)  # fmt: skip
@click.option("--nthreads", type=click.IntRange(1), help="Set the threads of a worker.")
@click.option("--save-to", metavar="PATH", help="Save the data of --dataset here.")
@click.option(
    "--dataset", "datasets", multiple=True, metavar="NAME", callback=distinct_names,
    help="Save, load and publish this data set again; may be given several times."
)  # fmt: skip
@click.option("--overwrite", is_flag=True, help="Replace an existing save in PATH.")
@click.option(
    "--include-other-clients", is_flag=True, help="Also lose data of other clients, "
    "and other published data."
)  # fmt: skip
@click.option(
    "--timeout", metavar="TIME", default="1 hour", show_default=True, help="Limit the "
    "time of the whole command."
)  # fmt: skip
@with_consent
def recreate(form: str, timeout: str, consent: Consent, **options: Any) -> None:
    """Destroy this Saturn Cloud cluster and create it again with other sizes.

    All data in its memory is lost, except data sets that --dataset names. The command
    uses the cluster of the Saturn environment in which it runs.
    """
    options["timeout"] = parse_seconds("--timeout", timeout)
    consent.refuse_without_terminal()
    with exit_on_error():
        found = _recreate(consent, options)
    click.echo(render(found.report, form))
    refused = any(s.status == "refused" for s in found.report.steps)
    sys.exit(REFUSED if refused else 0)


def _recreate(consent: Consent, options: dict[str, Any]) -> Recreated:
    from clustertune.operations import recreating

    def confirm(plan: Report) -> bool:
        if not (consent.quiet and consent.yes):
            click.echo(str(plan), err=True)
        return consent.yes or click.confirm("Go on?", err=True)

    with _client() as client, usage_errors(ValueError, TypeError):
        found = recreating.recreate_cluster(
            client,
            confirm=confirm,
            dry_run=consent.dry_run,
            progress=False,
            **options,
        )
    found.client.close()
    return found


def _client() -> Client:
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
