"""kill -9 behind the acknowledgement of a topic's first message: the message is there after a start."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest
from tally_process import TallyProcess

from tallystick.node.core.client import ClusterClient
from tallystick.node.remoting.client import RemotingClient
from tallystick.node.remoting.codes import RequestCode
from tallystick.node.remoting.command import Command
from tallystick.store.formats import properties

pytestmark = pytest.mark.process

TOPICS = 40


async def send_to_new_topics(broker: str, label: str) -> list[str]:
    """One message to each of many new topics, at once; the topics that were acknowledged."""
    client = RemotingClient(name="test")

    async def send(topic: str, number: int) -> str | None:
        pairs = {properties.UNIQ_KEY: f"{number:032X}"} | ({properties.DELAY: "1"} if number % 5 == 4 else {})
        ext = {"a": "p", "b": topic, "c": "TBW102", "d": "4", "e": "3", "f": "0", "g": "1", "h": "0", "j": "0"}
        ext |= {"i": properties.encode(pairs), "k": "false", "m": "false"}
        answer = await client.call(broker, Command(RequestCode.SEND_MESSAGE_V2, ext=ext, body=topic.encode()), 30.0)
        return topic if answer.code == 0 else None

    try:
        answers = await asyncio.gather(*(send(f"{label}-{number}", number) for number in range(TOPICS)))
    finally:
        await client.close(grace_s=0.0)
    return [topic for topic in answers if topic is not None]


async def topics_of(broker: str) -> set[str]:
    async with ClusterClient("", timeout_s=30.0) as client:
        answer = await client.call(broker, RequestCode.GET_ALL_TOPIC_CONFIG, {})
    return set(json.loads(answer.body)["topicConfigTable"])


@pytest.mark.parametrize("flush", ["SYNC_FLUSH", "ASYNC_FLUSH"])
def test_a_topic_is_there_after_a_kill_if_a_message_to_it_was_acknowledged(tmp_path: Path, flush: str) -> None:
    acknowledged: list[str] = []
    for number in range(3):
        with TallyProcess(tmp_path, "--set", f"flushDiskType={flush}") as tally:
            assert set(acknowledged) <= asyncio.run(topics_of(tally.places["broker"]))
            acknowledged += asyncio.run(send_to_new_topics(tally.places["broker"], f"made-{number}"))
            tally.process.kill()
            tally.process.wait(30)
    assert len(acknowledged) == 3 * TOPICS
    with TallyProcess(tmp_path) as tally:
        assert set(acknowledged) <= asyncio.run(topics_of(tally.places["broker"]))
