"""``panel``: the page of a cluster, on its own dashboard, and in a notebook."""

from __future__ import annotations

from dataclasses import dataclass
from html import escape
from typing import Any
from urllib.parse import urlsplit, urlunsplit

from distributed import Client

from clustertune.collections import inputs
from clustertune.core.model import Goal
from clustertune.dashboard import mount
from clustertune.errors import RefusedError, VersionMismatchError
from clustertune.integrations import libraries
from clustertune.operations.call import check_client
from clustertune.operations.check import Question, diagnose
from clustertune.remote import ship

ALONE = "`clustertune panel --serve` shows it from this machine, without the dashboard"
TIMEOUT = 60.0  # seconds for the look that comes first


@dataclass(frozen=True)
class Panel:
    """The page, wherever it is.

    Attributes
    ----------
    url : str
        Where a browser finds it, by Dask's setting ``distributed.dashboard.link``.
    """

    url: str

    def show(self, height: int = 900) -> Frame:
        """The live page in a notebook.

        Parameters
        ----------
        height
            Pixels.
        """
        return Frame(self.url, height)

    def _repr_html_(self) -> str:
        url = escape(self.url)
        return f'<a href="{url}" target="_blank" rel="noopener">clustertune: {url}</a>'


@dataclass(frozen=True)
class Frame:
    """A page that a notebook shows within itself."""

    url: str
    height: int

    def _repr_html_(self) -> str:
        return (
            f'<iframe src="{escape(self.url)}" width="100%" height="{self.height:d}" '
            'style="border: 0" title="clustertune"></iframe>'
        )


def panel(client: Client) -> Any:
    """Add the page ``/clustertune`` to the dashboard of a cluster.

    Looks at the cluster once, as :func:`clustertune.check` does, for what the page
    cannot learn by itself: thresholds, CPUs and findings. The page then shows memory,
    threads and places of prepared pieces as they are, and the findings with their age.
    Parts of it are listed for JupyterLab's Dask extension too. Called again it adds
    nothing. It only shows: nothing can be done from it. While no browser looks it costs
    nothing.

    Parameters
    ----------
    client
        A connected client, synchronous or asynchronous (then the call is awaited).

    Returns
    -------
    Panel
        Its ``url``, and ``show()`` for a notebook.

    Raises
    ------
    RefusedError
        The scheduler serves no dashboard that the page could be part of.
    ConnectionLostError, VersionMismatchError
        The cluster cannot be looked at, or code must not be sent to it; the text says
        why, and what shows the page from here.
    TimedOutError
        The cluster could not be looked at within a minute.

    Examples
    --------
    >>> clustertune.panel(client).show()                        # doctest: +SKIP
    """
    check_client(client)
    return client.sync(add_panel, client)


async def tell(client: Client) -> None:
    """Look once, and leave what was learned with the scheduler."""
    question = Question(
        client=client,
        given=inputs.NOTHING,
        goal=Goal(workload=libraries.choose(None, None)),
        workers=None,
        timeout=TIMEOUT,
    )
    await diagnose(question)


async def add_panel(client: Client) -> Panel:
    """As :func:`panel`, for an event loop."""
    try:
        await tell(client)
    except VersionMismatchError as error:
        raise VersionMismatchError(f"{error}; {ALONE}") from error
    answer = await ship.on_scheduler(client, mount.mount)
    if "error" in answer:
        raise RefusedError(
            "the page cannot be part of this scheduler's dashboard: "
            f"{answer['error']}; {ALONE}"
        )
    return Panel(beside(client.dashboard_link, answer["path"]))


def beside(link: str, path: str) -> str:
    """Where a page is, from the link of the dashboard's status page.

    Parameters
    ----------
    link
        By Dask's setting: of a proxy, perhaps, and with a folder that the scheduler
        does not know of.
    path
        Of the page on the scheduler, with its prefix.
    """
    parts = urlsplit(link)
    folder = parts.path.removesuffix("/").removesuffix("/status")
    prefix, _, name = path.rpartition("/")
    if not folder.endswith(prefix):
        folder += prefix
    return urlunsplit((parts.scheme, parts.netloc, f"{folder}/{name}", "", ""))
