"""Messages and dead letters in the console, in a real browser at two widths."""

import console_cluster
import pytest
from console_browser import Consoles

pytestmark = [pytest.mark.process, pytest.mark.asyncio(loop_scope="session")]

TOPIC, GROUP = "orders-created", "orders-service"
FIRST = console_cluster.summary(TOPIC, 0)


async def test_messages_are_searched_by_time_and_the_search_continues(consoles: Consoles) -> None:
    screen = await consoles.open("#/messages")
    await screen.fill("Topic", TOPIC)
    await screen.press("Search")
    await screen.sees("50 messages, and further ones")
    await screen.press("Show further messages")
    await screen.sees("100 messages, and further ones")
    await screen.press("Show further messages")
    await screen.page.get_by_text("120 messages", exact=True).wait_for()


async def test_a_window_is_checked(wide: Consoles) -> None:
    screen = await wide.open("#/messages")
    await screen.fill("Topic", TOPIC)
    await screen.main().get_by_label("Stored").select_option("custom")
    await screen.fill("From", "2026-11-26T10:00:00")
    await screen.main().get_by_label("To", exact=True).fill("2026-11-26T09:00:00")
    await screen.sees("must be later than the begin")
    assert await screen.main().get_by_role("button", name="Search").is_disabled()
    await screen.main().get_by_label("To", exact=True).fill("2026-11-26T10:30:00")
    await screen.press("Search")
    await screen.sees("50 messages")
    assert "begin=1795687200000&end=1795689000000" in screen.page.url


async def test_messages_are_found_by_key_and_unique_key(consoles: Consoles) -> None:
    screen = await consoles.open(f"#/messages?topic={TOPIC}")
    for way, label, text in (("By key", "Key", FIRST.keys[0]), ("By unique key", "Unique key", FIRST.unique_key)):
        await screen.main().get_by_label(way, exact=True).check(force=True)
        await screen.main().get_by_label(label, exact=True).fill(text)
        await screen.press("Search")
        await screen.page.get_by_text("1 message", exact=True).wait_for()
    await screen.main().get_by_label("Unique key", exact=True).fill("none")
    await screen.press("Search")
    await screen.sees(f"No message of {TOPIC} has “none”.")


async def test_a_message_shows_its_body_its_life_and_its_readers(consoles: Consoles) -> None:
    screen = await consoles.open("#/messages")
    await screen.main().get_by_label("By id", exact=True).check(force=True)
    await screen.main().get_by_label("Message id or unique key").fill(FIRST.id)
    await screen.press("Open")
    body = screen.page.get_by_role("region", name="Content of the body")
    await body.wait_for()
    assert '"customer": 8812' in await body.inner_text()
    await screen.main().get_by_label("Text", exact=True).check(force=True)
    assert (await body.inner_text()).startswith('{"order":"order-4711","customer":8812')
    await screen.main().get_by_label("Hex", exact=True).check(force=True)
    assert (await body.inner_text()).startswith("00000000  7b 22 6f 72 64 65 72 22")
    life = await screen.page.get_by_role("listitem").filter(has_text="Failed").inner_text()
    assert "took 149 ms" in life and "inventory did not answer" in life
    readers = await screen.page.get_by_role("table", name="Consumer groups of the message").inner_text()
    assert "not consumed" in readers and "filtered out" in readers


async def test_a_damaged_body_is_said_and_shown_as_bytes(wide: Consoles) -> None:
    screen = await wide.open(f"#/messages/{console_cluster.DAMAGED_ID}")
    await screen.sees("The body is damaged")
    assert (await screen.page.get_by_role("region", name="Content of the body").inner_text()).startswith(
        "00000000  00 01 02"
    )
    assert await screen.main().get_by_label("Text", exact=True).count() == 0


async def test_a_message_is_sent_again_to_a_group(consoles: Consoles) -> None:
    screen = await consoles.open(f"#/messages/{FIRST.id}")
    await screen.press("Resend to fraud-report")
    await screen.press("Preview")
    assert "planned" in await screen.preview()
    await screen.press("Resend")
    assert "done" in await screen.result()
    body = {"group": "fraud-report", "clientId": None}
    assert screen.changes() == [("POST", f"/messages/{FIRST.id}/resend", dry, body) for dry in (True, False)]


async def test_selected_dead_letters_are_sent_again_with_a_result_for_each(consoles: Consoles) -> None:
    screen = await consoles.open("#/dead-letters")
    await screen.page.get_by_role("link", name=GROUP).click()
    await screen.sees("34 dead letters")
    assert await screen.page.get_by_role("button", name="Resend selected").is_disabled()
    ids = [console_cluster.summary(TOPIC, number).id for number in (0, 2)]
    for each in ids:
        await screen.page.get_by_label(f"Select {each}").check()
    await screen.press("Resend 2")
    assert (await screen.preview()).count("planned") == 2
    await screen.press("Resend")
    result = await screen.result()
    assert "1 of 2 steps failed" in result and "The message is no longer stored." in result
    assert [(dry, body) for _, _, dry, body in screen.changes()] == [(True, {"ids": ids}), (False, {"ids": ids})]
    await screen.press("Close")
    await screen.page.get_by_role("button", name="Resend selected").wait_for()


async def test_all_dead_letters_are_sent_again(wide: Consoles) -> None:
    screen = await wide.open(f"#/dead-letters/{GROUP}")
    await screen.press("Resend all")
    assert (await screen.preview()).count("planned") == 34
    await screen.press("Resend")
    await screen.result()
    assert [body for _, _, _, body in screen.changes()] == [{"ids": None}] * 2
