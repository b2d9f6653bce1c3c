"""The console in a real Chromium: opens its pages, and takes down everything they should not do."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from anchors import Unavailable
from playwright.sync_api import (
    Browser,
    BrowserContext,
    ConsoleMessage,
    Page,
    Playwright,
    Request,
    expect,
    sync_playwright,
)

PATIENCE_MS = 10_000


def chromium() -> str:
    """Debian's Chromium; never one that playwright would have to download."""
    for name in ("chromium", "chromium-browser", "google-chrome"):
        found = shutil.which(name)
        if found is not None:
            return found
    raise Unavailable("no chromium on the path (Debian: apt install chromium)")


@contextmanager
def running_chromium() -> Iterator[Browser]:
    """A headless Chromium for several tests."""
    program = chromium()
    # Chromium refuses to sandbox itself as root, which is who runs tests in a container.
    arguments = ["--no-sandbox"] if os.geteuid() == 0 else []
    playwright: Playwright
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=program, args=arguments)
        try:
            yield browser
        finally:
            browser.close()


class Console:
    """One visitor: pages of one context, with what went wrong in them."""

    def __init__(self, browser: Browser, url: str, artifacts: Path, **options: Any) -> None:
        self.url = url
        self._artifacts = artifacts
        defaults: dict[str, Any] = {"viewport": {"width": 1280, "height": 900}, "locale": "en-GB"}
        self.context: BrowserContext = browser.new_context(**{**defaults, **options})
        self.context.set_default_timeout(PATIENCE_MS)
        expect.set_options(timeout=PATIENCE_MS)
        self.faults: list[str] = []
        self.foreign_requests: list[str] = []
        self.context.on("console", self._hear)
        self.context.on("weberror", lambda error: self.faults.append(str(error.error)))
        self.context.on("request", self._see)

    def open(self, address: str) -> Page:
        page = self.context.new_page()
        page.goto(self.url + address)
        return page

    def picture(self, page: Page, name: str) -> None:
        """Kept as an artifact of the run."""
        self._artifacts.mkdir(parents=True, exist_ok=True)
        # Not screenshot(path=...), which leaves a thread behind.
        (self._artifacts / f"console-{name}.png").write_bytes(page.screenshot(full_page=True))

    def close(self) -> None:
        self.context.close()

    def _hear(self, message: ConsoleMessage) -> None:
        if message.type in ("error", "warning"):
            self.faults.append(message.text)

    def _see(self, request: Request) -> None:
        if urlsplit(request.url).netloc != urlsplit(self.url).netloc:
            self.foreign_requests.append(request.url)
