"""A headless Chromium for tests, driven by Playwright.

Playwright runs in the event loop of the test. It uses the Chromium of the distribution
and downloads no browser.
"""

from __future__ import annotations

import asyncio
import os
import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from time import monotonic
from typing import Any

import pytest
from playwright.async_api import ConsoleMessage, Page, async_playwright

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
REQUIRED = os.environ.get("CLUSTERTUNE_BROWSER") == "required"
needs_browser = pytest.mark.skipif(
    CHROMIUM is None and not REQUIRED, reason="there is no chromium on this machine"
)
#: a canvas has no text, so tests read the data sources of the figures
_SOURCES = """() => Bokeh.documents.flatMap(d => [...d._all_models.values()])
  .filter(m => m.type === "ColumnDataSource")
  .map(m => Object.fromEntries(
    (m.data instanceof Map ? [...m.data] : Object.entries(m.data))
      .map(([k, v]) => [k, Array.from(v)])))"""
#: Bokeh writes into shadow trees, which `innerText` does not include
_TEXT = """() => {
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
}"""


class Tab:
    """One page, and the errors of its console."""

    def __init__(self, page: Page) -> None:
        self.page = page
        self.complaints: list[str] = []
        page.on("pageerror", lambda error: self.complaints.append(str(error)))
        page.on("console", self._note)

    def _note(self, message: ConsoleMessage) -> None:
        if message.type in ("error", "assert"):
            self.complaints.append(f"{message.text} {message.location.get('url')}")

    async def look_at(self, url: str, *, dark: bool = False, width: int = 1280) -> None:
        """Load a page as a reader with these settings would."""
        await self.set(dark=dark, width=width)
        await self.page.goto(url)

    async def set(self, *, dark: bool, width: int) -> None:
        await self.page.emulate_media(color_scheme="dark" if dark else "light")
        await self.page.set_viewport_size({"width": width, "height": 900})

    async def text(self) -> str:
        """Return all words on the page."""
        return str(await self.page.evaluate(_TEXT))

    async def shows(self, *words: str, seconds: float = 60) -> str:
        """Wait until the page has these words; return all its words."""
        end = monotonic() + seconds
        while True:
            text = await self.text()
            missing = [w for w in words if w not in text]
            if not missing:
                return text
            assert monotonic() < end, f"{missing} never came: {text[:3000]}"
            await asyncio.sleep(0.1)

    async def columns(self) -> list[dict[str, Any]]:
        """Return the data sources of all figures."""
        found: list[dict[str, Any]] = await self.page.evaluate(_SOURCES)
        return found

    async def picture(self, file: Path) -> None:
        """Write a screenshot of the whole page."""
        await asyncio.sleep(0.3)
        await self.page.screenshot(path=file, full_page=True)


@asynccontextmanager
async def chromium(*, offline: bool = False) -> AsyncIterator[Tab]:
    """Start a browser with an empty profile, and end it afterwards."""
    assert CHROMIUM, "CLUSTERTUNE_BROWSER=required, and there is no chromium"
    async with async_playwright() as playwright:
        browser = await playwright.chromium.launch(
            executable_path=CHROMIUM, args=["--no-sandbox", "--disable-quic"]
        )
        try:
            context = await browser.new_context(offline=offline)
            yield Tab(await context.new_page())
        finally:
            await browser.close()
