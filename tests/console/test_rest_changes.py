"""Changes over HTTP, as previews and for real, with a real broker: topics, groups, offsets, settings, dead letters."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from console_lab import Answered, ConsoleLab

from tallystick.client import Client


@pytest.fixture
async def lab(tmp_path: Path) -> AsyncIterator[ConsoleLab]:
    async with ConsoleLab(tmp_path) as lab:
        yield lab


def states(found: Answered) -> list[str]:
    assert found.status == 200, found
    return [each["state"] for each in found.json["steps"]]


async def topic(lab: ConsoleLab, name: str) -> Answered:
    return await lab.call("GET", f"/topics/{name}")


async def test_a_topic_is_created_changed_and_deleted(lab: ConsoleLab) -> None:
    path = "/topics/Orders"
    preview = {"dryRun": True}
    assert states(await lab.call("PUT", path, {"readQueues": 3, "writeQueues": 3}, query=preview)) == ["planned"]
    assert (await topic(lab, "Orders")).status == 404
    assert states(await lab.call("PUT", path, {"readQueues": 3, "writeQueues": 3})) == ["done"]
    assert states(await lab.call("PUT", path, {"readQueues": 3})) == ["unchanged"]
    found = await topic(lab, "Orders")
    config = found.json["topic"]["configs"]["broker-a"]
    assert (config["readQueues"], config["writeQueues"], config["perm"]) == (3, 3, 6)
    assert found.headers["ETag"] == f'"{found.json["topic"]["etag"]}"'
    assert states(await lab.call("DELETE", path, query=preview))[0] == "planned"
    assert (await topic(lab, "Orders")).status == 200
    assert set(states(await lab.call("DELETE", path))) <= {"done", "unchanged"}
    assert (await lab.call("DELETE", path)).status == 404


@pytest.mark.parametrize(
    ("path", "change", "other"),
    [
        ("/topics/Orders", {"readQueues": 3}, {"readQueues": 4}),
        ("/consumer-groups/g", {"maxRetries": 3}, {"maxRetries": 4}),
    ],
)
async def test_a_change_of_what_another_request_changed_is_refused(
    lab: ConsoleLab, path: str, change: dict[str, Any], other: dict[str, Any]
) -> None:
    create = {"If-None-Match": "*"}
    assert (await lab.call("PUT", path, change, headers=create)).status == 200
    found = await lab.call("PUT", path, change, headers=create)
    assert (found.status, found.kind) == (412, "changed")
    etag = (await lab.call("GET", path)).headers["ETag"]
    seen = {"If-Match": etag}
    assert states(await lab.call("PUT", path, other, headers=seen)) == ["done"]
    for method, body in (("PUT", change), ("DELETE", None)):
        found = await lab.call(method, path, body, headers=seen)
        assert (found.status, found.kind) == (412, "changed")
        now = (await lab.call("GET", path)).headers["ETag"]
        assert f'"{found.json["etag"]}"' == now != etag, "the answer has the ETag of now"
    assert (await lab.call("PUT", path, change, headers={"If-Match": "*"})).status == 200
    for wrong in ("1f3a", '"a", "b"', 'W/"a"'):
        found = await lab.call("PUT", path, change, headers={"If-Match": wrong})
        assert (found.status, found.kind) == (400, "invalid-request"), wrong
    found = await lab.call("PUT", path, change, headers=create | seen)
    assert found.status == 400


async def test_offsets_are_previewed_and_set(lab: ConsoleLab) -> None:
    messages = [{"text": str(number), "queue": 0} for number in range(10)]
    assert (await lab.call("POST", "/topics/Orders/messages", {"messages": messages})).status == 201
    async with Client(lab.broker.nameserver) as client:
        pull = client.pull("Orders", group="readers")
        queue = (await pull.queues())[0]
        await pull.commit(queue, 4)

        async def reset(to: dict[str, Any], **query: Any) -> tuple[Any, Any]:
            body = {"topic": "Orders", "to": to, "queues": [{"broker": queue.broker, "queue": 0}]}
            found = await lab.call("POST", "/consumer-groups/readers/offsets/reset", body, query=query)
            assert found.status == 200, found
            (step,) = found.json["steps"]
            return step["before"], step["after"]

        assert await reset({"earliest": True}, dryRun=True) == (4, 0)
        assert await pull.committed(queue) == 4
        assert await reset({"shift": 2}) == (4, 6)
        assert await reset({"offset": 3}) == (6, 3)
        assert await reset({"latest": True}) == (3, 10)
        assert await reset({"timestamp": 0}) == (10, 0)
        assert await pull.committed(queue) == 0
        clone = {"topic": "Orders", "target": "others"}
        found = await lab.call("POST", "/consumer-groups/readers/offsets/clone", clone)
        assert found.status == 200, found
        assert await client.pull("Orders", group="others").committed(queue) == 0


async def test_offsets_of_members_that_are_connected(lab: ConsoleLab) -> None:
    """Members would overwrite the offset of one queue: the steps fail, and the problem has them."""
    assert (await lab.call("POST", "/topics/Orders/messages", {"text": "x", "queue": 0})).status == 201
    received = await lab.call("POST", "/consumer-groups/readers/messages", {"topic": "Orders", "waitSeconds": 20})
    assert len(received.json) == 1
    body = {"topic": "Orders", "to": {"offset": 0}}
    found = await lab.call("POST", "/consumer-groups/readers/offsets/reset", body)
    assert (found.status, found.kind) == (502, "incomplete")
    assert {each["state"] for each in found.json["change"]["steps"]} == {"failed"}
    assert "connected members" in found.json["detail"]


async def test_a_setting_is_changed(lab: ConsoleLab) -> None:
    path = f"/brokers/{lab.broker.address}/settings"
    assert states(await lab.call("PATCH", path, {"fileReservedTime": "48"}, query={"dryRun": True})) == ["planned"]
    assert states(await lab.call("PATCH", path, {"fileReservedTime": "48"})) == ["done"]
    found = {each["name"]: each["values"] for each in await lab.get("/settings")}
    assert found["fileReservedTime"] == {lab.broker.address: "48"}


async def test_the_write_permission_of_a_broker(lab: ConsoleLab) -> None:
    assert (await lab.call("POST", "/topics/Orders/messages", {"text": "x"})).status == 201
    path = "/brokers/broker-a/write-permission"
    assert set(states(await lab.call("POST", path, {"allowed": False}))) == {"done"}
    assert set(states(await lab.call("POST", path, {"allowed": True}))) == {"done"}


async def test_dead_letters_are_sent_again(lab: ConsoleLab) -> None:
    assert (await lab.call("POST", "/topics/Orders/messages", {"text": "poison"})).status == 201
    receive = {"topic": "Orders", "waitSeconds": 20}
    (message,) = (await lab.call("POST", "/consumer-groups/readers/messages", receive)).json
    dead = {"receipts": [message["receipt"]], "result": "deadLetter"}
    assert (await lab.call("POST", "/consumer-groups/readers/acknowledgements", dead)).json[0]["state"] == "done"
    assert await lab.get("/dead-letters") == [{"group": "readers", "messages": 1}]
    (letter,) = (await lab.get("/dead-letters/readers"))["items"]
    found = await lab.call("POST", "/dead-letters/readers/resend", {"ids": [letter["id"]]}, query={"dryRun": True})
    assert [each["state"] for each in found.json] == ["planned"]
    found = await lab.call("POST", "/dead-letters/readers/resend", {"ids": None})
    assert [each["state"] for each in found.json] == ["done"]
    (again,) = (await lab.call("POST", "/consumer-groups/readers/messages", receive)).json
    assert again["message"]["text"] == "poison"


async def test_a_message_is_shown_with_its_consumers_and_its_steps(lab: ConsoleLab) -> None:
    sent = await lab.call("POST", "/topics/Orders/messages", {"text": "x"})
    id = sent.json["results"][0]["messageId"]
    received = await lab.call("POST", "/consumer-groups/readers/messages", {"topic": "Orders", "waitSeconds": 20})
    assert len(received.json) == 1
    assert [each["group"] for each in await lab.get(f"/messages/{id}/consumers")] == ["readers"]
    assert "stored" in [each["kind"] for each in await lab.get(f"/messages/{id}/trace")]
    found = await lab.call("POST", f"/messages/{id}/resend", {"group": "readers"}, query={"dryRun": True})
    assert (found.status, found.json["state"]) == (200, "planned")


async def test_each_read_of_a_small_cluster(lab: ConsoleLab) -> None:
    """The answers are checked against the document by the lab."""
    assert (await lab.call("POST", "/topics/Orders/messages", {"text": "x"})).status == 201
    for path in (
        "/clusters",
        "/figures",
        "/brokers",
        f"/brokers/{lab.broker.address}",
        "/raft-groups",
        "/topics?system=true",
        "/topics/Orders/producers",
        "/consumer-groups?system=true",
        "/dead-letters",
        "/settings",
    ):
        await lab.get(path)
    assert (await lab.call("GET", "/brokers/127.0.0.1:1")).status == 404
    begin, end = 0, 1 << 50
    page = await lab.get("/topics/Orders/messages", query={"begin": begin, "end": end})
    assert len(page["items"]) == 1
    assert (await lab.call("GET", "/topics/Orders/messages", query={"begin": 1})).status == 400
    found = await lab.call("GET", "/topics?cursor=not-a-cursor")
    assert (found.status, found.kind) == (400, "invalid-request")
