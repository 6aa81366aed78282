"""``dashboard_page``: add the page to the dashboard of a cluster."""

from __future__ import annotations

from dataclasses import dataclass
from html import escape
from typing import Any
from urllib.parse import urlsplit, urlunsplit

from distributed import Client

from clustertune.dashboard import mount
from clustertune.errors import RefusedError, VersionMismatchError
from clustertune.monitor.connection import sync
from clustertune.operations.call import check_client
from clustertune.operations.check import check
from clustertune.remote import ship

SERVE = "Run `clustertune dashboard --serve` to show the page from this machine"


@dataclass(frozen=True)
class DashboardPage:
    """The page of a cluster.

    Attributes
    ----------
    url : str
        Its address, from Dask's setting ``distributed.dashboard.link``.
    """

    url: str

    def show(self, height: int = 900) -> Any:
        """Show the live page in a notebook, ``height`` pixels high."""
        from IPython.display import IFrame  # only notebooks have it

        return IFrame(escape(self.url), "100%", height)

    def _repr_html_(self) -> str:
        url = escape(self.url)
        return f'<a href="{url}" target="_blank" rel="noopener">clustertune: {url}</a>'


def dashboard_page(client: Client) -> Any:
    """Add the page ``/clustertune`` to the dashboard of a cluster.

    The call runs all checks once, as :func:`clustertune.check` does, to learn the
    thresholds and the findings. The page shows memory and the places of prepared
    partitions live, and the findings with their age. A second call adds nothing. The
    page is read-only, and costs nothing while no browser shows it.

    Parameters
    ----------
    client
        A connected client, synchronous or asynchronous (then the call is awaited).

    Returns
    -------
    DashboardPage
        Its ``url``, and ``show()`` for a notebook.

    Raises
    ------
    RefusedError
        The scheduler has no dashboard.
    ConnectionLostError, VersionMismatchError
        The cluster cannot be reached, or no code may be sent to it.
    TimedOutError
        The checks took longer than a minute.

    Examples
    --------
    >>> clustertune.dashboard_page(client).show()  # doctest: +SKIP
    """
    check_client(client)
    return sync(client, add_page, client)


def run_checks(client: Client) -> Any:
    """Run all checks in an event loop; they send their findings to the scheduler."""
    return check(client)


async def add_page(client: Client) -> DashboardPage:
    """Carry out :func:`dashboard_page` in an event loop."""
    try:
        await run_checks(client)
    except VersionMismatchError as error:
        raise VersionMismatchError(f"{error}. {SERVE}") from error
    try:
        answer = await ship.on_scheduler(client, mount.mount)
    except ModuleNotFoundError as error:  # the page's code cannot be loaded there
        if (error.name or "").partition(".")[0] != "bokeh":
            raise
        answer = {"error": "has no Bokeh"}
    if "error" in answer:
        raise RefusedError(
            f"The scheduler {answer['error']}, so it cannot show the page. {SERVE}"
        )
    return DashboardPage(page_url(client.dashboard_link, answer["path"]))


def page_url(link: str, path: str) -> str:
    """Return the URL of a page of the dashboard.

    ``link`` is the URL of the status page by Dask's setting. It may be that of a proxy,
    with a folder that the scheduler does not have. ``path`` is the page's path on the
    scheduler, with its prefix.
    """
    parts = urlsplit(link)
    folder = parts.path.removesuffix("/").removesuffix("/status")
    prefix, _, name = path.rpartition("/")
    if not folder.endswith(prefix):
        folder += prefix
    return urlunsplit((parts.scheme, parts.netloc, f"{folder}/{name}", "", ""))
