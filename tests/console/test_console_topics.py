"""Topics in the console: the list, a topic, and each change, in a real browser at two widths."""

import dataclasses

import pytest
from console_browser import Consoles, has_count

pytestmark = [pytest.mark.process, pytest.mark.asyncio(loop_scope="session")]

TOPIC = "orders-changed"


async def test_the_list_is_searched_and_hides_system_topics(consoles: Consoles) -> None:
    screen = await consoles.open("#/topics")
    await screen.sees("60 topics")
    await screen.page.keyboard.press("/")
    await screen.page.keyboard.type("orders-c")
    await screen.sees("3 topics of 60")
    assert "search=orders-c" in screen.page.url, "a link to the search can be kept"
    await screen.fill("Search topics", "no such topic")
    await screen.sees("No topic has this name")
    await screen.fill("Search topics", "")
    await screen.page.get_by_label("System topics").check()
    await screen.sees("64 topics")
    await screen.fill("Search topics", "TBW102")
    await screen.page.get_by_role("link", name="TBW102").wait_for()


async def test_a_long_list_has_pages_and_is_sorted(wide: Consoles) -> None:
    screen = await wide.open("#/topics", number=130)
    table = screen.page.get_by_role("table", name="Topics")
    await screen.sees("1–50 of 130")
    await has_count(table.get_by_role("row"), 51)
    await screen.press("Next page")
    await screen.press("Next page")
    await screen.sees("101–130 of 130")
    assert await screen.page.get_by_role("button", name="Next page").is_disabled()
    await screen.press("Messages", within=table)
    assert await table.get_by_role("columnheader", name="Messages").get_attribute("aria-sort") == "descending"
    await screen.press("Previous page")
    await screen.press("Previous page")
    largest = max(screen.api.topics.values(), key=lambda topic: topic.messages or 0)
    assert largest.name in await table.get_by_role("row").nth(1).inner_text()


async def test_a_topic_shows_its_queues_clients_and_configuration(consoles: Consoles) -> None:
    screen = await consoles.open(f"#/topics/{TOPIC}")
    await screen.page.get_by_role("table", name="Queues").wait_for()
    tabs = screen.page.get_by_role("navigation", name="Parts of the topic")
    await tabs.get_by_role("link", name="Producers").click()
    await screen.sees("10.1.4.20@4000#producer")
    await tabs.get_by_role("link", name="Consumer groups").click()
    await screen.page.get_by_role("table", name="Consumer groups").wait_for()
    await tabs.get_by_role("link", name="Configuration").click()
    await screen.sees("read and write")
    assert screen.page.url.endswith("?tab=configuration")


async def test_a_topic_is_created_after_its_preview(consoles: Consoles) -> None:
    screen = await consoles.open("#/topics")
    await screen.sees("60 topics")
    await screen.press("Create topic")
    await screen.fill("Name", "bad name")
    assert await screen.dialog().get_by_role("button", name="Preview").is_disabled()
    await screen.fill("Name", "invoices")
    await screen.fill("Queues to read", "4")
    await screen.press("Preview")
    assert (await screen.preview()).count("planned") == 2
    assert "invoices" not in screen.api.topics, "a preview changes nothing"
    await screen.press("Create topic")
    assert "Done" in await screen.result()
    await screen.press("Close")
    body = {"readQueues": 4, "writeQueues": 8, "perm": 6, "order": False}
    assert screen.changes() == [("PUT", "/topics/invoices", dry, body) for dry in (True, False)]
    await screen.page.get_by_role("heading", name="invoices", exact=True).wait_for()


async def test_a_change_that_failed_at_a_broker_shows_each_result(consoles: Consoles) -> None:
    screen = await consoles.open("#/topics/orders-created", expected=["502"])
    await screen.press("Change")
    await screen.sees("Kubernetes manages this object: Topic shop/orders-created")
    await screen.fill("Queues to read", "16")
    await screen.press("Preview")
    steps = await screen.preview()
    assert "readQueues" in steps and "8" in steps and "16" in steps
    await screen.press("Back")
    await screen.fill("Queues to read", "12")
    await screen.press("Preview")
    assert "12" in await screen.preview()
    await screen.press("Change topic")
    result = await screen.result()
    assert "1 of 2 steps failed" in result and "The broker did not answer within 5 s." in result


async def test_a_topic_that_somebody_else_changed_is_not_overwritten(wide: Consoles) -> None:
    screen = await wide.open(f"#/topics/{TOPIC}", expected=["412"])
    await screen.press("Change")
    await screen.dialog().wait_for()
    screen.api.topics[TOPIC] = dataclasses.replace(screen.api.topics[TOPIC], etag="later")
    await screen.press("Preview")
    await screen.sees("It was changed by another request")


async def test_a_topic_is_deleted_only_with_its_name_typed(consoles: Consoles) -> None:
    screen = await consoles.open(f"#/topics/{TOPIC}")
    await screen.press("Delete")
    await screen.preview()
    confirm = screen.dialog().get_by_role("button", name="Delete topic")
    assert await confirm.is_disabled()
    await screen.dialog().get_by_role("textbox").fill(TOPIC)
    await confirm.click()
    await screen.result()
    await screen.press("Close")
    assert TOPIC not in screen.api.topics
    await screen.page.get_by_role("heading", name="Topics", exact=True).wait_for()


async def test_a_test_message_is_sent(consoles: Consoles) -> None:
    screen = await consoles.open(f"#/topics/{TOPIC}")
    await screen.press("Send message")
    await screen.fill("Body", "hello")
    await screen.fill("Tag", "created")
    await screen.fill("Keys", "one two")
    await screen.fill("Properties", "not a property")
    await screen.sees("“not a property” is not NAME=VALUE.")
    await screen.fill("Properties", "region=eu")
    await screen.dialog().get_by_label("Delay").select_option("3")
    await screen.press("Send message")
    await screen.sees("stored")
    assert screen.api.sent == [
        {"text": "hello", "tag": "created", "keys": ["one", "two"], "properties": {"region": "eu"}, "delayLevel": 3}
    ]
    await screen.dialog().get_by_role("link").click()
    await screen.page.get_by_role("heading", name="Message", exact=True).wait_for()
