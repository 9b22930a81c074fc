"""The browser of the tests of the console. All of them run in one event loop, since the browser belongs to one."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import TYPE_CHECKING

import console_browser
import pytest
import pytest_asyncio
from console_browser import Consoles

if TYPE_CHECKING:
    from playwright.async_api import Browser


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def browser() -> AsyncIterator[Browser]:
    """A Chromium for all tests of the console."""
    playwright = pytest.importorskip("playwright.async_api", reason="needs playwright: it is in the extra `dev`")
    path = console_browser.chromium()
    if path is None:
        pytest.skip("needs Chromium: `make browser`, or its path in TALLY_CHROMIUM")
    async with playwright.async_playwright() as running:
        found = await running.chromium.launch(executable_path=path, args=["--no-sandbox"])
        yield found
        await found.close()


@pytest_asyncio.fixture(
    loop_scope="session", params=[console_browser.WIDE, console_browser.NARROW], ids=["wide", "narrow"]
)
async def consoles(browser: Browser, request: pytest.FixtureRequest) -> AsyncIterator[Consoles]:
    """Opens consoles, in windows of 1 400 and of 390 pixels."""
    found = Consoles(browser, request.param)
    yield found
    await found.close()


@pytest_asyncio.fixture(loop_scope="session")
async def wide(browser: Browser) -> AsyncIterator[Consoles]:
    """Opens consoles in wide windows, for what does not depend on the width."""
    found = Consoles(browser)
    yield found
    await found.close()
