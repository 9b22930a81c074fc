"""Who sees what in the console, and what it says when the server fails, in a real browser."""

import asyncio
import dataclasses

import pytest
from console_browser import Consoles, Screen
from fake_console_api import FakeApi

pytestmark = [pytest.mark.process, pytest.mark.asyncio(loop_scope="session")]

PLACES = (
    "#/cluster",
    "#/topics/orders-changed",
    "#/consumer-groups/orders-service",
    "#/dead-letters/orders-service",
    "#/settings",
)
OPERATOR = {"Send message", "Reset offsets", "Copy offsets", "Resend selected", "Resend all"}
ADMIN = {"Add member", "Make leader", "Remove", "Writes", "Change", "Delete"}


async def buttons(screen: Screen) -> set[str]:
    """Returns the texts of the buttons of the pages that change things."""
    found: set[str] = set()
    for place in PLACES:
        await screen.go(place)
        await screen.main().get_by_role("table").first.wait_for()
        found.update(text.strip() for text in await screen.main().get_by_role("button").all_inner_texts())
    return found & (OPERATOR | ADMIN)


@pytest.mark.parametrize(("role", "expected"), [("viewer", set()), ("operator", OPERATOR), ("admin", OPERATOR | ADMIN)])
async def test_a_role_sees_the_buttons_of_what_it_may_do(wide: Consoles, role: str, expected: set[str]) -> None:
    assert await buttons(await wide.open(role=role)) == expected


async def test_a_user_logs_in_and_out(consoles: Consoles) -> None:
    screen = await consoles.open("#/topics", password="secret", expected=["401"])
    await screen.page.get_by_label("User or access key").fill("admin")
    await screen.page.get_by_label("Password or secret key").fill("wrong")
    await screen.press("Log in")
    await screen.sees("the user does not exist, or the password is wrong")
    await screen.page.get_by_label("Password or secret key").fill("secret")
    await screen.page.keyboard.press("Enter")
    await screen.sees("60 topics")
    await screen.page.get_by_role("button", name="Log out").click()
    await screen.page.get_by_label("User or access key").wait_for()
    await screen.main().get_by_label("Token", exact=True).check(force=True)
    await screen.page.get_by_role("textbox", name="Token").fill("secret")
    await screen.press("Log in")
    await screen.sees("60 topics")


async def test_a_session_that_ended_leads_to_the_log_in_and_back(wide: Consoles) -> None:
    screen = await wide.open("#/topics", password="secret", expected=["401"])
    await screen.page.get_by_label("User or access key").fill("admin")
    await screen.page.get_by_label("Password or secret key").fill("secret")
    await screen.press("Log in")
    await screen.sees("60 topics")
    await screen.page.context.clear_cookies()
    await screen.page.get_by_role("link", name="Configuration").click()
    await screen.page.get_by_label("Password or secret key").wait_for()


async def test_the_words_of_the_server_are_shown_and_old_data_is_marked(consoles: Consoles) -> None:
    screen = await consoles.open("#/settings", expected=["503"])
    await screen.sees("10 settings")
    screen.api.failing["/settings"] = (503, "no broker answered within 5 s")
    await screen.go("#/dead-letters")
    await screen.go("#/settings")
    await screen.sees("Stale data")
    await screen.sees("no broker answered within 5 s")
    await screen.sees("10 settings")
    await screen.page.reload()
    await screen.sees("no broker answered within 5 s")
    assert await screen.page.get_by_role("table").count() == 0
    screen.api.failing.clear()
    await screen.press("Try again")
    await screen.sees("10 settings")


async def test_what_could_not_be_read_is_a_finding_of_the_overview(wide: Consoles) -> None:
    api = FakeApi(number=60)
    api.failing["/raft-groups"] = (502, "broker orders-a refused: no permission")
    screen = await wide.open(api=api, expected=["502"])
    await screen.sees("Raft groups could not be read")
    await screen.sees("broker orders-a refused: no permission")


async def test_live_figures_that_end_are_marked(wide: Consoles) -> None:
    screen = await wide.open(expected=["INCOMPLETE", "ERR_"])
    state = screen.page.get_by_role("banner").get_by_role("status")
    await state.get_by_text("Live").wait_for()
    screen.api.silent.set()
    await state.get_by_text("Reconnecting").wait_for()
    screen.api.silent.clear()
    await state.get_by_text("Live").wait_for()


async def test_a_server_that_is_gone_is_said(wide: Consoles) -> None:
    screen = await wide.open("#/audit", expected=["ERR_", "Failed to load"])
    await screen.page.get_by_text("100 lines", exact=True).wait_for()
    await screen.page.context.set_offline(True)
    await screen.press("Refresh")
    await screen.sees("The console cannot reach the server.")
    await screen.page.context.set_offline(False)
    await screen.press("Try again")
    await screen.page.get_by_text("100 lines", exact=True).wait_for()


async def test_an_empty_cluster_is_explained(consoles: Consoles) -> None:
    api = FakeApi(number=60)
    api.topics.clear()
    api.groups.clear()
    screen = await consoles.open("#/topics", api=api)
    await screen.sees("There are no topics yet")
    for place, text in (
        ("#/consumer-groups", "There are no consumer groups yet"),
        ("#/dead-letters", "There are no dead letters"),
        ("#/no-such-page", "There is no such page"),
    ):
        await screen.page.goto(screen.base + place)
        await screen.sees(text)


async def test_names_of_strangers_are_texts(wide: Consoles) -> None:
    """The name of a topic is shown as it is, also if it is HTML."""
    api = FakeApi(number=60)
    name = "<img src=x onerror=alert(1)>"
    api.topics[name] = dataclasses.replace(api.topics["orders-changed"], name=name)
    screen = await wide.open("#/topics", api=api)
    await screen.fill("Search topics", "<img")
    await screen.page.get_by_role("link", name=name).click()
    await screen.page.get_by_role("heading", name=name).wait_for()
    assert await screen.page.locator("main img").count() == 0


async def test_a_slow_answer_does_not_replace_a_later_page(wide: Consoles) -> None:
    """A request of a page that the user left has no effect."""
    api = FakeApi(number=60)
    gate = asyncio.Event()

    async def hold(route: object) -> None:
        await gate.wait()
        await route.abort()  # type: ignore[attr-defined]

    screen = await wide.open("#/topics", api=api, expected=["ERR_"])
    await screen.page.route("**/topics/orders-changed", hold)
    await screen.page.goto(screen.base + "#/topics/orders-changed")
    await screen.go("#/topics/orders-cancelled")
    await screen.page.get_by_role("table", name="Queues").wait_for()
    gate.set()
    await screen.sees("orders-cancelled")
    assert await screen.page.get_by_role("alert").count() == 0
