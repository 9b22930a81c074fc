"""Messages over HTTP: sent, read, streamed, and consumed as a member of a group, through a real broker."""

from __future__ import annotations

import asyncio
import base64
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from console_lab import ConsoleLab, until

from tallystick.client import Client, Start
from tallystick.console.api import interface, receiving
from tallystick.console.app import CONSOLE


@pytest.fixture
async def lab(tmp_path: Path) -> AsyncIterator[ConsoleLab]:
    async with ConsoleLab(tmp_path) as lab:
        yield lab


async def send(lab: ConsoleLab, *texts: str, topic: str = "Orders", **fields: Any) -> list[dict[str, Any]]:
    """Sends texts and returns their results."""
    found = await lab.call(
        "POST", f"/topics/{topic}/messages", {"messages": [{"text": each, **fields} for each in texts]}
    )
    assert found.status == 201, found
    results: list[dict[str, Any]] = found.json["results"]
    return results


async def receive(lab: ConsoleLab, group: str = "readers", **body: Any) -> list[dict[str, Any]]:
    found = await lab.call("POST", f"/consumer-groups/{group}/messages", {"topic": "Orders", **body})
    assert found.status == 200, found
    messages: list[dict[str, Any]] = found.json
    return messages


async def settle(lab: ConsoleLab, messages: list[dict[str, Any]], result: str, group: str = "readers") -> list[str]:
    receipts = [each["receipt"] for each in messages]
    found = await lab.call(
        "POST", f"/consumer-groups/{group}/acknowledgements", {"receipts": receipts, "result": result}
    )
    assert found.status == 200, found
    return [each["state"] for each in found.json]


async def test_a_message_is_stored_as_the_request_says(lab: ConsoleLab) -> None:
    body = bytes(range(256))
    message = {
        "body": base64.b64encode(body).decode(),
        "tag": "new",
        "keys": ["a", "b"],
        "properties": {"region": "eu"},
        "queue": 2,
        "uniqueKey": "0123456789ABCDEF",
    }
    found = await lab.call("POST", "/topics/Orders/messages", message)
    assert found.status == 201
    (result,) = found.json["results"]
    assert (result["state"], result["queue"], result["offset"]) == ("stored", 2, 0)
    stored = await lab.get(f"/messages/{result['messageId']}")
    assert base64.b64decode(stored["body"]) == body and stored["text"] is None and stored["bodyCrcOk"]
    summary = stored["summary"]
    assert (summary["tag"], summary["keys"], summary["uniqueKey"]) == ("new", ["a", "b"], "0123456789ABCDEF")
    assert stored["properties"]["region"] == "eu"
    found = await lab.get("/topics/Orders/messages", query={"key": "b"})
    assert [each["id"] for each in found["items"]] == [result["messageId"]]
    found = await lab.get("/topics/Orders/messages", query={"uniqueKey": "0123456789ABCDEF"})
    assert [each["id"] for each in found["items"]] == [result["messageId"]]


async def test_many_messages_keep_their_order(lab: ConsoleLab) -> None:
    results = await send(lab, *(str(number) for number in range(200)), orderKey="one")
    assert [each["offset"] for each in results] == list(range(200))
    assert len({(each["broker"], each["queue"]) for each in results}) == 1
    queue = f"/topics/Orders/queues/{results[0]['broker']}/{results[0]['queue']}/messages"
    offset, texts = 0, []
    while len(texts) < 200:
        part = await lab.get(queue, query={"offset": offset, "limit": 32})
        texts += [each["text"] for each in part["items"]]
        offset = part["nextOffset"]
    assert texts == [str(number) for number in range(200)]


async def test_some_messages_of_a_request_are_refused(lab: ConsoleLab) -> None:
    body = {"messages": [{"text": "fits"}, {"text": "x", "properties": {"KEYS": "reserved"}}]}
    found = await lab.call("POST", "/topics/Orders/messages", body)
    assert found.status == 207
    assert [each["state"] for each in found.json["results"]] == ["stored", "notStored"]
    assert "KEYS" in found.json["results"][1]["error"]
    found = await lab.call("POST", "/topics/Orders/messages", body["messages"][1])
    assert (found.status, found.kind) == (400, "invalid-request")


