"""The console in a real Chromium, before a server of tests."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Literal

from aiohttp.test_utils import TestServer
from fake_console_api import FakeApi

if TYPE_CHECKING:
    from playwright.async_api import Browser, BrowserContext, Locator, Page, ViewportSize

NAMES = ("chromium-headless-shell", "chromium", "chromium-browser", "google-chrome")
WIDE, NARROW = (1400, 900), (390, 844)
VIOLATIONS = """
window.violations = [];
document.addEventListener("securitypolicyviolation", (event) =>
  window.violations.push(`${event.violatedDirective} ${event.blockedURI}`));
"""


def chromium() -> str | None:
    """Returns the path of a Chromium: `TALLY_CHROMIUM`, or one of the system; None: there is none."""
    return os.environ.get("TALLY_CHROMIUM") or next(filter(None, map(shutil.which, NAMES)), None)


class Screen:
    """One page of the console. `errors`: what the browser complained about."""

    def __init__(self, page: Page, api: FakeApi, base: str) -> None:
        self.page, self.api, self.base = page, api, base
        self.errors: list[str] = []
        self.expected: list[str] = []
        """Regular expressions of complaints that a test causes."""
        page.on("console", lambda line: self.errors.append(line.text) if line.type in ("error", "warning") else None)
        page.on("pageerror", lambda error: self.errors.append(str(error)))

    async def go(self, place: str) -> Screen:
        """Opens a place of the console, such as `#/topics`, and waits for its heading."""
        await self.page.goto(self.base + place)
        await self.page.get_by_role("heading", level=1).wait_for()
        return self

    def main(self) -> Locator:
        return self.page.locator("main")

    def dialog(self) -> Locator:
        return self.page.get_by_role("dialog")

    async def press(self, name: str, *, within: Locator | None = None) -> None:
        """Presses the button with this name, in the dialog if there is one."""
        place = within or (self.dialog() if await self.dialog().count() else self.main())
        await place.get_by_role("button", name=name, exact=True).click()

    async def fill(self, label: str, value: str) -> None:
        """Fills a field of the dialog, or of the page."""
        place = self.dialog() if await self.dialog().count() else self.main()
        await place.get_by_label(label).fill(value)

    async def preview(self) -> str:
        """Returns the steps of a preview, when the dialog shows them."""
        table = self.dialog().get_by_role("table", name="Steps of the preview")
        await table.wait_for()
        return await table.inner_text()

    async def result(self) -> str:
        """Returns the results of a change, with the heading, when the dialog shows them."""
        await self.dialog().get_by_role("table", name="Results").wait_for()
        return await self.dialog().inner_text()

    async def sees(self, text: str) -> None:
        """Waits until the page shows a text."""
        await self.page.get_by_text(text).first.wait_for()

    def changes(self) -> list[tuple[str, str, bool, Any]]:
        """Returns the changes that the page asked for: method, path, dry run, body."""
        return self.api.requests

    async def complaints(self) -> list[str]:
        """Returns what the browser complained about, and what the policy of the page forbade."""
        found = [*self.errors, *await self.page.evaluate("window.violations")]
        return [each for each in found if not any(re.search(pattern, each) for pattern in self.expected)]


class Consoles:
    """Opens consoles for one test: each has a separate server and window."""

    def __init__(self, browser: Browser, size: tuple[int, int] = WIDE) -> None:
        self._browser, self._size = browser, size
        self._servers: list[TestServer] = []
        self._contexts: list[BrowserContext] = []
        self.screens: list[Screen] = []

    async def open(
        self,
        place: str = "#/",
        *,
        api: FakeApi | None = None,
        scheme: Literal["light", "dark"] = "light",
        expected: Sequence[str] = (),
        **options: Any,
    ) -> Screen:
        """Opens a place. `options`: those of `FakeApi`; `expected`: complaints of the browser that the test causes."""
        api = api or FakeApi(**{"number": 60, **options})
        server = TestServer(api.app(), shutdown_timeout=0)
        await server.start_server()
        self._servers.append(server)
        size: ViewportSize = {"width": self._size[0], "height": self._size[1]}
        context = await self._browser.new_context(viewport=size, color_scheme=scheme, locale="en-GB", timezone_id="UTC")
        self._contexts.append(context)
        await context.add_init_script(VIOLATIONS)
        screen = Screen(await context.new_page(), api, str(server.make_url("/")))
        screen.expected += expected
        self.screens.append(screen)
        return await screen.go(place)

    async def close(self) -> None:
        """Ends all of them. AssertionError: a browser complained about something that no test caused."""
        complaints = [each for screen in self.screens for each in await screen.complaints()]
        for screen in self.screens:
            screen.api.silent.set()
        for context in self._contexts:
            await context.close()
        for server in self._servers:
            await server.close()
        assert complaints == []


async def has_count(found: Locator, count: int) -> None:
    """Waits until there are so many of these elements: a page may still be drawing them. AssertionError: there are
    not."""
    from playwright.async_api import expect  # late: without playwright the tests are skipped

    await expect(found).to_have_count(count)
