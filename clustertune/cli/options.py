"""Options that many commands share: the cluster to use, and consent to changes."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import wraps
from itertools import chain
from typing import TYPE_CHECKING, Any

import click
import dask

from clustertune.cli import INTERRUPTED, REFUSED
from clustertune.core.findings import Shell

if TYPE_CHECKING:
    from distributed.security import Security

Command = Callable[..., None]


def _with_options(command: Command, options: Sequence[Callable[[Any], Any]]) -> Command:
    """Add options in the order of the help text."""
    for option in reversed(options):
        command = option(command)
    return command


# --- the cluster ----------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Target:
    """The cluster that a command uses; None: the value in Dask's configuration."""

    address: str | None = None  # of the scheduler
    scheduler_file: str | None = None  # instead of the address
    cluster: tuple[str, str] | None = None  # kind and name, instead of both
    security: Security | None = None
    tls: tuple[str, ...] = ()  # the options of ``security``

    def __post_init__(self) -> None:
        if self.cluster and (self.address or self.scheduler_file):
            raise click.UsageError(
                "--cluster replaces ADDRESS and --scheduler-file: leave them out"
            )
        if self.cluster and self.security:
            raise click.UsageError(
                "--cluster uses the manager's own certificates: leave --tls-... out"
            )
        if self.address and self.scheduler_file:
            raise click.UsageError(
                f"--scheduler-file replaces ADDRESS: leave {self.address!r} out"
            )

    @property
    def _source(self) -> str | None:
        configured = dask.config.get("scheduler-address", None)
        return self.scheduler_file or self.address or configured

    def shell(self, variables: Mapping[str, tuple[str, ...]] | None = None) -> Shell:
        """Return the words of commands for the same cluster, and for some data."""
        named = [self.address] if self.address else []
        if self.scheduler_file:
            named = ["--scheduler-file", self.scheduler_file]
        if self.cluster:
            named = ["--cluster", ":".join(self.cluster)]
        return Shell(cluster=(*named, *self.tls), variables=variables or {})

    def command(self, line: str) -> str:
        """Return a command line for the same cluster."""
        return " ".join([line, *map(shlex.quote, self.shell().cluster)])

    def or_address(self, address: str) -> Target:
        """Return this target, or one with the address if this one names no cluster."""
        is_named = self.cluster or self._source
        return self if is_named else replace(self, address=address)

    @property
    def source(self) -> str:
        """The scheduler file, the address, or the address in Dask's configuration."""
        source = self._source
        if not source:
            raise click.UsageError(
                "which cluster? give ADDRESS or --scheduler-file, or set "
                "DASK_SCHEDULER_ADDRESS"
            )
        return str(source)


def _kind_and_name(
    _context: click.Context, _parameter: click.Parameter, text: str | None
) -> tuple[str, str] | None:
    if text is None:
        return None
    from clustertune.integrations import managers

    kind, _, name = text.partition(":")
    kinds = managers.attachable()
    if kind not in kinds or not name:
        allowed = ", ".join(f"{k}:NAME" for k in sorted(kinds))
        raise click.BadParameter(f"{text!r} is none of {allowed}")
    return kind, name


_file = click.Path(exists=True, dir_okay=False)
_TARGET = (
    click.argument("address", required=False),
    click.option("--scheduler-file", type=_file, help="Read the address from this "
        "file, written by `dask scheduler --scheduler-file`."),
    click.option("--tls-ca-file", type=_file, help="CA certificate file (PEM). "
        "By default from Dask's configuration."),
    click.option("--tls-cert", type=_file, help="Client certificate file (PEM)."),
    click.option("--tls-key", type=_file, help="Private key file (PEM) of the client "
        "certificate."),
)  # fmt: skip
_CLUSTER = click.option(
    "--cluster", metavar="KIND:NAME", callback=_kind_and_name, help="Use a running "
    "cluster of a manager, which can also start workers: gateway:NAME, coiled:NAME or "
    "kubernetes:NAME."
)  # fmt: skip


