"""Consumer groups in the console: the list, a group, and each change, in a real browser at two widths."""

import dataclasses

import pytest
from console_browser import Consoles, has_count

pytestmark = [pytest.mark.process, pytest.mark.asyncio(loop_scope="session")]

BEHIND, DISAGREES = "orders-service", "inventory-service"
TOPIC = "orders-created"


async def test_the_list_begins_with_the_groups_that_are_furthest_behind(consoles: Consoles) -> None:
    screen = await consoles.open("#/consumer-groups")
    await screen.sees("60 groups")
    rows = screen.page.get_by_role("table", name="Consumer groups").get_by_role("row")
    worst = max(screen.api.groups.values(), key=lambda group: group.lag or 0)
    assert worst.name in await rows.nth(1).inner_text()
    await screen.fill("Search consumer groups", DISAGREES)
    await screen.sees("2 groups of 60")
    assert "disagree" in await rows.nth(1).inner_text()


async def test_a_group_shows_its_lag_members_and_configuration(consoles: Consoles) -> None:
    screen = await consoles.open(f"#/consumer-groups/{DISAGREES}")
    await screen.sees("Members subscribe to inventory-created in different ways")
    await screen.sees("not committed")
    await screen.page.get_by_role("img", name=f"Lag of {DISAGREES} in messages. Lag: ").wait_for()
    tabs = screen.page.get_by_role("navigation", name="Parts of the consumer group")
    await tabs.get_by_role("link", name="Members").click()
    members = screen.page.get_by_role("table", name="Members")
    await has_count(members.get_by_role("row"), 1 + screen.api.groups[DISAGREES].members)
    await tabs.get_by_role("link", name="Configuration").click()
    await screen.sees("Deliveries until dead letter")


async def test_a_group_is_created_and_changed(consoles: Consoles) -> None:
    screen = await consoles.open("#/consumer-groups")
    await screen.press("Create group")
    await screen.fill("Name", "invoices")
    await screen.press("Preview")
    await screen.preview()
    assert "invoices" not in screen.api.groups
    await screen.press("Create group")
    await screen.result()
    await screen.press("Close")
    await screen.page.get_by_role("heading", name="invoices", exact=True).wait_for()
    await screen.press("Change")
    await screen.fill("Deliveries until dead letter", "3")
    await screen.press("Preview")
    assert "maxRetries" in await screen.preview()
    await screen.press("Change group")
    await screen.result()
    assert {config.max_retries for config in screen.api.groups["invoices"].configs.values()} == {3}


async def test_offsets_are_reset_as_the_preview_says(consoles: Consoles) -> None:
    screen = await consoles.open(f"#/consumer-groups/{BEHIND}")
    await screen.press("Reset offsets")
    await screen.dialog().get_by_label("Move the offsets to").select_option("shift")
    await screen.fill("Messages", "ten")
    assert await screen.dialog().get_by_role("button", name="Preview").is_disabled()
    await screen.fill("Messages", "-100")
    await screen.press("Preview")
    steps = await screen.preview()
    assert "−100" in steps and steps.count("planned") == 16
    await screen.press("Reset offsets")
    assert (await screen.result()).count("done") == 16
    body = {"topic": TOPIC, "to": {"shift": -100}, "queues": None}
    assert screen.changes() == [
        ("POST", f"/consumer-groups/{BEHIND}/offsets/reset", dry, body) for dry in (True, False)
    ]


async def test_offsets_are_reset_to_a_time(wide: Consoles) -> None:
    screen = await wide.open(f"#/consumer-groups/{BEHIND}")
    await screen.press("Reset offsets")
    await screen.dialog().get_by_label("Move the offsets to").select_option("timestamp")
    await screen.fill("Time", "2026-11-26T10:00:00")
    await screen.press("Preview")
    await screen.preview()
    assert screen.changes()[0][3]["to"] == {"timestamp": 1_795_687_200_000}


async def test_offsets_are_copied_to_another_group(consoles: Consoles) -> None:
    screen = await consoles.open(f"#/consumer-groups/{BEHIND}")
    await screen.press("Copy offsets")
    await screen.fill("Group that gets the offsets", "orders-mirror")
    await screen.press("Preview")
    await screen.preview()
    await screen.press("Copy offsets")
    await screen.result()
    assert screen.changes()[1] == (
        "POST",
        f"/consumer-groups/{BEHIND}/offsets/clone",
        False,
        {"target": "orders-mirror", "topic": TOPIC},
    )


async def test_a_group_is_deleted_only_with_its_name_typed(consoles: Consoles) -> None:
    screen = await consoles.open(f"#/consumer-groups/{BEHIND}")
    await screen.press("Delete")
    await screen.preview()
    confirm = screen.dialog().get_by_role("button", name="Delete group")
    await screen.dialog().get_by_role("textbox").fill("orders")
    assert await confirm.is_disabled()
    await screen.dialog().get_by_role("textbox").fill(BEHIND)
    await confirm.click()
    await screen.result()
    assert BEHIND not in screen.api.groups


async def test_a_group_follows_its_lag_live(wide: Consoles) -> None:
    screen = await wide.open(f"#/consumer-groups/{BEHIND}")
    await screen.page.get_by_role("table", name="Queues").wait_for()
    screen.api.groups[BEHIND] = dataclasses.replace(screen.api.groups[BEHIND], lag=0)
    await screen.page.get_by_role("img", name=f"Lag of {BEHIND} in messages. Lag: 0", exact=True).wait_for()
