"""A real browser before the page: headless Chromium from the system's packages, and a line to it that can be cut."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from playwright.async_api import Browser, BrowserContext, Page, async_playwright

CHROMIUM = "/usr/bin/chromium"
FLAGS = [
    *("--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run"),
    *("--disable-background-networking", "--disable-component-update", "--disable-sync"),
]
#: Kept by continuous integration; in no repository.
PICTURES = Path(__file__).parents[3] / "build" / "screenshots"
_PATIENCE = 60_000


@dataclass
class Window:
    """One browser window at a gateway, and what went wrong in it."""

    page: Page
    context: BrowserContext
    url: str
    wrong: list[str] = field(default_factory=list)
    foreign: list[str] = field(default_factory=list)
    #: Parts of messages on the console that a test expects.
    expected: list[str] = field(default_factory=list)

    def heard(self, kind: str, text: str) -> None:
        if not any(part in text for part in self.expected):
            self.wrong.append(f"{kind}: {text}")

    async def sign_in(self, token: str) -> None:
        await self.page.goto(self.url)
        await self.page.fill("#key", token)
        await self.page.keyboard.press("Enter")
        await self.page.wait_for_selector("h1:has-text('Runs')")

    async def open_run(self, id: str) -> None:
        await self.page.goto(f"{self.url}/#/runs/{id}")
        await self.page.wait_for_selector(
            ".chip:has-text('live'), .chip[data-status='ok'], .chip[data-status='partial']"
        )

    async def picture(self, name: str, *, whole: bool = False) -> None:
        PICTURES.mkdir(parents=True, exist_ok=True)
        await self.page.screenshot(path=PICTURES / f"{name}.png", full_page=whole)

    async def width(self) -> int:
        """How wide the page's content is: more than the window's width is a bar to scroll it."""
        return int(await self.page.evaluate("document.documentElement.scrollWidth"))

    async def until(self, script: str) -> None:
        """Wait until an expression is true in the page."""
        await self.page.wait_for_function(f"() => {script}")


@asynccontextmanager
async def window(url: str, *, wide: int = 1440, high: int = 1000, dark: bool = False) -> AsyncIterator[Window]:
    """A window for the length of the block. Leaving it in order, nothing was said on the console, no script raised, and
    no other host was asked for anything."""
    async with async_playwright() as playwright:
        browser: Browser = await playwright.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        try:
            scheme: Any = "dark" if dark else "light"
            context = await browser.new_context(viewport={"width": wide, "height": high}, color_scheme=scheme)
            context.set_default_timeout(_PATIENCE)
            page = await context.new_page()
            one = Window(page, context, url)
            page.on(
                "console", lambda said: one.heard(said.type, said.text) if said.type in ("error", "warning") else None
            )
            page.on("pageerror", lambda error: one.wrong.append(f"raised: {error}"))
            page.on("request", lambda asked: _note(one, asked.url))
            yield one
            assert one.wrong == [], one.wrong
            assert one.foreign == [], one.foreign
        finally:
            await browser.close()


def _note(one: Window, asked: str) -> None:
    parts = urlsplit(asked)
    if parts.scheme not in ("data", "blob") and f"{parts.scheme}://{parts.netloc}" != one.url:
        one.foreign.append(asked)


class Line:
    """A connection between the browser and the gateway that can be cut and mended."""

    def __init__(self, target: str) -> None:
        self._target = urlsplit(target)
        self._open: set[asyncio.StreamWriter] = set()
        self._broken = False
        self.url = ""

    def cut(self) -> None:
        self._broken = True
        for writer in tuple(self._open):
            writer.transport.abort()

    def mend(self) -> None:
        self._broken = False

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self._broken:
            writer.transport.abort()
            return
        there, back = await asyncio.open_connection(self._target.hostname, self._target.port)
        pair = {writer, back}
        self._open |= pair
        try:
            await asyncio.gather(_pump(reader, back), _pump(there, writer))
        finally:
            self._open -= pair
            for one in pair:
                one.transport.abort()

    @asynccontextmanager
    async def serving(self) -> AsyncIterator[Line]:
        server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        try:
            yield self
        finally:
            server.close()
            self.cut()


async def _pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with contextlib.suppress(ConnectionError):
        while data := await reader.read(65_536):
            writer.write(data)
            await writer.drain()
    writer.transport.abort()
