"""``size``: recommend a cluster, without connecting to one."""

from __future__ import annotations

import sys
from typing import Any

import click

from clustertune.cli import examples
from clustertune.cli.completion import workload_names
from clustertune.cli.running import exit_on_error, format_option, render, usage_errors

_count = click.IntRange(1)


@click.command(
    epilog=examples(
        "clustertune size --rows 100000000 --columns 50 --workload xgboost",
        "clustertune size --parquet s3://bucket/data --host-memory 64GiB",
    )
)
@click.option("--rows", type=_count, help="Set the rows of the data.")
@click.option(
    "--columns", type=_count, help="Set the columns: features, labels, weights."
)
@click.option(
    "--dtype", help="Set the type of the numbers, like float32; for Parquet data, the "
    "type after loading."
)  # fmt: skip
@click.option(
    "--parquet", metavar="PATH", help="Read rows and columns from the footers of this "
    "file, folder, pattern or URL of Parquet data."
)  # fmt: skip
@click.option(
    "--workload", "estimator", shell_complete=workload_names, help="Recommend for this "
    "library, like xgboost."
)  # fmt: skip
@click.option(
    "--eval-fraction", type=float, default=0.0, show_default=True, metavar="FRACTION",
    help="Add eval sets with this fraction of the rows of the data, like 0.2.",
)  # fmt: skip
@click.option(
    "--host-cpus", type=_count, help="Set the CPUs of one host. By default this "
    "machine's."
)  # fmt: skip
@click.option(
    "--host-memory", metavar="SIZE", help="Set the memory of one host, like 64GiB. By "
    "default this machine's."
)  # fmt: skip
@click.option(
    "--hosts", "n_hosts", type=_count, help="Set the number of available hosts. By "
    "default as many as needed. Exit with code 1 if these hosts are not enough."
)  # fmt: skip
@format_option
def size(form: str, **options: Any) -> None:
    """Recommend a cluster for a fit, and print the line that starts it."""
    from clustertune.operations import sizing

    with exit_on_error(), usage_errors(ValueError):
        found = sizing.recommend_size(**options)
    click.echo(render(found, form))
    sys.exit(0 if found.enough else 1)
