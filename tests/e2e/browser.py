"""A real Chromium: Debian's, driven by Playwright, installed on first use."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from playwright.sync_api import Page, sync_playwright

from localcluster import config, host

PROGRAM = "/usr/bin/chromium"
PACKAGES = {PROGRAM: "chromium", "/usr/share/fonts/truetype/dejavu": "fonts-dejavu-core"}
SLOW_MS = 120_000
"""How long the page may take on a busy machine."""
ARGUMENTS = (
    "--no-sandbox",  # the tests run as root
    "--disable-gpu",
    "--disable-background-networking",
    "--disable-component-update",
    "--no-first-run",
    "--no-proxy-server",
)


@contextmanager
def open_page(say: Callable[[str], None]) -> Iterator[tuple[Page, list[str]]]:
    """A page, and the errors that it has thrown so far."""
    host.install_packages(config.cache_dir(), say, PACKAGES)
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=PROGRAM, args=list(ARGUMENTS))
        try:
            page = browser.new_page(viewport={"width": 1440, "height": 1000})
            page.set_default_timeout(SLOW_MS)
            errors: list[str] = []
            page.on("pageerror", lambda error: errors.append(str(error)))
            yield page, errors
        finally:
            browser.close()
