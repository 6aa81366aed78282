"""A simulated server of a manager, with real workers."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qsl, urlsplit

from distributed import LocalCluster

Answer = tuple[int, Any]


class Backend(LocalCluster):
    """Workers with the names that a manager would give."""

    def __init__(self, name: str, **options: Any) -> None:
        super().__init__(
            name=name,  # the scheduler keeps it for all clients
            n_workers=0,
            threads_per_worker=1,
            memory_limit="1GiB",
            dashboard_address="127.0.0.1:0",
            **options,
        )
        self.scale(1)  # LocalCluster names its first workers itself

    def _new_worker_name(self, worker_number: int) -> str:
        return f"{self.name}-default-worker-{worker_number}"

    def forget(self, name: str) -> None:
        """Do not start that worker again."""
        del self.worker_spec[name]
        self.scale(len(self.worker_spec))


@contextmanager
def serving(answer: Callable[[str, str, dict[str, str], Any], Answer]) -> Iterator[str]:
    """Serve ``answer(method, path, query, body)`` as JSON; yield the URL."""

    class Handler(BaseHTTPRequestHandler):
        def _do(self) -> None:
            url = urlsplit(self.path)
            text = self.rfile.read(int(self.headers.get("Content-Length", 0)))
            body = json.loads(text) if text else None
            query = dict(parse_qsl(url.query))
            status, found = answer(self.command, url.path, query, body)
            data = json.dumps(found).encode()
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            with suppress(ConnectionError):  # the client has given up
                self.wfile.write(data)

        do_GET = do_POST = do_PATCH = do_DELETE = _do  # noqa: N815 - their names

        def log_message(self, *_: Any) -> None:
            """Log nothing."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(
            target=server.serve_forever, kwargs={"poll_interval": 0.05}
        )
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()
            thread.join()
