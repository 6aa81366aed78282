"""A real headless Chromium, driven through its debugging port.

Nothing but the browser is needed: tornado, which Dask brings, speaks its protocol.
"""

# ruff: noqa: ASYNC220, ASYNC240 - what blocks is short, and nothing else runs
from __future__ import annotations

import asyncio
import base64
import itertools
import json
import os
import shutil
import signal
import subprocess
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from time import monotonic
from typing import Any

import pytest
from tornado.websocket import websocket_connect

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
REQUIRED = os.environ.get("CLUSTERTUNE_BROWSER") == "required"
needs_browser = pytest.mark.skipif(
    CHROMIUM is None and not REQUIRED, reason="there is no chromium on this machine"
)
FLAGS = (
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
    "--disable-background-networking", "--disable-component-update", "--disable-sync",
    "--hide-scrollbars", "--remote-debugging-port=0", "--remote-allow-origins=*",
)  # fmt: skip


class Tab:
    """One page, with what its console has complained of."""

    def __init__(self, connection: Any) -> None:
        self._connection = connection
        self._numbers = itertools.count(1)
        self._answers: dict[int, asyncio.Future[Any]] = {}
        self.complaints: list[str] = []
        self._reading = asyncio.ensure_future(self._read())

    async def _read(self) -> None:
        while (text := await self._connection.read_message()) is not None:
            message = json.loads(text)
            if "id" in message:
                self._answers.pop(message["id"]).set_result(message)
            elif message["method"] == "Runtime.exceptionThrown":
                self.complaints.append(str(message["params"]["exceptionDetails"]))
            elif message["method"] == "Log.entryAdded":
                entry = message["params"]["entry"]
                if entry["level"] == "error":
                    self.complaints.append(f"{entry['text']} {entry.get('url')}")
            elif message["method"] == "Runtime.consoleAPICalled" and (
                message["params"]["type"] in ("error", "assert")
            ):
                self.complaints.append(str(message["params"]["args"]))

    async def call(self, method: str, **parameters: Any) -> Any:
        number = next(self._numbers)
        answer = self._answers[number] = asyncio.get_running_loop().create_future()
        request = {"id": number, "method": method, "params": parameters}
        await self._connection.write_message(json.dumps(request))
        message = await asyncio.wait_for(answer, 30)
        assert "error" not in message, message
        return message["result"]

    async def look_at(self, url: str, *, dark: bool = False, width: int = 1280) -> None:
        """Load a page as a reader with these settings would."""
        for domain in ("Page", "Runtime", "Log"):
            await self.call(f"{domain}.enable")
        await self.set(dark=dark, width=width)
        await self.call("Page.navigate", url=url)

    async def set(self, *, dark: bool, width: int, height: int = 900) -> None:
        self._dark, self._width = dark, width
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        await self.call("Emulation.setEmulatedMedia", features=[scheme])
        await self.call(
            "Emulation.setDeviceMetricsOverride",
            width=width, height=height, deviceScaleFactor=1, mobile=False,
        )  # fmt: skip

    async def run(self, code: str) -> Any:
        """The value of a JavaScript expression."""
        answer = await self.call(
            "Runtime.evaluate",
            expression=code,
            returnByValue=True,
            awaitPromise=True,
        )
        assert "exceptionDetails" not in answer, answer
        return answer["result"].get("value")

    async def text(self) -> str:
        """All words on the page, those within Bokeh's own trees too."""
        return str(await self.run(_TEXT))

    async def shows(self, *words: str, seconds: float = 20) -> str:
        """Wait until the page has these words; return all of them."""
        end = monotonic() + seconds
        while True:
            text = await self.text()
            lacking = [w for w in words if w not in text]
            if not lacking:
                return text
            assert monotonic() < end, f"{lacking} never came: {text[:3000]}"
            await asyncio.sleep(0.1)

    async def columns(self) -> list[dict[str, Any]]:
        """What the sources of all figures have: canvas has no words to read."""
        return json.loads(await self.run(_COLUMNS))

    async def picture(self, file: Path) -> None:
        """Write a screenshot of the whole page."""
        size = (await self.call("Page.getLayoutMetrics"))["cssContentSize"]
        await self.set(dark=self._dark, width=self._width, height=int(size["height"]))
        await self.run("new Promise(done => setTimeout(done, 300))")
        answer = await self.call("Page.captureScreenshot", format="png")
        file.write_bytes(base64.b64decode(answer["data"]))

    def close(self) -> None:
        self._connection.close()
        self._reading.cancel()


_TEXT = """(() => {
  const words = [], INLINE = ["B", "CODE", "SPAN", "A"]
  const walk = node => {
    if (node.nodeType === 3) words.push(node.data)
    if (["STYLE", "SCRIPT"].includes(node.nodeName)) return
    if (node.shadowRoot) node.shadowRoot.childNodes.forEach(walk)
    node.childNodes.forEach(walk)
    if (node.nodeType === 1 && !INLINE.includes(node.nodeName)) words.push(" ")
  }
  if (document.body) walk(document.body)
  return words.join("").replace(/\\s+/g, " ")
})()"""
_COLUMNS = """JSON.stringify(Bokeh.documents.flatMap(d => [...d._all_models.values()])
  .filter(m => m.type === "ColumnDataSource")
  .map(m => Object.fromEntries(
    (m.data instanceof Map ? [...m.data] : Object.entries(m.data))
      .map(([k, v]) => [k, Array.from(v)]))))"""


@asynccontextmanager
async def chromium(profile: Path) -> AsyncIterator[Tab]:
    """A browser with an empty profile; gone afterwards."""
    assert CHROMIUM, "CLUSTERTUNE_BROWSER=required, and there is no chromium"
    process = subprocess.Popen(
        [CHROMIUM, *FLAGS, f"--user-data-dir={profile}", "about:blank"],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    try:
        port = await _port(profile / "DevToolsActivePort", process)
        tab = Tab(await _first_page(port))
        try:
            yield tab
        finally:
            tab.close()
    finally:
        os.killpg(process.pid, signal.SIGTERM)
        try:
            process.wait(10)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()


async def _port(file: Path, process: subprocess.Popen[bytes]) -> int:
    end = monotonic() + 30
    while not (file.exists() and (text := file.read_text()).count("\n")):
        assert process.poll() is None, "chromium ended at once"
        assert monotonic() < end, "chromium does not listen"
        await asyncio.sleep(0.05)
    return int(text.split()[0])


async def _first_page(port: int) -> Any:
    from tornado.httpclient import AsyncHTTPClient

    end = monotonic() + 20
    while True:
        answer = await AsyncHTTPClient().fetch(f"http://127.0.0.1:{port}/json/list")
        pages = [p for p in json.loads(answer.body) if p["type"] == "page"]
        if pages:
            return await websocket_connect(
                pages[0]["webSocketDebuggerUrl"], max_message_size=2**27
            )
        assert monotonic() < end, "chromium opens no page"
        await asyncio.sleep(0.05)
