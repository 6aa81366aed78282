"""What browsers may do with the page that is served from a machine.

Pages of somebody else cannot read it. Websockets, which bring all that is shown, are
refused to other origins by Bokeh. Where only this machine is listened to, requests
under names that are not its own are refused as well: an attacker's name can be pointed
at 127.0.0.1 after their page was loaded.

Should text of a cluster ever become markup in spite of all escaping, it could load
nothing and send nothing to anybody: what the page may load, run and talk to is its own
server's. Scripts in the page itself cannot be forbidden, as BokehJS is begun by one.
"""

from __future__ import annotations

from collections.abc import Iterable
from ipaddress import ip_address
from typing import Any
from urllib.parse import urlsplit

from bokeh.server.tornado import BokehTornado
from tornado.httputil import HTTPHeaders
from tornado.web import OutputTransform, RequestHandler

from clustertune.core.wording import printable

OWN = frozenset(("localhost", "127.0.0.1", "::1"))  # names of any machine's own
ANY = "*"


def policy(*sources: str) -> str:
    """What a page may load and talk to, as the header of its name says it.

    Parameters
    ----------
    *sources
        Origins of scripts and styles; none where the page has all of them in it, and
        talks to nobody.
    """
    inline = " ".join((*sources, "'unsafe-inline'"))
    own = "'self' " if sources else ""
    parts = [
        "default-src 'none'",
        *(["connect-src 'self'"] if sources else ()),
        # BokehJS makes functions of scripts that it is given as text
        f"script-src {inline} 'unsafe-eval'",
        f"style-src {inline}",
        f"img-src {own}data:",
        f"font-src {own}data:",
        "base-uri 'none'",
        "form-action 'none'",
    ]
    return "; ".join(parts)


def names(address: str, origins: Iterable[str]) -> frozenset[str] | None:
    """Names under which a server may be asked for; None: any.

    Parameters
    ----------
    address
        On which it listens.
    origins
        ``HOST`` or ``HOST:PORT`` of pages and proxies that may show it.
    """
    hosts = {_host(origin) for origin in origins}
    if ANY in hosts or not _is_own(address):
        return None  # whoever reaches the machine may see the page anyway
    return OWN | {address.lower()} | hosts


def _is_own(address: str) -> bool:
    try:
        return ip_address(address).is_loopback
    except ValueError:
        return address.lower() in OWN


def _host(place: str) -> str:
    """The host of ``HOST:PORT``; nothing where it is none."""
    try:
        return urlsplit(f"//{place}").hostname or ""
    except ValueError:
        return ""


class Shielded(BokehTornado):
    """Bokeh's application, behind the headers and names of this module.

    Parameters
    ----------
    applications, **options
        As of Bokeh's.
    hosts
        Names under which it may be asked for; None: any.
    """

    def __init__(
        self, applications: Any, *, hosts: frozenset[str] | None, **options: Any
    ) -> None:
        super().__init__(applications, **options)
        self._hosts = hosts
        # scripts come from elsewhere where Bokeh's own settings say so
        links = (urlsplit(link) for link in self.resources().js_files)
        others = {f"{link.scheme}://{link.netloc}" for link in links if link.netloc}
        self._headers = {
            "Content-Security-Policy": policy("'self'", *sorted(others)),
            "Referrer-Policy": "no-referrer",
            "X-Content-Type-Options": "nosniff",
        }
        self.add_transform(self._transform())

    def _transform(self) -> type[OutputTransform]:
        added = self._headers

        class Adding(OutputTransform):
            """Gives every answer the headers."""

            def transform_first_chunk(
                self,
                status_code: int,
                headers: HTTPHeaders,
                chunk: bytes,
                finishing: bool,  # noqa: ARG002
            ) -> tuple[int, HTTPHeaders, bytes]:
                headers.update(added)
                return status_code, headers, chunk

        return Adding

    def find_handler(self, request: Any, **options: Any) -> Any:
        if self._hosts is None or _host(request.host) in self._hosts:
            return super().find_handler(request, **options)
        return self.get_handler_delegate(request, _Refused)


class _Refused(RequestHandler):
    """What is answered under a name that is none of the server's."""

    def prepare(self) -> None:
        self.set_status(403)
        self.set_header("Content-Type", "text/plain; charset=utf-8")
        name = printable(self.request.host, longest=100)
        self.finish(
            f"This page is not shown under the name {name}. If that is a proxy of "
            "yours: clustertune panel --serve --allow-websocket-origin HOST[:PORT]\n"
        )