async def test_a_dry_run_sends_nothing(lab: ConsoleLab) -> None:
    found = await lab.call("POST", "/topics/Orders/messages", {"text": "x"}, query={"dryRun": True})
    assert found.status == 404, "it does not create the topic"
    await send(lab, "first")
    found = await lab.call("POST", "/topics/Orders/messages", {"text": "x"}, query={"dryRun": True})
    assert found.status == 200 and found.json["results"][0]["state"] == "planned"
    topic = await lab.get("/topics/Orders")
    assert sum(each["max"] for each in topic["queues"]) == 1


async def test_without_a_broker_a_send_says_so(lab: ConsoleLab) -> None:
    await send(lab, "first")
    await lab.broker.stop_broker()
    found = await lab.call("POST", "/topics/Orders/messages", {"text": "x"})
    assert found.status in (502, 504) and found.json["results"][0]["state"] in ("notStored", "unknown"), found


async def test_a_queue_is_read_from_any_offset(lab: ConsoleLab) -> None:
    await send(lab, *"abcde", queue=1)
    queue = "/topics/Orders/queues/broker-a/1/messages"

    async def texts(**query: Any) -> tuple[list[str], int]:
        found = await lab.get(queue, query=query)
        assert (found["minOffset"], found["maxOffset"]) == (0, 5)
        return [each["text"] for each in found["items"]], found["nextOffset"]

    assert await texts(offset=0) == (["a", "b", "c", "d", "e"], 5)
    assert await texts(offset=1, limit=2) == (["b", "c"], 3)
    assert await texts(offset=-2) == (["d", "e"], 5)
    assert await texts(offset=-99) == (["a", "b", "c", "d", "e"], 5)
    assert await texts(offset=5) == ([], 5)
    assert await texts(offset=10**15) == ([], 5)
    assert (await lab.call("GET", "/topics/Orders/queues/broker-a/99/messages")).status == 404
    assert (await lab.call("GET", "/topics/Orders/queues/broker-z/0/messages")).status == 404
    assert (await lab.call("GET", "/topics/nothing/queues/broker-a/0/messages")).status == 404


async def test_a_long_poll_gets_the_next_message(lab: ConsoleLab) -> None:
    await send(lab, "old", queue=0)
    queue = "/topics/Orders/queues/broker-a/0/messages"
    waiting = asyncio.create_task(lab.get(queue, query={"offset": 1, "waitSeconds": 30}))
    await until(lambda: interface_polls(lab))
    await send(lab, "new", queue=0)
    found = await asyncio.wait_for(waiting, 20)
    assert [each["text"] for each in found["items"]] == ["new"]


def services(lab: ConsoleLab) -> interface.Services:
    """The services of the console of the port."""
    return lab.server._runner.app[CONSOLE].services


def interface_polls(lab: ConsoleLab) -> int:
    return services(lab).polls.count


async def test_requests_that_wait_are_bounded(lab: ConsoleLab) -> None:
    await send(lab, "old", queue=0)
    polls = services(lab).polls
    polls.count = interface.MOST_POLLS
    query = {"offset": 1, "waitSeconds": 30}
    found = await lab.call("GET", "/topics/Orders/queues/broker-a/0/messages", query=query)
    assert (found.status, found.kind, found.headers["Retry-After"]) == (503, "busy", "10")
    polls.count = 0


async def test_a_stop_ends_requests_that_wait(tmp_path: Path) -> None:
    async with ConsoleLab(tmp_path) as lab:
        await send(lab, "old", queue=0)
        query = {"offset": 1, "waitSeconds": 30}
        waiting = asyncio.create_task(lab.call("GET", "/topics/Orders/queues/broker-a/0/messages", query=query))
        await until(lambda: interface_polls(lab))
        stopping = asyncio.create_task(lab.server.stop())
        found = await asyncio.wait_for(waiting, 20)
        assert found.status == 503
        await stopping


async def test_a_group_receives_and_acknowledges(lab: ConsoleLab) -> None:
    await send(lab, *(str(number) for number in range(10)))
    texts: list[str] = []
    while len(texts) < 10:
        messages = await receive(lab, max=4, waitSeconds=20)
        assert 0 < len(messages) <= 4
        texts += [each["message"]["text"] for each in messages]
        assert await settle(lab, messages, "consumed") == ["done"] * len(messages)
        assert await settle(lab, messages, "consumed") == ["unknown"] * len(messages), "once"
    assert sorted(texts, key=int) == [str(number) for number in range(10)]
    group = await lab.get("/consumer-groups/readers")
    assert group["group"]["state"] == "online" and group["group"]["members"] == 1


