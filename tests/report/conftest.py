"""A real browser for the report's tests: Chromium without a window, watched for errors and for any request."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page, expect, sync_playwright

DEADLINE = 60_000  # milliseconds, of a browser on a busy machine
expect.set_options(timeout=DEADLINE)
ARGUMENTS = ["--no-sandbox", "--disable-dev-shm-usage"]
Opened = Callable[..., AbstractContextManager[Page]]


@pytest.fixture(scope="module")  # no longer: while it is open, its event loop is in the way of asyncio's own
def browser() -> Iterator[Browser]:
    program = shutil.which("chromium")
    if program is None:
        pytest.skip("no chromium on the PATH; apt-get install chromium")
    with sync_playwright() as playwright:
        started = playwright.chromium.launch(executable_path=program, args=ARGUMENTS, timeout=DEADLINE)
        yield started
        started.close()


@pytest.fixture
def opened(browser: Browser) -> Opened:
    """`with opened(file, fragment) as page`: the page, drawn. What it logs and any request but for it fail the test."""

    @contextmanager
    def open_page(path: Path, fragment: str = "", width: int = 1280) -> Iterator[Page]:
        context = browser.new_context(viewport={"width": width, "height": 900})
        page = context.new_page()
        page.set_default_timeout(DEADLINE)
        trouble: list[str] = []
        page.on("console", lambda message: trouble.append(f"console: {message.text}"))
        page.on("pageerror", lambda error: trouble.append(f"error: {error}"))
        page.on("dialog", lambda dialog: trouble.append(f"dialog: {dialog.message}"))
        requests: list[str] = []
        page.on("request", lambda request: requests.append(request.url.split("#")[0]))
        page.goto(f"{path.as_uri()}{fragment}")
        page.wait_for_selector("html[data-ready]")
        yield page
        context.close()
        assert trouble == []
        assert set(requests) == {path.as_uri()}

    return open_page
