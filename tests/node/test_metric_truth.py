"""Each figure of a broker against load that was counted: /metrics, runtime information, counters (315) and /node.

A known number of messages of each kind is sent, pulled, given back and committed; then every figure is compared with
the count. What a figure means is written beside it where its name does not say it.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest
from metrics_page import check_page, documented
from prometheus_client.parser import text_string_to_metric_families
from tally_process import SMALL

from tallystick.node.broker.broker import Broker
from tallystick.node.core.configuration import parse_text
from tallystick.node.core.settings import BrokerSettings
from tallystick.node.http.metrics import BrokerMetrics
from tallystick.node.remoting.client import RemotingClient
from tallystick.node.remoting.codes import RequestCode
from tallystick.node.remoting.command import Command
from tallystick.store import fastjson
from tallystick.store.formats.record import Record
from tallystick.store.settings import StoreSettings

pytestmark = pytest.mark.process

HOT, COLD, DELAYED, HALVES, BACK, REFUSED = 70, 5, 4, 3, 2, 6
BODY = b"x" * 100
_COMMON = ("cluster", "node_type", "node_id")


class Load:
    """A broker, a client, and what it sent."""

    def __init__(self, broker: Broker) -> None:
        self.broker = broker
        self.address = str(broker.host)
        self.client = RemotingClient()

    async def ask(self, code: int, ext: dict[str, str] | None = None, body: bytes = b"") -> Command:
        return await self.client.call(self.address, Command(code, ext=ext, body=body), 10)

    async def send(
        self, topic: str, properties: str = "", *, sys_flag: int = 0, queue: int = 0, born_ms: int = 1_600_000_000_000
    ) -> Command:
        ext = {
            "a": "pg", "b": topic, "c": "TBW102", "d": "4", "e": str(queue), "f": str(sys_flag), "g": str(born_ms),
            "h": "0", "i": properties, "j": "0", "k": "false", "m": "false",
        }  # fmt: skip
        return await self.ask(RequestCode.SEND_MESSAGE_V2, ext, BODY)

    async def pull(self, topic: str, offset: int, group: str = "cg", sub: str = "*") -> Command:
        ext = {
            "consumerGroup": group, "topic": topic, "queueId": "0", "queueOffset": str(offset), "maxMsgNums": "32",
            "sysFlag": "4", "commitOffset": "0", "suspendTimeoutMillis": "0", "subscription": sub, "subVersion": "0",
            "expressionType": "TAG",
        }  # fmt: skip
        return await self.ask(RequestCode.PULL_MESSAGE, ext)

    async def end(self, half: dict[str, str], verdict: str) -> None:
        """Ends a transaction: 8 commits, 12 rolls back. `half`: the fields of the answer to its half message."""
        fields = {
            "producerGroup": "pg", "tranStateTableOffset": half["queueOffset"],
            "commitLogOffset": str(int(half["msgId"][16:], 16)), "commitOrRollback": verdict,
            "fromTransactionCheck": "false",
        }  # fmt: skip
        answer = await self.ask(RequestCode.END_TRANSACTION, fields)
        assert answer.code == 0, answer.remark

    def metrics(self) -> dict[tuple[str, ...], float]:
        """Every sample by name and the values of its labels, by their names."""
        found = {}
        for family in text_string_to_metric_families(BrokerMetrics(self.broker).text().decode()):
            for sample in family.samples:
                labels = [
                    value for key, value in sample.labels.items() if key not in ("cluster", "node_type", "node_id")
                ]
                found[sample.name, *labels] = sample.value
        return found

    async def runtime(self) -> dict[str, str]:
        answer = await self.ask(RequestCode.GET_BROKER_RUNTIME_INFO)
        return dict(fastjson.loads(answer.body)["table"])

    async def counter(self, name: str, key: str) -> int:
        answer = await self.ask(RequestCode.VIEW_BROKER_STATS_DATA, {"statsName": name, "statsKey": key})
        return int(fastjson.loads(answer.body)["statsDay"]["sum"]) if answer.code == 0 else 0


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(20):
        while not condition():  # noqa: ASYNC110  # conditions of the code under test, which sets no events
            await asyncio.sleep(0.01)


async def started(folder: Path) -> Load:
    settings = BrokerSettings(
        brokerIP1="127.0.0.1",
        bindAddress="127.0.0.1",
        listenPort=0,
        brokerName="b",
        brokerClusterName="C",
        transactionTimeOut=500,
    )
    changes = dict(item.split("=") for item in SMALL) | {
        "storePathRootDir": str(folder / "store"), "messageDelayLevel": "1s 1h",
    }  # fmt: skip
    broker = await Broker.start(settings, parse_text(StoreSettings(), changes, "test"))
    return Load(broker)


@pytest.fixture
async def load(tmp_path: Path) -> AsyncIterator[Load]:
    load = await started(tmp_path)
    yield load
    await load.client.close()
    await load.broker.stop()


def records(answer: Command) -> list[Record]:
    found, at = [], 0
    while at < len(answer.body):
        size = int.from_bytes(answer.body[at : at + 4], "big")
        found.append(Record.decode(answer.body[at : at + size]))
        at += size
    return found


async def test_every_figure_says_what_was_counted(load: Load) -> None:
    broker = load.broker
    assert (await load.send("T")).code == 0  # makes the topic: the first one is never hot
    for _ in range(HOT - 1):
        assert (await load.send("T")).code == 0
    for _ in range(COLD):
        assert (await load.send("T", "WAIT\x01false\x02TAGS\x01Other\x02", queue=1)).code == 0
    for level in ("1", "1", "2", "2"):
        assert (await load.send("D", f"DELAY\x01{level}\x02")).code == 0
    ends = []
    for number in range(HALVES):
        properties = f"TRAN_MSG\x01true\x02PGROUP\x01pg\x02UNIQ_KEY\x01tx{number}\x02"
        half = await load.send("X", properties, sys_flag=4)
        assert half.code == 0 and half.ext is not None
        ends.append(half.ext)
    for ext, verdict in zip(ends, ("8", "12", "8"), strict=True):
        await load.end(ext, verdict)
    for _ in range(REFUSED):
        assert (await load.send("T", queue=99)).code != 0
    beat = {
        "clientID": "c1", "producerDataSet": [{"groupName": "pg"}],
        "consumerDataSet": [{
            "groupName": "cg", "consumeType": "CONSUME_PASSIVELY", "messageModel": "CLUSTERING",
            "consumeFromWhere": "CONSUME_FROM_FIRST_OFFSET", "unitMode": False,
            "subscriptionDataSet": [{"topic": "T", "subString": "*", "subVersion": 1, "expressionType": "TAG"}],
        }],
    }  # fmt: skip
    assert (await load.ask(RequestCode.HEART_BEAT, body=json.dumps(beat).encode())).code == 0
    await until(lambda: broker.store.queues.max_offset("D", 0) == 2)  # the two of level 1 were delivered
    await until(lambda: broker.store.figures.dispatch_behind_bytes == 0)

    got: list[Record] = []
    pulled_bytes = pulls = 0
    while len(got) < HOT:
        answer = await load.pull("T", len(got))
        assert answer.code == 0
        got += records(answer)
        pulled_bytes, pulls = pulled_bytes + len(answer.body), pulls + 1
    for _ in range(4):
        assert (await load.pull("T", HOT)).code == 19  # nothing there: counted nowhere as a message
    for record in got[:BACK]:
        fields = {"offset": str(record.pos), "group": "cg", "delayLevel": "2", "maxReconsumeTimes": "16"}
        assert (await load.ask(RequestCode.CONSUMER_SEND_MSG_BACK, fields)).code == 0
    fields = {"offset": str(got[0].pos), "group": "cg", "delayLevel": "-1", "originTopic": "T"}
    assert (await load.ask(RequestCode.CONSUMER_SEND_MSG_BACK, fields)).code == 0  # straight to the dead letters
    fields = {"consumerGroup": "cg", "topic": "T", "queueId": "0", "commitOffset": "50"}
    assert (await load.ask(RequestCode.UPDATE_CONSUMER_OFFSET, fields)).code == 0
    await until(lambda: broker.store.figures.dispatch_behind_bytes == 0)
    broker.count_puts()

    figures = load.metrics()
    size = got[0].size
    assert len({record.size for record in got}) == 1

    # Messages and bytes in: each record of the log once, under the topic that it was stored in.
    stored = {
        "T": HOT + COLD, "D": 2, "SCHEDULE_TOPIC_XXXX": DELAYED + BACK, "RMQ_SYS_TRANS_HALF_TOPIC": HALVES,
        "RMQ_SYS_TRANS_OP_HALF_TOPIC": HALVES, "X": 2, "%DLQ%cg": 1,
    }  # fmt: skip
    counted = {key[1]: value for key, value in figures.items() if key[0] == "rocketmq_messages_in_total"}
    assert counted == stored
    bytes_in = {key[1]: value for key, value in figures.items() if key[0] == "rocketmq_throughput_in_total"}
    assert bytes_in["T"] > HOT * size and sum(bytes_in.values()) == broker.store.max_pos, "the log has nothing else"
    # Messages and bytes out: what pulls brought.
    assert figures["rocketmq_messages_out_total", "cg", "T"] == HOT
    assert figures["rocketmq_throughput_out_total", "cg", "T"] == pulled_bytes == HOT * size
    assert figures["rocketmq_send_back_total", "cg", "T"] == BACK + 1
    assert figures["rocketmq_send_to_dlq_messages_total", "cg", "T"] == 1
    assert figures["rocketmq_consumer_lag_messages", "cg", "T"] == HOT - 50
    assert figures["rocketmq_consumer_inflight_messages", "cg", "T"] == HOT - 50, "all were pulled"
    assert figures["rocketmq_consumer_ready_messages", "cg", "T"] == 0
    oldest_ms = time.time() * 1000 - got[50].store_timestamp_ms
    assert 0 < figures["rocketmq_consumer_lag_latency_milliseconds", "cg", "T"] <= oldest_ms
    assert figures["rocketmq_consumer_queueing_latency_milliseconds", "cg", "T"] == 0
    assert figures["rocketmq_message_size_count",] == sum(stored.values())
    assert figures["rocketmq_message_size_sum",] == broker.store.max_pos
    assert figures["rocketmq_commit_messages_total", "X"] == 2
    assert figures["rocketmq_rollback_messages_total", "X"] == 1
    assert figures["rocketmq_finish_message_latency_seconds_count",] == HALVES
    assert figures["rocketmq_half_message_age_seconds",] == 0
    assert ("rocketmq_half_messages", "X") not in figures
    rpc = "rocketmq_rpc_latency_milliseconds_count"
    assert figures[rpc, "false", "remoting", "send_message_v2", "success"] == HOT + COLD + DELAYED + HALVES
    assert figures[rpc, "false", "remoting", "send_message_v2", "system_error"] == REFUSED
    assert figures[rpc, "false", "remoting", "pull_message", "success"] == pulls
    assert figures[rpc, "false", "remoting", "pull_message", "pull_not_found"] == 4
    assert figures["rocketmq_storage_message_reserve_time_milliseconds",] > 0
    assert figures["rocketmq_consumer_connections", "cg"] == figures["rocketmq_producer_connections", "pg"] == 1
    assert figures["rocketmq_connections",] == 1
    assert figures["rocketmq_held_pulls",] == 0
    assert figures["rocketmq_topic_number",] == len(broker.topics)
    assert figures["rocketmq_consumer_group_number",] == len(broker.groups)
    assert figures["rocketmq_broker_permission",] == 6 and figures["rocketmq_storage_writable",] == 1
    assert figures["rocketmq_storage_size",] == figures["rocketmq_storage_max_position_bytes",] == broker.store.max_pos
    assert figures["rocketmq_storage_dispatch_behind_bytes",] == 0
    assert figures["rocketmq_storage_write_errors_total",] == figures["rocketmq_storage_damaged_reads_total",] == 0
    assert 0 < figures["rocketmq_storage_disk_usage_ratio",] < 1
    assert figures["rocketmq_storage_flush_behind_bytes",] <= broker.store.max_pos

    # Each metric has a sample, with the labels of the reference. This broker has no access control.
    parts = "Broker", "Port for slaves"
    expected_names = documented(*parts).keys() - {"rocketmq_acl_denied_requests_total", "rocketmq_half_messages"}
    assert check_page(BrokerMetrics(broker).text().decode(), *parts) == expected_names

    # The counters of 315.
    total = sum(stored.values())
    for (name, key), expected in {
        ("TOPIC_PUT_NUMS", "T"): HOT + COLD,
        ("TOPIC_PUT_SIZE", "T"): bytes_in["T"],
        ("BROKER_PUT_NUMS", "C"): total,
        ("BROKER_GET_NUMS", "C"): HOT,
        ("GROUP_GET_NUMS", "T@cg"): HOT,
        ("GROUP_GET_SIZE", "T@cg"): pulled_bytes,
        ("SNDBCK_PUT_NUMS", "T@cg"): BACK + 1,
    }.items():
        assert await load.counter(name, key) == expected, (name, key)

    # Runtime information.
    runtime = await load.runtime()
    assert int(runtime["msgPutTotalTodayNow"]) == int(runtime["putMessageTimesTotal"]) == total
    assert int(runtime["msgGetTotalTodayNow"]) == HOT
    assert float(runtime["putTps"].split()[1]) * 60 >= total, "a minute's rate has all of a young broker's"
    assert int(runtime["commitLogMaxOffset"]) == int(runtime["putMessageSizeTotal"]) == broker.store.max_pos
    assert runtime["scheduleMessageOffset_1"] == "2,2" and runtime["scheduleMessageOffset_2"].endswith(f",{2 + BACK}")
    assert int(runtime["earliestMessageTimeStamp"]) <= got[0].store_timestamp_ms <= time.time() * 1000
    assert float(runtime["commitLogDiskRatio"]) == pytest.approx(
        figures["rocketmq_storage_disk_usage_ratio",], abs=0.02
    )
    assert runtime["dispatchBehindBytes"] == "0"


async def test_sends_are_acknowledged_or_failed_and_mistakes_of_clients_are_neither(load: Load) -> None:
    """A send that was acknowledged is in the histogram, one that the broker refused is a failure."""
    broker = load.broker
    hot, cold = 20, 3
    for _ in range(hot):
        assert (await load.send("T")).code == 0
    for _ in range(cold):
        assert (await load.send("T", "DELAY\x012\x02")).code == 0
    for _ in range(REFUSED):
        assert (await load.send("T", queue=99)).code != 0
        assert (await load.send("T", f"A\x01{'x' * 40_000}\x02")).code == 13
    figures = load.metrics()
    assert figures["rocketmq_storage_put_seconds_count",] == hot + cold
    assert figures["rocketmq_send_failures_total",] == 0
    buckets = [value for key, value in figures.items() if key[0] == "rocketmq_storage_put_seconds_bucket"]
    assert buckets == sorted(buckets) and buckets[-1] == hot + cold
    assert figures["rocketmq_storage_put_seconds_sum",] >= 0
    broker.store.admission.close()
    for _ in range(REFUSED):
        assert (await load.send("T")).code == 14
    broker.store.admission.is_open = True
    figures = load.metrics()
    assert figures["rocketmq_send_failures_total",] == REFUSED
    assert figures["rocketmq_storage_put_seconds_count",] == hot + cold


async def test_flushes_are_counted_and_timed(load: Load) -> None:
    """`flush` returns after a sync of what was written, so each one here is at least one flush."""
    before = load.metrics()
    for _ in range(5):
        assert (await load.send("T")).code == 0
        await load.broker.store.appender.flush()
    after = load.metrics()
    name = "rocketmq_storage_flush_seconds"
    assert after[f"{name}_count",] >= before[f"{name}_count",] + 5
    assert after[f"{name}_sum",] > before[f"{name}_sum",]
    buckets = [value for key, value in after.items() if key[0] == f"{name}_bucket"]
    assert buckets == sorted(buckets) and buckets[-1] == after[f"{name}_count",]


async def test_held_pulls_and_connections_are_counted_while_they_are_there(load: Load) -> None:
    await load.send("T")
    await until(lambda: load.broker.store.queues.max_offset("T", 0) == 1)
    ext: dict[str, Any] = {
        "consumerGroup": "cg", "topic": "T", "queueId": "0", "queueOffset": "1", "maxMsgNums": "32", "sysFlag": "6",
        "commitOffset": "0", "suspendTimeoutMillis": "15000", "subscription": "*", "subVersion": "0",
        "expressionType": "TAG",
    }  # fmt: skip
    held = asyncio.create_task(load.ask(RequestCode.PULL_MESSAGE, ext))
    await until(lambda: load.metrics()["rocketmq_held_pulls",] == 1)
    other = RemotingClient()
    await other.call(load.address, Command(RequestCode.GET_BROKER_RUNTIME_INFO))
    assert load.metrics()["rocketmq_connections",] == 2
    await other.close()
    await until(lambda: load.metrics()["rocketmq_connections",] == 1)
    await load.send("T")
    assert (await held).code == 0
    assert load.metrics()["rocketmq_held_pulls",] == 0
    assert load.metrics()["rocketmq_messages_out_total", "cg", "T"] == 1

    rpc = "rocketmq_rpc_latency_milliseconds_count"
    assert load.metrics()[rpc, "true", "remoting", "pull_message", "success"] == 1


async def test_half_messages_are_open_until_they_end_also_those_from_before_a_start(tmp_path: Path) -> None:
    """They are old enough for a check when they are sent."""
    load = await started(tmp_path)
    ends = []
    for number in range(3):
        properties = f"TRAN_MSG\x01true\x02PGROUP\x01pg\x02UNIQ_KEY\x01tx{number}\x02"
        half = await load.send("X" if number else "Y", properties, sys_flag=4, born_ms=load.broker.now_ms() - 1000)
        assert half.code == 0 and half.ext is not None
        ends.append(half.ext)
    assert (load.metrics()["rocketmq_half_messages", "X"], load.metrics()["rocketmq_half_messages", "Y"]) == (2, 1)
    assert load.metrics()["rocketmq_half_message_age_seconds",] >= 1
    await load.end(ends[1], "12")
    assert load.metrics()["rocketmq_half_messages", "X"] == 1
    await load.client.close()
    await load.broker.stop()

    load = await started(tmp_path)
    broker = load.broker
    await until(lambda: broker.store.figures.dispatch_behind_bytes == 0)
    assert load.metrics()["rocketmq_half_message_age_seconds",] == 0, "no round has looked yet"
    await broker.transactions.check(broker.now_ms())
    found = load.metrics()
    assert (found["rocketmq_half_messages", "X"], found["rocketmq_half_messages", "Y"]) == (1, 1)
    assert broker.store.queues.max_offset("RMQ_SYS_TRANS_HALF_TOPIC", 0) == 5, "both were copied and asked for"
    await load.end(ends[0], "8")
    assert ("rocketmq_half_messages", "Y") not in load.metrics(), "the end of the first copy ends the others"
    await load.client.close()
    await broker.stop()


async def test_series_end_with_their_topic_and_their_group(load: Load) -> None:
    broker = load.broker
    for topic in ("T", "Stays"):
        for _ in range(3):
            assert (await load.send(topic)).code == 0
        await until(lambda topic=topic: broker.store.queues.max_offset(topic, 0) == 3)  # type: ignore[misc]
        for group in ("cg", "other"):
            answer = await load.pull(topic, 0, group)
            assert answer.code == 0
            fields = {"consumerGroup": group, "topic": topic, "queueId": "0", "commitOffset": "1"}
            assert (await load.ask(RequestCode.UPDATE_CONSUMER_OFFSET, fields)).code == 0
            fields = {"offset": str(records(answer)[0].pos), "group": group, "delayLevel": "-1", "originTopic": topic}
            assert (await load.ask(RequestCode.CONSUMER_SEND_MSG_BACK, fields)).code == 0

    def named(name: str) -> set[str]:
        return {key[0] for key in load.metrics() if name in key[1:]}

    of_groups = {
        *("rocketmq_messages_out_total", "rocketmq_throughput_out_total", "rocketmq_send_back_total"),
        *("rocketmq_send_to_dlq_messages_total", "rocketmq_consumer_lag_messages"),
        *("rocketmq_consumer_lag_latency_milliseconds", "rocketmq_consumer_inflight_messages"),
        *("rocketmq_consumer_ready_messages", "rocketmq_consumer_queueing_latency_milliseconds"),
    }
    of_topics = of_groups | {"rocketmq_messages_in_total", "rocketmq_throughput_in_total"}
    assert named("T") == of_topics and named("cg") == of_groups
    assert (await load.ask(RequestCode.DELETE_TOPIC_IN_BROKER, {"topic": "T"})).code == 0
    fields = {"groupName": "cg", "cleanOffset": "true"}
    assert (await load.ask(RequestCode.DELETE_SUBSCRIPTIONGROUP, fields)).code == 0
    assert named("T") == named("cg") == set()
    assert named("Stays") == of_topics and named("other") == of_groups
    assert broker.pulled.queues("cg", "Stays") == broker.pulled.queues("other", "T") == {}
    assert broker.pulled.queues("other", "Stays") == {0: 3}


async def test_tables_that_cannot_be_saved_are_counted_until_they_are_saved(
    load: Load, caplog: pytest.LogCaptureFixture
) -> None:
    """A folder in the place of the temporary file is an error of the disk that a test can make and take away."""
    await load.send("T")
    assert load.metrics()["rocketmq_storage_unsaved_tables",] == 0
    blocked = Path(load.broker.store.settings.storePathRootDir) / "config" / "topics.json.tmp"
    blocked.mkdir()
    refused = await load.send("New")
    assert refused.code == 14 and "topic[New] is not saved" in str(refused.remark)
    assert load.metrics()["rocketmq_send_failures_total",] == 1
    assert load.metrics()["rocketmq_storage_unsaved_tables",] == 1
    assert "topics.json" in load.broker.last_save_error
    fields = {"topic": "Admin", "readQueueNums": "1", "writeQueueNums": "1", "perm": "6", "order": "false",
              "topicFilterType": "SINGLE_TAG", "defaultTopic": "TBW102", "topicSysFlag": "0"}  # fmt: skip
    told = await load.ask(RequestCode.UPDATE_AND_CREATE_TOPIC, fields)
    assert told.code == 1 and "Is a directory" in str(told.remark)
    assert "Traceback" not in caplog.text, "an error of the disk is one line"
    assert not any(record.exc_info for record in caplog.records)
    blocked.rmdir()
    assert (await load.send("New")).code == 0
    assert load.metrics()["rocketmq_storage_unsaved_tables",] == 0
    assert load.broker.last_save_error == ""
