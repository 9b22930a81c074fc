"""The overview, the cluster, the configuration and the audit log in the console, in a real browser at two widths."""

import console_cluster
import pytest
from console_browser import Consoles

pytestmark = [pytest.mark.process, pytest.mark.asyncio(loop_scope="session")]


async def test_the_overview_says_what_needs_attention(consoles: Consoles) -> None:
    screen = await consoles.open()
    await screen.sees("5 of 6")
    await screen.sees("Broker orders-b (10.0.1.12:10911) is not reachable")
    await screen.sees("Members of inventory-service have different subscriptions")
    await screen.page.get_by_role("img", name="Messages per second of the whole cluster. In: ").wait_for()
    await screen.page.get_by_role("table", name="Busiest topics").wait_for()


async def test_the_cluster_shows_groups_and_a_broker_that_is_not_reachable(consoles: Consoles) -> None:
    screen = await consoles.open("#/cluster")
    members = screen.page.get_by_role("table", name="Members of orders-b")
    text = await members.inner_text()
    assert "catching-up" in text and "3 GiB of 8 GiB" in text and "not connected" in text
    brokers = await screen.page.get_by_role("table", name="Brokers of shop").inner_text()
    assert "no connection within 5 s" in brokers
    await screen.press("Details of 10.0.0.10:10911")
    await screen.dialog().get_by_label("Search values").fill("maxoffset")
    assert "node.store.maxOffset" in await screen.dialog().get_by_role("table").inner_text()


@pytest.mark.parametrize(
    ("button", "fields", "verb", "confirm", "path", "body"),
    [
        ("Make member 1 the leader", {}, "Transfer leadership", None, "/raft-groups/orders-a/leader", {"member": 1}),
        ("Remove member 2", {}, "Remove member", "2", "/raft-groups/orders-a/members/2", {}),
        (
            "Add member",
            {"Member": "3@10.0.0.13:40911"},
            "Add member",
            None,
            "/raft-groups/orders-a/members",
            {"member": "3@10.0.0.13:40911", "learner": True},
        ),
        ("Writes of orders-a", {"": ""}, "Stop writes", None, "/brokers/orders-a/write-permission", {"allowed": False}),
    ],
)
async def test_each_change_of_the_cluster_has_a_preview(
    consoles: Consoles,
    button: str,
    fields: dict[str, str],
    verb: str,
    confirm: str | None,
    path: str,
    body: dict[str, object],
) -> None:
    screen = await consoles.open("#/cluster")
    await screen.page.get_by_role("table", name="Brokers of shop").wait_for()
    await screen.main().get_by_role("button", name=button, exact=True).first.click()
    for label, value in fields.items():
        if label:
            await screen.dialog().get_by_label(label, exact=True).fill(value)
    if fields:
        await screen.press("Preview")
    await screen.preview()
    if confirm:
        assert await screen.dialog().get_by_role("button", name=verb).is_disabled()
        await screen.dialog().get_by_role("textbox").fill(confirm)
    await screen.press(verb)
    assert "Done" in await screen.result()
    assert [(changed, dry, sent) for _, changed, dry, sent in screen.changes()] == [
        (path, dry, body) for dry in (True, False)
    ]


async def test_settings_that_differ_are_first_and_one_is_changed_at_all_brokers(consoles: Consoles) -> None:
    screen = await consoles.open("#/settings")
    rows = screen.page.get_by_role("table", name="Settings").get_by_role("row")
    await screen.sees("10 settings, 1 differs")
    assert "fileReservedTime" in await rows.nth(1).inner_text()
    await screen.main().get_by_label("Only differences").check()
    await screen.sees("1 setting, 1 differs")
    await screen.press("Change fileReservedTime")
    await screen.fill("Value", "72")
    await screen.press("Preview")
    assert (await screen.preview()).count("planned") == 6
    await screen.press("Change setting")
    await screen.result()
    await screen.press("Close")
    await screen.sees("All brokers agree")
    assert len(screen.changes()) == 12


async def test_the_audit_log_is_searched_and_continues(consoles: Consoles) -> None:
    screen = await consoles.open("#/audit")
    await screen.page.get_by_text("100 lines", exact=True).wait_for()
    await screen.main().get_by_label("Only refused").check()
    await screen.page.get_by_text("50 lines", exact=True).wait_for()
    await screen.press("Show older lines")
    await screen.page.get_by_text("100 lines", exact=True).wait_for()
    await screen.fill("Search the lines that were read", "reports")
    await screen.page.get_by_text("50 lines", exact=True).wait_for()
    line = console_cluster.audit(2)[1]
    assert (
        line.resource in await screen.page.get_by_role("table", name="Audit log").get_by_role("row").nth(1).inner_text()
    )
