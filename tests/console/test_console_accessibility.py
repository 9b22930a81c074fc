"""Each page of the console by the rules of axe (WCAG 2.2 AA and its best practices), dark and light, at two widths."""

from importlib.resources import files
from typing import Literal

import console_cluster
import pytest
from console_browser import Consoles, Screen

pytestmark = [pytest.mark.process, pytest.mark.asyncio(loop_scope="session")]

MESSAGE = console_cluster.summary("orders-created", 0).id
PAGES = (
    "#/",
    "#/cluster",
    "#/topics",
    "#/topics/orders-created",
    "#/topics/orders-created?tab=configuration",
    "#/consumer-groups",
    "#/consumer-groups/inventory-service",
    "#/consumer-groups/inventory-service?tab=members",
    f"#/messages?topic=orders-created&at={console_cluster.NOW_MS}",
    f"#/messages/{MESSAGE}",
    "#/dead-letters",
    "#/dead-letters/orders-service",
    "#/settings",
    "#/audit",
)
RUN = """async () => {
  const found = await axe.run(document, {resultTypes: ["violations"]});
  const text = (rule, node) => `${rule.id}: ${node.target.join(" ")} ${node.failureSummary}`;
  return found.violations.flatMap((rule) => rule.nodes.map((node) => text(rule, node)));
}"""


AT_REST = """Promise.all(document.getAnimations()
  .filter((each) => each.effect.getTiming().iterations === 1)
  .map((each) => each.finished))"""


async def violations(screen: Screen) -> list[str]:
    """Returns what axe finds on the page as it is now, when nothing of it moves."""
    if not await screen.page.evaluate("'axe' in window"):
        await screen.page.evaluate(files("axe_playwright_python").joinpath("axe.min.js").read_text())
    await screen.page.evaluate(AT_REST)
    return [f"{screen.page.url.partition('#')[2]}: {each}" for each in await screen.page.evaluate(RUN)]


async def no_overflow(screen: Screen) -> None:
    """AssertionError: the page is wider than the window."""
    assert await screen.page.evaluate("document.documentElement.scrollWidth - innerWidth") <= 0, screen.page.url


@pytest.mark.parametrize("scheme", ["light", "dark"])
async def test_pages_have_no_violations_and_fit_the_window(
    consoles: Consoles, scheme: Literal["light", "dark"]
) -> None:
    screen = await consoles.open(scheme=scheme)
    found = []
    for place in PAGES:
        await screen.go(place)
        await screen.main().get_by_role("table").or_(screen.main().locator("dl")).first.wait_for()
        await no_overflow(screen)
        found += await violations(screen)
    assert found == []


@pytest.mark.parametrize("scheme", ["light", "dark"])
async def test_dialogs_have_no_violations(consoles: Consoles, scheme: Literal["light", "dark"]) -> None:
    screen = await consoles.open("#/topics/orders-created", scheme=scheme)
    found = []
    for button in ("Send message", "Change"):
        await screen.press(button)
        found += await violations(screen)
        if button == "Change":
            await screen.press("Preview")
            await screen.preview()
            found += await violations(screen)
        await no_overflow(screen)
        await screen.page.keyboard.press("Escape")
    await screen.press("Delete")
    await screen.preview()
    found += await violations(screen)
    assert found == []


@pytest.mark.parametrize("scheme", ["light", "dark"])
async def test_the_log_in_has_no_violations(consoles: Consoles, scheme: Literal["light", "dark"]) -> None:
    screen = await consoles.open(password="secret", scheme=scheme, expected=["401"])
    assert await violations(screen) == []


async def test_axe_finds_a_violation(wide: Consoles) -> None:
    """The rules run: a button without a name is found."""
    screen = await wide.open("#/topics")
    await screen.sees("60 topics")
    await screen.page.evaluate("document.querySelector('main').append(document.createElement('button'))")
    assert any("button-name" in each for each in await violations(screen))