_NAMES = (
    *("address", "scheduler_file", "cluster"),
    *("tls_ca_file", "tls_cert", "tls_key"),
)


def target_of(values: Mapping[str, Any]) -> Target:
    """Return the cluster that the values of arguments and options name."""
    address, file, cluster, *tls = (values.get(name) for name in _NAMES)
    options = zip(("--tls-ca-file", "--tls-cert", "--tls-key"), tls, strict=True)
    return Target(
        address=address,
        scheduler_file=file,
        cluster=cluster,
        security=_security(*tls),
        tls=tuple(chain.from_iterable((o, file) for o, file in options if file)),
    )


def cluster_options(*, manager: bool = False) -> Callable[[Command], Command]:
    """Add the options that name a cluster; the command gets a :class:`Target` first.

    ``manager`` adds ``--cluster``.
    """

    def decorate(command: Command) -> Command:
        @wraps(command)
        def call(**values: Any) -> None:
            others = {k: v for k, v in values.items() if k not in _NAMES}
            command(target_of(values), **others)

        return _with_options(call, (*_TARGET, _CLUSTER) if manager else _TARGET)

    return decorate


def _security(
    ca_file: str | None, cert: str | None, key: str | None
) -> Security | None:
    if not (ca_file or cert or key):
        return None
    from distributed.security import Security

    if bool(cert) != bool(key):
        given, missing = ("cert", "key") if cert else ("key", "cert")
        raise click.UsageError(f"--tls-{given} needs --tls-{missing}: give both")
    files = {"tls_ca_file": ca_file, "tls_client_cert": cert, "tls_client_key": key}
    # files that are not given come from Dask's configuration
    return Security(
        require_encryption=True, **{k: v for k, v in files.items() if v is not None}
    )


# --- consent --------------------------------------------------------------------------

NO_TERMINAL = (
    "this is not a terminal, so no question can be answered: give --yes or --dry-run"
)


@dataclass(frozen=True, kw_only=True)
class Consent:
    """Whether a command may make changes."""

    dry_run: bool  # plan, and change nothing
    yes: bool  # do not ask
    quiet: bool  # print only the result, and questions

    @property
    def progress(self) -> bool | None:
        return False if self.quiet else None

    def refuse_without_terminal(self) -> None:
        """Refuse before any work if the command must ask and there is no terminal."""
        if not (self.dry_run or self.yes or is_terminal()):
            raise click.UsageError(NO_TERMINAL)

    def ask(self, plan: str) -> None:
        """Show a plan, ask, and exit if the user declines."""
        if self.yes:
            return
        click.echo(plan, err=True)
        if not is_terminal():
            raise click.UsageError(NO_TERMINAL)
        try:
            agreed = click.confirm("Go on?", err=True)
        except click.Abort:
            click.echo("interrupted; nothing was changed", err=True)
            sys.exit(INTERRUPTED)
        if not agreed:
            click.echo("nothing was changed", err=True)
            sys.exit(REFUSED)


_CONSENT = (
    click.option("--dry-run", is_flag=True, help="Show the plan, and change nothing."),
    click.option("-y", "--yes", is_flag=True, help="Do not ask."),
    click.option("-q", "--quiet", is_flag=True, help="Show no progress. Print only the "
        "result, and the plan if there is a question."),
    click.option("--reason", metavar="TEXT", help="Log a reason for the change in "
        "Dask's event log."),
)  # fmt: skip


def with_consent(command: Command) -> Command:
    """Add the options of a command that changes a cluster; it gets ``consent``."""

    @wraps(command)
    def call(
        *args: Any,
        dry_run: bool,
        yes: bool,
        quiet: bool,
        reason: str | None,
        **others: Any,
    ) -> None:
        consent = Consent(dry_run=dry_run, yes=yes, quiet=quiet)
        settings = {} if reason is None else {"clustertune.reason": reason}
        with dask.config.set(settings):
            command(*args, consent=consent, **others)

    return _with_options(call, _CONSENT)


def is_terminal() -> bool:
    """Return whether a user can answer questions."""
    return sys.stdin.isatty()
