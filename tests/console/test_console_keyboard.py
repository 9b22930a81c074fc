"""The console without a mouse, in a real browser."""

import pytest
from console_browser import NARROW, Consoles, Screen

pytestmark = [pytest.mark.process, pytest.mark.asyncio(loop_scope="session")]

FOCUS = """(() => {
  const element = document.activeElement;
  const name = element.getAttribute("aria-label") || element.innerText || element.value || element.id;
  return element === document.body ? "" : name.trim();
})()"""


LEAVE_AT_ONCE = """
new MutationObserver((_, observer) => {
  if (!document.querySelector("main h1")) return;
  observer.disconnect();
  location.hash = "#/audit";
}).observe(document, {childList: true, subtree: true});
"""


async def focus(screen: Screen) -> str:
    """Returns the name of the element that has the focus."""
    return str(await screen.page.evaluate(FOCUS))


async def tab_to(screen: Screen, name: str) -> None:
    """Presses the tabulator until an element has the focus. AssertionError: it cannot be reached."""
    seen = []
    for _ in range(80):
        await screen.page.keyboard.press("Tab")
        seen.append(await focus(screen))
        if seen[-1] == name:
            visible = await screen.page.evaluate("getComputedStyle(document.activeElement).outlineStyle !== 'none'")
            assert visible, f"the focus on {name} cannot be seen"
            return
    raise AssertionError(f"{name} cannot be reached: {seen}")


async def test_the_main_flow_needs_no_mouse(wide: Consoles) -> None:
    """A topic is found, a message is sent to it, the topic is changed, all with keys."""
    screen = await wide.open("#/topics")
    await screen.sees("60 topics")
    await screen.page.keyboard.press("/")
    await screen.page.keyboard.type("orders-changed")
    await screen.sees("1 topic of 60")
    await tab_to(screen, "orders-changed")
    await screen.page.keyboard.press("Enter")
    await screen.page.get_by_role("table", name="Queues").wait_for()
    assert await focus(screen) == "orders-changed", "a screen reader begins at the title of the new page"
    await tab_to(screen, "Send message")
    await screen.page.keyboard.press("Enter")
    await screen.dialog().wait_for()
    await tab_to(screen, "Send message")
    await screen.page.keyboard.press("Enter")
    await screen.sees("stored")
    await screen.page.keyboard.press("Escape")
    assert await screen.dialog().count() == 0
    assert await focus(screen) == "Send message", "the focus returns to the button that opened the dialog"
    await tab_to(screen, "Change")
    await screen.page.keyboard.press("Enter")
    await tab_to(screen, "Preview")
    await screen.page.keyboard.press("Enter")
    await screen.preview()
    await tab_to(screen, "Change topic")
    await screen.page.keyboard.press("Enter")
    await screen.result()
    await screen.page.keyboard.press("Escape")
    assert [dry for method, _, dry, _ in screen.changes() if method == "PUT"] == [True, False]


async def test_the_focus_stays_in_a_dialog(wide: Consoles) -> None:
    screen = await wide.open("#/topics")
    await screen.press("Create topic")
    await screen.dialog().wait_for()
    for _ in range(30):
        await screen.page.keyboard.press("Tab")
        inside = await screen.page.evaluate(
            "document.activeElement === document.body || Boolean(document.activeElement.closest('dialog'))"
        )
        assert inside


async def test_the_content_is_reached_without_the_navigation(wide: Consoles) -> None:
    screen = await wide.open("#/topics")
    await screen.page.keyboard.press("Tab")
    assert await focus(screen) == "Skip to the content"
    await screen.page.keyboard.press("Enter")
    assert await screen.page.evaluate("document.activeElement.id") == "main"


async def test_topics_and_groups_are_found_from_each_page(wide: Consoles) -> None:
    screen = await wide.open("#/cluster")
    await screen.page.keyboard.press("Control+k")
    await screen.page.keyboard.type("orders-s")
    options = screen.page.get_by_role("option")
    await options.filter(has_text="Consumer group").first.wait_for()
    names = await options.all_inner_texts()
    wanted = next(number for number, name in enumerate(names) if "orders-service" in name)
    for _ in range(wanted):
        await screen.page.keyboard.press("ArrowDown")
    await screen.page.keyboard.press("Enter")
    await screen.page.get_by_role("heading", name="orders-service", exact=True).wait_for()
    await screen.page.keyboard.press("/")
    await screen.page.keyboard.type("audit")
    await screen.page.keyboard.press("Escape")
    assert await options.count() == 0


async def test_an_address_that_changes_while_the_page_starts_is_followed(wide: Consoles) -> None:
    """The address changes when the title is in the document, which is before effects of the page run."""
    screen = await wide.open("#/topics")
    await screen.page.add_init_script(LEAVE_AT_ONCE)
    await screen.page.reload()
    await screen.page.get_by_role("heading", name="Audit log", exact=True).wait_for()


async def test_the_menu_of_a_narrow_window_opens_and_closes(consoles: Consoles) -> None:
    screen = await consoles.open("#/topics")
    menu = screen.page.get_by_role("button", name="Menu")
    link = screen.page.get_by_role("navigation", name="Sections").get_by_role("link", name="Cluster")
    if screen.page.viewport_size["width"] != NARROW[0]:
        assert not await menu.is_visible() and await link.is_visible()
        return
    assert not await link.is_visible()
    await menu.click()
    await link.wait_for()
    await screen.page.keyboard.press("Escape")
    await link.wait_for(state="hidden")
    await menu.click()
    await link.click()
    await screen.page.get_by_role("heading", name="Cluster", exact=True).wait_for()
    await link.wait_for(state="hidden")


async def test_the_colours_follow_the_system_until_the_user_chooses(wide: Consoles) -> None:
    screen = await wide.open("#/topics", scheme="dark")
    back = "getComputedStyle(document.body).backgroundColor"
    dark = await screen.page.evaluate(back)
    await screen.page.get_by_role("button", name="Use light colours").click()
    light = await screen.page.evaluate(back)
    assert light != dark
    await screen.page.reload()
    await screen.sees("60 topics")
    assert await screen.page.evaluate(back) == light, "the choice is remembered"
