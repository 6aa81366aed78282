"""Options that many commands share, and checks of their values."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, fields
from functools import wraps
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
import dask
from click.core import ParameterSource

from clustertune.core import arguments
from clustertune.core.wording import printable

if TYPE_CHECKING:
    from distributed.security import Security

Command = Callable[..., None]
Decorator = Callable[[Command], Command]

#: exit codes; 0 is success, and click uses 2 for usage errors
PROBLEMS, UNREACHED, REFUSED, FAILED, INTERRUPTED = 1, 3, 4, 5, 130


def examples(*lines: str) -> str:
    """Return the examples below the options of a help text."""
    return "\n".join(["\b", "Examples:", *(f"  {line}" for line in lines)])


def command(*lines: str) -> Callable[[Callable[..., None]], click.Command]:
    """Return the decorator of a command with these examples."""
    return click.command(epilog=examples(*lines))


def with_options(*options: Decorator) -> Decorator:
    """Add options to a command, in the order of its help text."""

    def decorate(command: Command) -> Command:
        for option in reversed(options):
            command = option(command)
        return command

    return decorate


def refuse_options(names: Collection[str], text: str) -> None:
    """Refuse options on the command line; ``text`` has a place for the option."""
    context = click.get_current_context()
    for option in context.command.params:
        source = context.get_parameter_source(option.name or "")
        if option.name in names and source is ParameterSource.COMMANDLINE:
            raise click.UsageError(text.format(option.opts[0]))


# --- values ---------------------------------------------------------------------------


@contextmanager
def usage_errors(*kinds: type[Exception]) -> Iterator[None]:
    """Turn errors of these kinds into usage errors."""
    try:
        yield
    except kinds as error:
        raise click.UsageError(printable(str(error), longest=2000)) from error


def checked(
    check: Callable[[str, Any], Any],
) -> Callable[[click.Context, click.Parameter, Any], Any]:
    """Return a callback that checks and converts the value of an option, if it has one.

    ``check`` gets the name of the option and the value. Its ValueError is a usage
    error.
    """

    def callback(_context: click.Context, option: click.Parameter, value: Any) -> Any:
        if value is None:
            return None
        with usage_errors(ValueError):
            return check(option.opts[0], value)

    return callback


# --- single options -------------------------------------------------------------------


form_option = click.option(
    "-f", "--format", "form", type=click.Choice(["text", "json"]), default="text",
    show_default=True, help="Form of the output."
)  # fmt: skip

_verbose_option = click.option(
    "-v", "--verbose", is_flag=True, help="Print predictions, details and information, "
    "too."
)  # fmt: skip


def format_option(command: Command) -> Command:
    """Add ``--format`` and ``--verbose``, which the command gets as one form."""

    @wraps(command)
    def call(*args: Any, form: str, verbose: bool, **others: Any) -> None:
        form = "details" if verbose and form == "text" else form
        command(*args, form=form, **others)

    return with_options(form_option, _verbose_option)(call)


worker_option = click.option(
    "--worker", "workers", multiple=True, metavar="NAME",
    callback=lambda _context, _option, names: list(names) or None,
    help="Use only the worker with this name or address; may be given several times."
)  # fmt: skip

quiet_option = click.option(
    "-q", "--quiet", is_flag=True, help="Show no progress. Print only the result, and "
    "the plan if there is a question."
)  # fmt: skip

other_clients_option = click.option(
    "--include-other-clients", is_flag=True, help="Also lose data of other clients, "
    "and published data."
)  # fmt: skip


def _estimator(_option: str, name: str) -> str:
    from clustertune.integrations import libraries

    libraries.choose(name)
    return name


def estimator_option(text: str) -> Decorator:
    """Return ``--estimator`` with the name of a known kind of estimator."""
    return click.option(
        "--estimator", metavar="NAME", callback=checked(_estimator), help=text
    )


def time_option(*names: str, **settings: Any) -> Decorator:
    """Return an option with a duration; the command gets seconds."""
    return click.option(
        *names, metavar="TIME", callback=checked(arguments.duration),
        show_default="default" in settings, **settings,
    )  # fmt: skip


def timeout_option(default: str) -> Decorator:
    """Return ``--timeout``, which also limits the time to connect."""
    text = "Limit the time of the plan, and of the call."
    return time_option("--timeout", default=default, help=text)


# --- the cluster ----------------------------------------------------------------------


# arguments of Dask's Security by name of the option
_TLS = {
    "tls_ca_file": "tls_ca_file",
    "tls_cert": "tls_client_cert",
    "tls_key": "tls_client_key",
}


@dataclass(frozen=True, kw_only=True)
class Target:
    """The cluster that a command uses; None: the value in Dask's configuration."""

    address: str | None = None  # of the scheduler
    scheduler_file: str | None = None  # instead of the address
    tls_ca_file: str | None = None
    tls_cert: str | None = None
    tls_key: str | None = None

    def __post_init__(self) -> None:
        if self.address and self.scheduler_file:
            raise click.UsageError(
                f"--scheduler-file replaces ADDRESS: leave {self.address!r} out"
            )
        if bool(self.tls_cert) != bool(self.tls_key):
            given, missing = ("cert", "key") if self.tls_cert else ("key", "cert")
            raise click.UsageError(f"--tls-{given} needs --tls-{missing}: give both")

    @property
    def _tls(self) -> dict[str, str]:
        """The given TLS files by name."""
        files = {name: getattr(self, name) for name in _TLS}
        return {name: file for name, file in files.items() if file}

    @property
    def security(self) -> Security | None:
        """The given TLS files; Dask's configuration names the others."""
        if not self._tls:
            return None
        from distributed.security import Security

        files = {_TLS[name]: file for name, file in self._tls.items()}
        return Security(require_encryption=True, **files)

    @property
    def words(self) -> str:
        """The words of a command line that name this cluster, quoted."""
        named = [self.address] if self.address else []
        if self.scheduler_file:
            named = ["--scheduler-file", self.scheduler_file]
        tls = chain(*((_option(name), file) for name, file in self._tls.items()))
        return shlex.join((*named, *tls))

    def command(self, line: str) -> str:
        """Return a command line for the same cluster."""
        return f"{line} {self.words}".rstrip()

    @property
    def source(self) -> str:
        """The scheduler file, the address, or the address in Dask's configuration."""
        configured = dask.config.get("scheduler-address", None)
        source = self.scheduler_file or self.address or configured
        if not source:
            raise click.UsageError(
                "which cluster? give ADDRESS or --scheduler-file, or set "
                "DASK_SCHEDULER_ADDRESS"
            )
        return str(source)


