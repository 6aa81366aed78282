"""An HTTP server with the answers of Saturn Cloud, for the real ``SaturnCluster``.

Its clusters are real, too: ``reset`` closes the processes of one, which loses their
data, and starts others of the given size.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest
from dask_saturn import SaturnCluster
from distributed import LocalCluster

SIZES = {
    "medium": (1, "1 GiB", "Medium - 1 cores - 1 GB RAM"),
    "large": (2, "2 GiB", "Large - 2 cores - 2 GB RAM"),
    "odd": (1, "1 GiB", "An odd one"),
}
TOKEN = "a token"

# it never counts as closed, and at exit it would send requests to a closed server
SaturnCluster.__del__ = lambda self: None


class Saturn(ThreadingHTTPServer):
    """One resource with at most one cluster."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.cluster: LocalCluster | None = None
        self.config: dict[str, Any] = {}
        self.asked: list[
            tuple[str, dict[str, Any]]
        ] = []  # requests that change something
        self.refusing = ""  # error text of `reset`
        self.breaking = False  # `reset` destroys the cluster, and starts none
        self.lacking = 0  # workers that do not start

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"

    def start(self, config: dict[str, Any]) -> None:
        self.config = {"n_workers": 1, "worker_size": "medium"} | config
        cores, memory, _ = SIZES[self.config["worker_size"]]
        self.cluster = LocalCluster(
            n_workers=self.config["n_workers"] - self.lacking,
            threads_per_worker=self.config.get("nthreads", cores),
            memory_limit=memory,
            processes=True,
            dashboard_address="127.0.0.1:0",
        )

    def stop(self) -> None:
        if self.cluster is not None:
            self.cluster.close()
        self.cluster = None


class Handler(BaseHTTPRequestHandler):
    """The requests that dask-saturn makes."""

    server: Saturn

    def log_message(self, *_: Any) -> None:
        """Log nothing."""

    def do_GET(self) -> None:
        path = self.path.partition("?")[0]
        found: Any = None
        if self.headers["Authorization"] != f"token {TOKEN}":
            return self.answer({"message": "who are you?"}, 403)
        if path == "/api/dask_clusters/info":
            sizes = [{"name": n, "display": s[2]} for n, s in SIZES.items()]
            found = {"server_options": {"size": sizes}}
        elif path == "/api/dask_clusters/abc/status":
            found = {"status": "running"}
        elif path == "/api/dask_clusters/abc/info" and self.server.cluster:
            found = {
                "dashboard_link": self.server.cluster.dashboard_link,
                "scheduler_address": self.server.cluster.scheduler_address,
            }
        return self.answer(found or {"message": f"no {path}"}, 200 if found else 404)

    def do_POST(self) -> None:
        saturn, path = self.server, self.path.partition("?")[0]
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"] or 0)))
        saturn.asked.append((path.removeprefix("/api/dask_clusters"), body))
        if path == "/api/dask_clusters":
            if saturn.breaking:
                return self.answer({"status": "error", "errors": ["no machines"]})
            if saturn.cluster is None:
                saturn.start(body)
            return self.answer({"status": "ready", "id": "abc"})
        if path == "/api/dask_clusters/reset" and not saturn.refusing:
            saturn.stop()
            if not saturn.breaking:
                saturn.start(body)
            return self.answer({})
        return self.answer({"message": saturn.refusing or f"no {path}"}, 400)

    def answer(self, body: Any, status: int = 200) -> None:
        data = json.dumps(body).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)


@contextmanager
def running(monkeypatch: pytest.MonkeyPatch) -> Iterator[Saturn]:
    """The server; environment variables point ``SaturnCluster`` to it."""
    saturn = Saturn()
    thread = threading.Thread(target=saturn.serve_forever, daemon=True)
    thread.start()
    monkeypatch.setenv("SATURN_BASE_URL", saturn.url)
    monkeypatch.setenv("SATURN_TOKEN", TOKEN)
    monkeypatch.setenv("SATURN_IS_INTERNAL", "true")
    try:
        yield saturn
    finally:
        saturn.stop()
        saturn.shutdown()
        saturn.server_close()
        thread.join(10)
