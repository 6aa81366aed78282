"""``size``: recommend a cluster, without connecting to one."""

from __future__ import annotations

import sys

import click

from clustertune.cli import examples
from clustertune.cli.running import exit_on_error, format_option, render, usage_errors
from clustertune.operations import sizing

_count = click.IntRange(1)


@click.command(
    epilog=examples(
        "clustertune size --rows 100000000 --columns 50 --workload xgboost",
        "clustertune size --parquet s3://bucket/data --host-memory 64GiB",
    )
)
@click.option("--rows", type=_count, help="Rows of the data.")
@click.option("--columns", type=_count, help="Columns: features, labels, weights.")
@click.option(
    "--dtype", help="Type of the numbers, like float32; for Parquet data, their type "
    "after loading."
)  # fmt: skip
@click.option(
    "--parquet", metavar="PATH", help="Instead of rows and columns: a file, folder, "
    "pattern or URL of Parquet data. Only footers are read."
)  # fmt: skip
@click.option("--workload", "estimator", help="Training library, like xgboost.")
@click.option(
    "--eval-fraction", type=float, default=0.0, show_default=True, metavar="FRACTION",
    help="Rows of eval sets, as a fraction of the rows of the data, like 0.2.",
)  # fmt: skip
@click.option(
    "--host-cpus", type=_count, help="CPUs of one host; by default this machine's."
)
@click.option(
    "--host-memory", metavar="SIZE", help="Memory of one host, like 64GiB; by default "
    "this machine's."
)  # fmt: skip
@click.option(
    "--hosts", type=_count, help="Number of available hosts; by default as many as "
    "needed. Exit code 1: these hosts are not enough."
)  # fmt: skip
@format_option
def size(
    rows: int | None,
    columns: int | None,
    dtype: str | None,
    parquet: str | None,
    estimator: str | None,
    eval_fraction: float,
    host_cpus: int | None,
    host_memory: str | None,
    hosts: int | None,
    form: str,
) -> None:
    """Recommend a cluster for a fit, and print the line that starts it."""
    with exit_on_error(), usage_errors(ValueError):
        found = sizing.recommend_size(
            rows=rows,
            columns=columns,
            dtype=dtype,
            parquet=parquet,
            estimator=estimator,
            eval_fraction=eval_fraction,
            host_cpus=host_cpus,
            host_memory=host_memory,
            n_hosts=hosts,
        )
    click.echo(render(found, form))
    sys.exit(0 if found.enough else 1)
