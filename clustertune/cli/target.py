"""Which cluster a command means, and how it is reached: options of most commands."""

from __future__ import annotations

import shlex
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import wraps
from typing import Any

import click
import dask
from distributed.security import Security

from clustertune.integrations import managers

_TLS = ("tls_ca_file", "tls_cert", "tls_key")


@dataclass(frozen=True, kw_only=True)
class Target:
    """A cluster, as it was named.

    Attributes
    ----------
    address
        Of its scheduler; None: as Dask's configuration says.
    scheduler_file
        That the scheduler wrote; it stands instead of the address.
    cluster
        Kind and name of a running cluster of a manager, instead of both.
    security
        Certificates that were named; None: as Dask's configuration says.
    """

    address: str | None = None
    scheduler_file: str | None = None
    cluster: tuple[str, str] | None = None
    security: Security | None = None

    def __post_init__(self) -> None:
        if self.cluster and (self.address or self.scheduler_file):
            raise click.UsageError("--cluster stands instead of ADDRESS, not beside it")
        if self.cluster and self.security:
            raise click.UsageError(
                "--cluster brings the manager's own certificates: leave --tls-... out"
            )
        if self.address and self.scheduler_file:
            raise click.UsageError(
                f"--scheduler-file stands instead of ADDRESS ({self.address!r} was "
                "given), not beside it"
            )

    @property
    def _place(self) -> str | None:
        configured = dask.config.get("scheduler-address", None)
        return self.scheduler_file or self.address or configured

    def command(self, line: str) -> str:
        """A command line for the same cluster, to be copied."""
        named = [self.address] if self.address else []
        if self.scheduler_file:
            named = ["--scheduler-file", self.scheduler_file]
        return " ".join([line, *map(shlex.quote, named)])

    def otherwise(self, address: str) -> Target:
        """The same, with that address where neither it nor Dask's configuration has."""
        named = self.cluster or self._place
        return self if named else replace(self, address=address)

    @property
    def place(self) -> str:
        """The file that was given, or the address, or that of Dask's configuration."""
        place = self._place
        if not place:
            raise click.UsageError(
                "which cluster? give ADDRESS or --scheduler-file, or set "
                "DASK_SCHEDULER_ADDRESS"
            )
        return str(place)


def _kind_and_name(
    _context: click.Context, _parameter: click.Parameter, text: str | None
) -> tuple[str, str] | None:
    """Where a cluster is to be attached to, checked before anything is asked."""
    if text is None:
        return None
    kind, _, name = text.partition(":")
    kinds = managers.attachable()
    if kind not in kinds or not name:
        allowed = ", ".join(f"{k}:NAME" for k in sorted(kinds))
        raise click.BadParameter(f"{text!r} is none of {allowed}")
    return kind, name


_file = click.Path(exists=True, dir_okay=False)
_options = (
    click.argument("address", required=False),
    click.option("--scheduler-file", type=_file, help="Instead of ADDRESS: the file "
        "that `dask scheduler --scheduler-file` wrote."),
    click.option("--tls-ca-file", type=_file, help="Certificates (PEM) of who signed "
        "the scheduler's; by default as Dask's configuration says."),
    click.option("--tls-cert", type=_file, help="Certificate (PEM) to show to the "
        "scheduler."),
    click.option("--tls-key", type=_file, help="Private key (PEM) of that "
        "certificate."),
)  # fmt: skip
_cluster = click.option(
    "--cluster", metavar="KIND:NAME", callback=_kind_and_name, help="Instead of "
    "ADDRESS: a running cluster of a manager, which can start workers too: "
    "gateway:NAME, coiled:NAME or kubernetes:NAME."
)  # fmt: skip


def on_a_cluster(
    *, manager: bool = False
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Options that say which cluster; the command is given a :class:`Target` first.

    Parameters
    ----------
    manager
        Whether the cluster may be named as its manager names it.
    """

    def decorate(command: Callable[..., None]) -> Callable[..., None]:
        @wraps(command)
        def call(
            address: str | None,
            scheduler_file: str | None,
            cluster: tuple[str, str] | None = None,
            **others: Any,
        ) -> None:
            files = {name: others.pop(name) for name in _TLS}
            target = Target(
                address=address,
                scheduler_file=scheduler_file,
                cluster=cluster,
                security=_security(**files),
            )
            command(target, **others)

        decorated: Callable[..., None] = call
        for option in reversed((*_options, _cluster) if manager else _options):
            decorated = option(decorated)
        return decorated

    return decorate


def _security(
    tls_ca_file: str | None, tls_cert: str | None, tls_key: str | None
) -> Security | None:
    if not (tls_ca_file or tls_cert or tls_key):
        return None
    if bool(tls_cert) != bool(tls_key):
        given, missing = (
            ("--tls-cert", "--tls-key") if tls_cert else ("--tls-key", "--tls-cert")
        )
        raise click.UsageError(f"{given} needs {missing} beside it")
    named = {
        "tls_ca_file": tls_ca_file,
        "tls_client_cert": tls_cert,
        "tls_client_key": tls_key,
    }
    # what is not named stays as Dask's configuration has it
    return Security(
        require_encryption=True, **{k: v for k, v in named.items() if v is not None}
    )
