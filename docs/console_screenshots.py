"""Takes the pictures of docs/console.md, with the server of the tests of the console.

`python docs/console_screenshots.py` writes docs/console/*.png. It needs Chromium (`make browser`) and two minutes: the
charts show the time for which the console has been open.
"""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path
from typing import Literal

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "tests" / "oracles"))

import console_cluster  # noqa: E402
from console_browser import NARROW, WIDE, Consoles, Screen, chromium  # noqa: E402
from playwright.async_api import async_playwright  # noqa: E402

FOLDER = ROOT / "docs" / "console"
CHARTS_S = 75
BY_RATE = "[...document.querySelectorAll('.sort')].find((each) => each.textContent === 'In').click()"
MESSAGE = console_cluster.summary("orders-created", 0).id
SEARCH = "#/messages?topic=orders-created&by=window&window=60&at=4102444800000"
WIDE_LIGHT = {
    "overview": "#/",
    "cluster": "#/cluster",
    "topics": "#/topics?search=orders",
    "topic": "#/topics/orders-created",
    "messages": SEARCH,
    "message": f"#/messages/{MESSAGE}",
    "dead-letters": "#/dead-letters/orders-service",
    "configuration": "#/settings",
    "audit-log": "#/audit",
}
WIDE_DARK = {"overview": "#/", "consumer-group": "#/consumer-groups/orders-service"}
PHONE_LIGHT = {"overview": "#/", "consumer-group": "#/consumer-groups/orders-service"}
PHONE_DARK = {"topics": "#/topics?search=orders", "message": f"#/messages/{MESSAGE}"}


async def take(screen: Screen, name: str, suffix: str) -> None:
    """Takes a picture when the page shows its content."""
    await screen.main().get_by_role("table").or_(screen.main().locator("dl")).first.wait_for()
    await screen.main().get_by_role("status", name="Loading").wait_for(state="detached")
    if name == "consumer-group":
        await asyncio.sleep(16)  # its page reads the lag in seconds every five
    if name == "topics":
        await screen.page.evaluate(BY_RATE)
    await asyncio.sleep(1)  # the charts get their width, and fonts are painted
    await screen.page.screenshot(path=FOLDER / f"{name}{suffix}.png")


async def series(consoles: Consoles, places: dict[str, str], suffix: str, scheme: Literal["light", "dark"]) -> None:
    """Takes pictures of some places in one window."""
    screen = await consoles.open(scheme=scheme, number=1000)
    await asyncio.sleep(CHARTS_S)
    for name, place in places.items():
        await screen.go(place)
        await take(screen, name, suffix)
    if suffix == "":
        await screen.go("#/consumer-groups/orders-service")
        await screen.press("Reset offsets")
        await screen.press("Preview")
        await screen.preview()
        await screen.page.screenshot(path=FOLDER / "preview.png")


async def main() -> None:
    """Takes all pictures."""
    FOLDER.mkdir(exist_ok=True)
    async with async_playwright() as running:
        browser = await running.chromium.launch(executable_path=chromium(), args=["--no-sandbox"])
        wide, narrow = Consoles(browser, WIDE), Consoles(browser, NARROW)
        await asyncio.gather(
            series(wide, WIDE_LIGHT, "", "light"),
            series(wide, WIDE_DARK, "-dark", "dark"),
            series(narrow, PHONE_LIGHT, "-phone", "light"),
            series(narrow, PHONE_DARK, "-phone-dark", "dark"),
        )
        await wide.close()
        await narrow.close()
        await browser.close()


if __name__ == "__main__":
    asyncio.run(main())