def _option(name: str) -> str:
    return f"--{name.replace('_', '-')}"


def _regular(option: str, path: str) -> str:
    """Refuse a pipe or a device: to read it may never end."""
    if not Path(path).is_file():
        raise ValueError(f"{option} {path} is not a regular file")
    return path


_FILE: dict[str, Any] = {
    "type": click.Path(exists=True, dir_okay=False),
    "callback": checked(_regular),
}
_TARGET = (
    click.argument("address", required=False),
    click.option("--scheduler-file", **_FILE, help="Read the address from this "
        "file, written by `dask scheduler --scheduler-file`."),
    click.option("--tls-ca-file", **_FILE, help="CA certificate file (PEM). "
        "By default from Dask's configuration."),
    click.option("--tls-cert", **_FILE, help="Client certificate file (PEM)."),
    click.option("--tls-key", **_FILE, help="Private key file (PEM) of the client "
        "certificate."),
)  # fmt: skip


def cluster_options(command: Command) -> Command:
    """Add the options that name a cluster; the command gets a :class:`Target` first."""

    @wraps(command)
    def call(**values: Any) -> None:
        named = {field.name: values.pop(field.name) for field in fields(Target)}
        command(Target(**named), **values)

    return with_options(*_TARGET)(call)


# --- consent --------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Consent:
    """Whether a command may make changes."""

    dry_run: bool  # plan, and change nothing
    yes: bool  # do not ask
    quiet: bool  # print only the result, and questions

    def ask(self, plan: str) -> None:
        """Show a plan, ask, and exit if the user declines."""
        click.echo(plan, err=True)
        if not is_terminal():
            raise click.UsageError(
                "this is not a terminal, so no question can be answered: give --yes or "
                "--dry-run"
            )
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
    quiet_option,
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

    return with_options(*_CONSENT)(call)


def is_terminal() -> bool:
    """Return whether a user can answer questions."""
    # Python has no stdin if it was closed at the start
    return sys.stdin is not None and sys.stdin.isatty()