async def test_what_was_consumed_is_committed_when_the_server_ends(tmp_path: Path) -> None:
    async with ConsoleLab(tmp_path) as lab:
        await send(lab, "one", "two", queue=0)
        first, second = await receive(lab, max=2, waitSeconds=20)
        await settle(lab, [first], "consumed")
        await lab.server.stop()
        async with (
            Client(lab.broker.nameserver) as client,
            client.consumer("readers", "Orders", start=Start.LAST) as consumer,
        ):
            left = await asyncio.wait_for(anext(consumer), 30)
            assert left.body.decode() == second["message"]["text"], "the other one is delivered again"
            await left.ack()


async def test_a_message_without_an_acknowledgement_goes_back_to_its_broker(
    lab: ConsoleLab, monkeypatch: pytest.MonkeyPatch
) -> None:
    await send(lab, "late")
    (message,) = await receive(lab, waitSeconds=20, invisibleSeconds=1)
    assert message["attempts"] == 0
    receiver = next(iter(services(lab).backends._found.values())).receivers.find("readers")
    assert receiver is not None
    await until(lambda: not receiver.open)  # the deadline of a second
    assert await settle(lab, [message], "consumed") == ["unknown"]
    topic = await lab.get("/topics/%25RETRY%25readers")
    assert topic["topic"]["kind"] == "retry"


async def test_a_message_becomes_a_dead_letter(lab: ConsoleLab) -> None:
    await send(lab, "poison")
    messages = await receive(lab, waitSeconds=20)
    assert await settle(lab, messages, "deadLetter") == ["done"]
    found = await lab.get("/topics/%25DLQ%25readers")
    assert sum(each["max"] for each in found["queues"]) == 1


async def test_a_caller_who_left_leaves_the_message_to_the_next_one(lab: ConsoleLab) -> None:
    await send(lab, "old", queue=0)
    await settle(lab, await receive(lab, waitSeconds=20), "consumed")
    left = asyncio.create_task(receive(lab, waitSeconds=30))
    await until(lambda: interface_polls(lab))
    left.cancel()
    await asyncio.gather(left, return_exceptions=True)
    await send(lab, "new", queue=0)
    (message,) = await receive(lab, waitSeconds=20)
    assert (message["message"]["text"], message["attempts"]) == ("new", 0)


async def test_a_group_has_one_topic_and_a_topic_exists(lab: ConsoleLab) -> None:
    await send(lab, "x")
    await receive(lab)
    found = await lab.call("POST", "/consumer-groups/readers/messages", {"topic": "Other"})
    assert (found.status, found.kind) == (409, "conflict")
    found = await lab.call("POST", "/consumer-groups/others/messages", {"topic": "Other"})
    assert (found.status, found.kind) == (404, "not-found")
    found = await lab.call("POST", "/consumer-groups/others/acknowledgements", {"receipts": ["x"]})
    assert [each["state"] for each in found.json] == ["unknown"]


async def test_consumers_are_bounded_and_end_when_they_are_idle(
    lab: ConsoleLab, monkeypatch: pytest.MonkeyPatch
) -> None:
    await send(lab, "x", queue=0)
    monkeypatch.setattr(receiving, "MOST_CONSUMERS", 1)
    (message,) = await receive(lab, waitSeconds=20)
    found = await lab.call("POST", "/consumer-groups/second/messages", {"topic": "Orders"})
    assert (found.status, found.kind) == (503, "busy")
    receivers = next(iter(services(lab).backends._found.values())).receivers
    monkeypatch.setattr(receiving, "IDLE_S", 0.0)
    await receivers.sweep()
    assert len(receivers) == 1, "its message is not acknowledged"
    await settle(lab, [message], "consumed")
    await receivers.sweep()
    assert len(receivers) == 0
    assert await receive(lab, "second", waitSeconds=20)
    assert [each.group for each in receivers._client._owns if hasattr(each, "topic")] == ["second"], "none is left"


async def test_a_consumer_holds_a_bounded_number_of_messages(lab: ConsoleLab, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(receiving, "_MOST_OPEN", 3)
    await send(lab, *"abcdef", queue=0)
    held = await receive(lab, max=32, waitSeconds=20)
    assert len(held) == 3
    found = await lab.call("POST", "/consumer-groups/readers/messages", {"topic": "Orders"})
    assert (found.status, found.kind) == (503, "busy")
    await settle(lab, held[:2], "consumed")
    assert len(await receive(lab, max=32, waitSeconds=20)) == 2
