"""Expiry by topic in a real process: set by the tools, seen by clients, kept over kills."""

from __future__ import annotations

import asyncio
import json
import signal
import time
import urllib.request
from pathlib import Path
from typing import Any

import pytest
from aged_log import write_log
from tally_process import TallyProcess, tally

from tallystick.node.core.client import ClusterClient, QueueAddress, RequestRefusedError
from tallystick.node.remoting.codes import RequestCode, ResponseCode
from tallystick.store import fastjson
from tallystick.store.formats.message_id import decode_message_id
from tallystick.store.formats.record import Record
from tallystick.store.verify.report import verify

HOUR_MS = 3_600_000
FAST = ("--set", "cleanResourceInterval=50")
OLD, YOUNG = 30, 12


def aged(folder: Path) -> list[Record]:
    """The store of `tally run` in that folder: two queues of a topic with old and young messages, one of another."""
    now_ms = time.time_ns() // 1_000_000
    old = [("T", at % 2, now_ms - 5 * HOUR_MS + at) for at in range(OLD)]
    young = [("T", at % 2, now_ms - HOUR_MS // 2 + at) for at in range(YOUNG)]
    return write_log(folder / "data" / "store", [*old, *[("Other", 0, now_ms - 5 * HOUR_MS)] * 3, *young])


async def until_first(client: ClusterClient, queue: QueueAddress, wanted: int) -> None:
    async with asyncio.timeout(60):
        while (await client.offset_range(queue))[0] != wanted:  # noqa: ASYNC110  # of another process
            await asyncio.sleep(0.02)


async def code_of(client: ClusterClient, broker: str, code: int, ext: dict[str, str]) -> int:
    try:
        return (await client.call(broker, code, ext)).code
    except RequestRefusedError as refused:
        return refused.code


async def expired(process: TallyProcess) -> int:
    _, page = await asyncio.to_thread(process.get, "/metrics")
    (line,) = [line for line in page.splitlines() if line.startswith("rocketmq_expired_messages_total{")]
    return int(float(line.split()[-1]))


def topic(process: TallyProcess, *arguments: str) -> tuple[int, str, str]:
    done = tally("topic", *arguments, "-n", process.nameserver)
    return done.returncode, done.stdout, done.stderr


def put(process: TallyProcess, name: str, **fields: Any) -> dict[str, Any]:
    request = urllib.request.Request(
        f"http://{process.places['http']}/topics/{name}",
        json.dumps(fields).encode(),
        {"Content-Type": "application/json"},
        method="PUT",
    )
    with urllib.request.urlopen(request) as answer:
        found: dict[str, Any] = json.loads(answer.read())
        return found


def test_messages_expire_and_stay_so(tmp_path):
    records = aged(tmp_path)
    first = OLD // 2

    async def before_kill(process: TallyProcess) -> None:
        broker = process.places["broker"]
        queue = QueueAddress("T", "", broker, 0)
        async with ClusterClient("") as client:
            await client.create_topic(broker, "Other", 1)
            await client.commit(queue, "behind", 3)
            assert topic(process, "create", "T", "--queues", "2", "--retention-hours", "2")[0] == 0
            await until_first(client, queue, first)
            await until_first(client, QueueAddress("T", "", broker, 1), first)
            await seen(client, broker, queue)
            assert await expired(process) == OLD
            assert (await client.offset_range(QueueAddress("Other", "", broker, 0)))[0] == 0

    async def seen(client: ClusterClient, broker: str, queue: QueueAddress) -> None:
        """What RocketMQ answers after a clean."""
        low = await client.pull(queue, 3, group="behind")
        assert (low.records, low.next_offset, low.min_offset) == ([], first, first)
        found = await client.pull(queue, first, group="behind")
        assert [record.queue_offset for record in found.records] == list(range(first, first + YOUNG // 2))
        where = {"topic": "T", "queueId": "0"}
        mine = [record for record in records if (record.topic, record.queue_id) == ("T", 0)]
        asked = {
            RequestCode.GET_MIN_OFFSET: ({}, "offset", first),
            RequestCode.GET_MAX_OFFSET: ({}, "offset", len(mine)),
            RequestCode.SEARCH_OFFSET_BY_TIMESTAMP: ({"timestamp": "0"}, "offset", first),
            RequestCode.GET_EARLIEST_MSG_STORETIME: ({}, "timestamp", mine[first].store_timestamp_ms),
        }
        for code, (ext, field, wanted) in asked.items():
            answer = await client.call(broker, code, where | ext)
            assert int((answer.ext or {})[field]) == wanted, code
        stats = await client.call(broker, RequestCode.GET_TOPIC_STATS_INFO, {"topic": "T"})
        rows = fastjson.loads(stats.body)["offsetTable"].values()
        assert [(row["minOffset"], row["maxOffset"]) for row in rows] == [(first, len(mine))] * 2
        group = {"consumerGroup": "new", "topic": "T", "queueId": "0"}
        assert await code_of(client, broker, RequestCode.QUERY_CONSUMER_OFFSET, group) == ResponseCode.QUERY_NOT_FOUND
        for record, wanted in ((mine[first - 1], ResponseCode.SYSTEM_ERROR), (mine[first], ResponseCode.SUCCESS)):
            _, pos = decode_message_id(record.message_id)
            by_id = await code_of(client, broker, RequestCode.VIEW_MESSAGE_BY_ID, {"offset": str(pos)})
            assert by_id == wanted

    async def after_kill(process: TallyProcess) -> None:
        broker = process.places["broker"]
        queue = QueueAddress("T", "", broker, 0)
        async with ClusterClient("") as client:
            assert (await client.offset_range(queue))[0] == first, "at once, without a pass"
            await seen(client, broker, queue)
            assert await expired(process) == 0, "the killed process counted them"
            assert put(process, "T", retentionHours=0)["retentionHours"] == 0
            await client.send(queue, b"new")
            assert (await client.offset_range(queue))[0] == first
            assert topic(process, "delete", "T")[0] == 0
            assert topic(process, "create", "T", "--queues", "2")[0] == 0
            assert await client.send(queue, b"again") is not None
            assert await client.offset_range(queue) == (0, 1)

    with TallyProcess(tmp_path, *FAST) as process:
        asyncio.run(before_kill(process))
        process.end(signal.SIGKILL)
    table = json.loads((tmp_path / "data/store/config/firstOffset.json").read_bytes())
    assert {queue: row[0] for queue, row in table["offsetTable"]["T"].items()} == {"0": first, "1": first}
    assert verify(tmp_path / "data/store").sound
    with TallyProcess(tmp_path, "--set", "cleanResourceInterval=3600000") as process:
        asyncio.run(after_kill(process))
        assert process.end() == 0
    with TallyProcess(tmp_path) as process:

        async def again() -> None:
            async with ClusterClient("") as client:
                assert await client.offset_range(QueueAddress("T", "", process.places["broker"], 0)) == (0, 1)

        asyncio.run(again())


def test_a_lost_table_and_a_stale_one_hide_nothing_and_what_expired_expires_again(tmp_path):
    aged(tmp_path)
    store = tmp_path / "data/store"

    async def first_is(process: TallyProcess, wanted: int) -> None:
        async with ClusterClient("") as client:
            await until_first(client, QueueAddress("T", "", process.places["broker"], 1), wanted)

    with TallyProcess(tmp_path, *FAST) as process:
        assert topic(process, "create", "T", "--queues", "2", "--retention-hours", "2")[0] == 0
        asyncio.run(first_is(process, OLD // 2))
        assert process.end() == 0
    for path in (store / "config").glob("firstOffset.json*"):
        path.write_text("{")
    with TallyProcess(tmp_path, *FAST) as process:
        asyncio.run(first_is(process, OLD // 2))
        assert "firstOffset.json" in process.log.read_text()
        assert process.end() == 0
    stale = {"offsetTable": {"T": {"0": [17, 99], "1": [3, 1 << 40]}, "Gone": {"0": [5, 5]}}}
    (store / "config/firstOffset.json").write_text(json.dumps(stale))
    with TallyProcess(tmp_path, "--set", "cleanResourceInterval=3600000") as process:
        asyncio.run(first_is(process, 0))
        assert process.end() == 0
    with TallyProcess(tmp_path, *FAST) as process:
        asyncio.run(first_is(process, OLD // 2))
        assert process.end() == 0
    table = json.loads((store / "config/firstOffset.json").read_bytes())["offsetTable"]
    assert table.keys() == {"T"}


def test_the_command_line_says_what_is_wrong(tmp_path):
    with TallyProcess(tmp_path) as process:
        status, _, problem = topic(process, "create", "T", "--retention-hours", "100")
        assert status == 0
        assert "has no effect" in problem
        assert "72 h (fileReservedTime)" in problem
        assert topic(process, "update", "T", "--retention-hours", "5", "--perm", "4")[0] == 0
        row = json.loads(process.get("/topics/T")[1])
        assert (row["retentionHours"], row["perm"], row["writeQueues"]) == (5, 4, 8)
        assert topic(process, "update", "T", "--queues", "9")[0] == 0
        row = json.loads(process.get("/topics/T")[1])
        assert (row["retentionHours"], row["perm"], row["writeQueues"]) == (5, 4, 9)
        assert topic(process, "update", "T", "--retention-hours", "0")[0] == 0
        assert json.loads(process.get("/topics/T")[1])["retentionHours"] == 0
        status, _, problem = topic(process, "update", "No", "--retention-hours", "5")
        assert status != 0
        assert "No" in problem
        for wrong in ("-1", "87601", "x"):
            assert topic(process, "update", "T", "--retention-hours", wrong)[0] == 2
        with pytest.raises(urllib.error.HTTPError) as refused:
            put(process, "T", retentionHours=87601)
        assert "87600" in refused.value.read().decode()
        with pytest.raises(urllib.error.HTTPError):
            put(process, "SELF_TEST_TOPIC", retentionHours=1)
