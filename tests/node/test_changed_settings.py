"""Settings that are changed while the broker runs (code 25, PUT /settings): each is tested by what it does.

Times that a test does not want to pass are an hour long, so only the change itself can be the cause of an effect.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import time
import urllib.request
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest
from tally_process import SMALL, TallyProcess

from tallystick.node.broker.broker import Broker
from tallystick.node.core.configuration import ConfigurationError, parse_text
from tallystick.node.core.settings import BrokerSettings
from tallystick.node.remoting.client import RemotingClient
from tallystick.node.remoting.codes import RequestCode
from tallystick.node.remoting.command import Command
from tallystick.store import tables
from tallystick.store.setting import changeable, declarations, why_not_changeable
from tallystick.store.settings import StoreSettings

TESTS = Path(__file__).parent.parent
HOUR_MS = "3600000"
SLOW = {
    "flushIntervalCommitLog": HOUR_MS, "flushCommitLogThoroughInterval": HOUR_MS, "flushCommitLogLeastPages": "1000",
    "cleanResourceInterval": HOUR_MS, "flushIntervalConsumeQueue": HOUR_MS,
}  # fmt: skip

WHERE = {
    "accessMessageInMemoryMaxRatio": "test_answers_to_pulls_get_other_limits",
    "allowRecallWhenBrokerNotWriteable": "test_recalls_without_write_permission",
    "autoCreateSubscriptionGroup": "test_groups_are_not_created_any_more",
    "autoCreateTopicEnable": "test_topics_that_sends_create_follow_the_settings",
    "brokerPermission": "test_what_was_changed_holds_for_the_next_pull",
    "cleanFileForciblyEnable": "test_a_disk_that_is_too_full_is_judged_by_the_new_limits",
    "cleanResourceInterval": "test_periodic_work_begins_at_once_and_keeps_the_new_interval",
    "clientBytesPerSecond": "test_quotas_of_clients_follow_the_settings",
    "clientMessagesPerSecond": "test_quotas_of_clients_follow_the_settings",
    "clientRequestsPerSecond": "test_quotas_of_clients_follow_the_settings",
    "commitCommitLogLeastPages": "test_the_pool_commits_by_the_new_rule",
    "commitCommitLogThoroughInterval": "test_the_pool_commits_by_the_new_rule",
    "commitIntervalCommitLog": "test_the_pool_commits_by_the_new_rule",
    "consumerFallbehindThreshold": "test_slow_groups_are_judged_by_the_new_threshold",
    "defaultQueryMaxNum": "test_queries_get_other_limits",
    "defaultTopicQueueNums": "test_topics_that_sends_create_follow_the_settings",
    "deleteCommitLogFilesInterval": "test_expired_segments_go_by_the_new_rules",
    "deleteWhen": "test_expired_segments_go_by_the_new_rules",
    "disableConsumeIfConsumerReadSlowly": "test_slow_groups_are_judged_by_the_new_threshold",
    "diskFallRecorded": "test_slow_groups_are_judged_by_the_new_threshold",
    "diskMaxUsedSpaceRatio": "test_expired_segments_go_by_the_new_rules",
    "diskSpaceCleanForciblyRatio": "test_a_disk_that_is_too_full_is_judged_by_the_new_limits",
    "diskSpaceWarningLevelRatio": "test_a_disk_that_is_too_full_is_judged_by_the_new_limits",
    "enablePropertyFilter": "test_other_settings_are_read_at_each_use",
    "fastFailIfNoBufferInStorePool": "test_a_full_pool_answers_busy_once_that_is_asked_for",
    "fileReservedTime": "test_expired_segments_go_by_the_new_rules",
    "filterDataCleanTimeSpan": "test_other_settings_are_read_at_each_use",
    "filterSupportRetry": "test_other_settings_are_read_at_each_use",
    "flushCommitLogLeastPages": "test_the_log_is_flushed_by_the_new_rule",
    "flushCommitLogThoroughInterval": "test_the_log_is_flushed_by_the_new_rule",
    "flushCommitLogTimed": "test_the_log_is_flushed_by_the_new_rule",
    "flushConsumeQueueThoroughInterval": "test_periodic_work_begins_at_once_and_keeps_the_new_interval",
    "flushConsumerOffsetInterval": "test_offsets_are_saved_in_the_new_interval",
    "flushIntervalCommitLog": "test_the_log_is_flushed_by_the_new_rule",
    "flushIntervalConsumeQueue": "test_periodic_work_begins_at_once_and_keeps_the_new_interval",
    "flushLeastPagesWhenWarmMapedFile": "test_every_part_of_a_store_has_the_settings_in_use",
    "logLevel": "test_mqadmin_changes_the_level_for_good",
    "longPollingEnable": "test_pulls_are_held_as_the_new_settings_say",
    "maxMessageSize": "test_messages_get_another_largest_size",
    "maxMsgsNumBatch": "test_queries_get_other_limits",
    "maxTransferBytesOnMessageInDisk": "test_answers_to_pulls_get_other_limits",
    "maxTransferBytesOnMessageInMemory": "test_answers_to_pulls_get_other_limits",
    "maxTransferCountOnMessageInDisk": "test_answers_to_pulls_get_other_limits",
    "maxTransferCountOnMessageInMemory": "test_answers_to_pulls_get_other_limits",
    "notifyConsumerIdsChangedEnable": "test_other_settings_are_read_at_each_use",
    "osPageCacheBusyTimeOutMills": "test_a_write_counts_as_slow_by_the_new_limit",
    "pullThreadPoolQueueCapacity": "test_pulls_are_held_as_the_new_settings_say",
    "quotaBurstSeconds": "test_quotas_of_clients_follow_the_settings",
    "recallMessageEnable": "test_recalls",
    "redeleteHangedFileInterval": "test_every_part_of_a_store_has_the_settings_in_use",
    "regionId": "test_answers_to_sends_tell_the_new_region",
    "registerBrokerTimeoutMills": "test_other_settings_are_read_at_each_use",
    "registerNameServerPeriod": "test_other_settings_are_read_at_each_use",
    "rejectTransactionMessage": "test_half_messages_are_refused_once_that_is_asked_for",
    "shortPollingTimeMills": "test_pulls_are_held_as_the_new_settings_say",
    "slaveReadEnable": "test_slow_groups_are_judged_by_the_new_threshold",
    "startAcceptSendRequestTimeStamp": "test_half_messages_are_refused_once_that_is_asked_for",
    "storeReplyMessageEnable": "test_other_settings_are_read_at_each_use",
    "syncFlushTimeout": "test_every_part_of_a_store_has_the_settings_in_use",
    "traceOn": "test_answers_to_sends_tell_the_new_region",
    "transactionCheckInterval": "test_transactions_are_checked_by_the_new_settings",
    "transactionCheckMax": "test_transactions_are_checked_by_the_new_settings",
    "transactionTimeOut": "test_transactions_are_checked_by_the_new_settings",
    "userBytesPerSecond": "test_quotas_of_users_follow_the_settings",
    "userMessagesPerSecond": "test_quotas_of_users_follow_the_settings",
    "userRequestsPerSecond": "test_quotas_of_users_follow_the_settings",
    "userTopics": "test_quotas_of_users_follow_the_settings",
    "warmMapedFileEnable": "test_every_part_of_a_store_has_the_settings_in_use",
}
"""The test that changes a setting and looks for the effect, for every setting that is declared to be changeable."""


def test_each_changeable_setting_has_a_test_of_its_effect() -> None:
    assert set(WHERE) == changeable(BrokerSettings) | changeable(StoreSettings)
    texts = "\n".join(path.read_text() for path in TESTS.rglob("test_*.py"))
    missing = [name for name in set(WHERE.values()) if f"def {name}(" not in texts]
    assert not missing


class Load:
    """A broker, and a client of it."""

    def __init__(self, broker: Broker) -> None:
        self.broker = broker
        self.client = RemotingClient()

    async def ask(self, code: int, ext: dict[str, str] | None = None, body: bytes = b"") -> Command:
        return await self.client.call(str(self.broker.host), Command(code, ext=ext, body=body), 10)

    async def change(self, **changes: str) -> Command:
        body = "".join(f"{key}={text}\n" for key, text in changes.items())
        return await self.ask(RequestCode.UPDATE_BROKER_CONFIG, body=body.encode())

    async def changed(self, **changes: str) -> None:
        answer = await self.change(**changes)
        assert answer.code == 0, answer.remark

    async def send(self, topic: str = "T", body: bytes = b"x", properties: str = "", sys_flag: int = 0) -> Command:
        now_ms = str(time.time_ns() // 1_000_000)
        ext = {
            "a": "pg", "b": topic, "c": "TBW102", "d": "64", "e": "0", "f": str(sys_flag), "g": now_ms,
            "h": "0", "i": properties, "j": "0", "k": "false", "m": "false",
        }  # fmt: skip
        return await self.ask(RequestCode.SEND_MESSAGE_V2, ext, body)

    async def unflushed(self) -> None:
        """Waits until a send stays unflushed. The start and a change wake the flush thread once, maybe
        after the next send."""
        log = self.broker.store.log
        async with asyncio.timeout(60):
            while log.flushed == log.written:
                assert (await self.send()).code == 0
                for _ in range(20):  # time in which a flush thread that the send woke would flush it
                    await self.pulled()

    async def pull(self, offset: int, *, flags: int = 4, hold_ms: int = 0) -> Command:
        ext = {
            "consumerGroup": "cg", "topic": "T", "queueId": "0", "queueOffset": str(offset), "maxMsgNums": "32",
            "sysFlag": str(flags), "commitOffset": "0", "suspendTimeoutMillis": str(hold_ms), "subscription": "*",
            "subVersion": "0", "expressionType": "TAG",
        }  # fmt: skip
        return await self.ask(RequestCode.PULL_MESSAGE, ext)

    async def pulled(self, offset: int = 0) -> int:
        """How many messages one pull brings."""
        answer = await self.pull(offset)
        assert answer.code == 0 and answer.ext is not None, answer.remark
        return int(answer.ext["nextBeginOffset"]) - offset


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(60):
        while not condition():  # noqa: ASYNC110  # conditions of the code under test, which sets no events
            await asyncio.sleep(0.01)


async def opened(folder: Path, **store: str) -> Load:
    settings = BrokerSettings(
        brokerIP1="127.0.0.1", bindAddress="127.0.0.1", listenPort=0, brokerName="b", brokerClusterName="C",
        flushConsumerOffsetInterval=3_600_000, transactionCheckInterval=3_600_000,
    )  # fmt: skip
    changes = dict(item.split("=") for item in SMALL) | {"storePathRootDir": str(folder / "store")} | SLOW | store
    return Load(await Broker.start(settings, parse_text(StoreSettings(), changes, "test")))


@pytest.fixture
async def load(tmp_path: Path) -> AsyncIterator[Load]:
    load = await opened(tmp_path)
    yield load
    await load.client.close()
    await load.broker.stop()


@pytest.fixture
async def pooled(tmp_path: Path) -> AsyncIterator[Load]:
    load = await opened(
        tmp_path, transientStorePoolEnable="true", transientStorePoolSize="1", commitIntervalCommitLog=HOUR_MS,
        commitCommitLogThoroughInterval=HOUR_MS, commitCommitLogLeastPages="100000",
    )  # fmt: skip
    yield load
    await load.client.close()
    await load.broker.stop()


def segments(load: Load) -> list[str]:
    return sorted(path.name for path in load.broker.store.settings.log_folder.iterdir())


@pytest.mark.process
@pytest.mark.parametrize("how", ["hour", "disk"])
async def test_expired_segments_go_by_the_new_rules(disk_path: Path, how: str) -> None:
    other_hour = f"{(time.localtime().tm_hour + 5) % 24:02}"
    load = await opened(disk_path, deleteWhen=other_hour, diskMaxUsedSpaceRatio="95", deleteCommitLogFilesInterval="0")
    try:
        for _ in range(3):
            for _ in range(30):
                assert (await load.send(body=b"x" * 50_000)).code == 0
        old_s = time.time() - 10 * 3600
        before = segments(load)
        for name in before[:2]:
            os.utime(load.broker.store.settings.log_folder / name, (old_s, old_s))
        # Segments go only when queues and index are synced up to them.
        await load.changed(flushConsumeQueueThoroughInterval="1", flushIntervalConsumeQueue="50")
        store = load.broker.store
        await until(lambda: store.upkeep._synced_pos >= store.dispatched_pos > 2 << 20)
        assert segments(load)[:2] == before[:2], "neither is it the hour nor are they expired"
        if how == "hour":
            await load.changed(deleteWhen=";".join(f"{hour:02}" for hour in range(24)))
        else:
            await load.changed(diskMaxUsedSpaceRatio="10")
        await load.broker.store.upkeep.clean()
        assert segments(load)[:2] == before[:2], "they expire after 72 hours"
        await load.changed(fileReservedTime="9")
        await until(lambda: not set(segments(load)) & set(before[:2]))
        assert before[2] in segments(load), "it has just been written"
    finally:
        await load.client.close()
        await load.broker.stop()


@pytest.mark.process
async def test_a_disk_that_is_too_full_is_judged_by_the_new_limits(load: Load) -> None:
    assert (await load.send()).code == 0
    await load.changed(
        diskSpaceCleanForciblyRatio="0.0", diskSpaceWarningLevelRatio="0.0", cleanFileForciblyEnable="false"
    )
    async with asyncio.timeout(60):  # the disk is looked at on a thread
        while (answer := await load.send()).code == 0:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
    assert answer.code == 14 and "the limit is 0% (diskSpaceWarningLevelRatio)" in (answer.remark or "")
    assert not load.broker.store.upkeep._cleaner._rules.forcibly
    await load.changed(diskSpaceWarningLevelRatio="1.0", diskSpaceCleanForciblyRatio="1.0")
    async with asyncio.timeout(60):
        while (await load.send()).code != 0:  # noqa: ASYNC110
            await asyncio.sleep(0.01)


@pytest.mark.process
async def test_messages_get_another_largest_size(load: Load) -> None:
    assert (await load.send(body=b"x" * 5000)).code == 0
    await load.changed(maxMessageSize="4096")
    for properties in ("", "WAIT\x01true\x02TAGS\x01a\x02", "DELAY\x011\x02"):  # by the kernel and by Python
        assert (await load.send(body=b"x" * 5000, properties=properties)).code == 13
        assert (await load.send(body=b"x" * 3000, properties=properties)).code == 0
    await load.changed(maxMessageSize="8192")
    assert (await load.send(body=b"x" * 5000)).code == 0


@pytest.mark.process
async def test_topics_that_sends_create_follow_the_settings(load: Load) -> None:
    topics = load.broker.topics
    assert (await load.send("Eight")).code == 0
    await load.changed(defaultTopicQueueNums="3")
    assert (await load.send("Three")).code == 0
    counts = {name: config.write_queue_nums for name, config in topics.items() if name in ("Eight", "Three", "TBW102")}
    assert counts == {"Eight": 8, "Three": 3, "TBW102": 3}
    await load.changed(autoCreateTopicEnable="false")
    assert (await load.send("None")).code == 17
    await load.changed(autoCreateTopicEnable="true")
    assert (await load.send("Again")).code == 0


@pytest.mark.process
async def test_topics_can_be_created_by_a_broker_that_started_without(tmp_path: Path) -> None:
    load = await opened(tmp_path)
    load.broker.topics.delete("TBW102")  # as if it had started with autoCreateTopicEnable=false
    try:
        assert (await load.send("No")).code == 17
        await load.changed(autoCreateTopicEnable="true")
        assert (await load.send("Yes")).code == 0
    finally:
        await load.client.close()
        await load.broker.stop()


@pytest.mark.process
async def test_the_log_is_flushed_by_the_new_rule(load: Load) -> None:
    log = load.broker.store.log
    await load.unflushed()
    await load.changed(flushCommitLogThoroughInterval="0")
    await until(lambda: log.flushed == log.written)
    await load.changed(flushCommitLogThoroughInterval=HOUR_MS, flushCommitLogTimed="true", flushCommitLogLeastPages="0")
    await until(lambda: log.flushed == log.written)
    await load.unflushed()  # the timer alone flushes
    await load.changed(flushIntervalCommitLog="20")
    await until(lambda: log.flushed == log.written)
    await load.changed(flushIntervalCommitLog=HOUR_MS, flushCommitLogTimed="false")
    assert (await load.send()).code == 0
    await until(lambda: log.flushed == log.written)  # by the send itself


@pytest.mark.process
@pytest.mark.parametrize("rule", ["commitCommitLogLeastPages", "commitCommitLogThoroughInterval"])
async def test_the_pool_commits_by_the_new_rule(pooled: Load, rule: str) -> None:
    log = pooled.broker.store.log
    assert (await pooled.send()).code == 0
    assert log.staged > log.written
    await pooled.changed(**{rule: "0"})
    await until(lambda: log.staged == log.written)
    assert (await pooled.send()).code == 0
    assert log.staged > log.written, "the pause is an hour"
    await pooled.changed(commitIntervalCommitLog="20")
    await until(lambda: log.staged == log.written)


@pytest.mark.process
async def test_a_full_pool_answers_busy_once_that_is_asked_for(pooled: Load) -> None:
    log = pooled.broker.store.log
    for _ in range(40):
        assert (await pooled.send(body=b"x" * 60_000)).code == 0  # a full pool is written
    await pooled.changed(fastFailIfNoBufferInStorePool="true")
    refused = None
    for _ in range(40):
        answer = await pooled.send(body=b"x" * 60_000)
        if answer.code != 0:
            refused = answer
            break
    assert refused is not None and refused.code == 2
    assert (refused.remark or "").startswith("[REJECTREQUEST]system busy, start flow control for a while")
    assert log.staged - log.written >= 1 << 20
    assert (await pooled.ask(RequestCode.GET_BROKER_RUNTIME_INFO)).code == 0
    await pooled.changed(commitCommitLogLeastPages="0")  # the commit makes room
    await until(lambda: log.staged == log.written)
    assert (await pooled.send(body=b"x" * 60_000)).code == 0


@pytest.mark.process
async def test_periodic_work_begins_at_once_and_keeps_the_new_interval(load: Load) -> None:
    assert (await load.send()).code == 0
    store = load.broker.store
    await until(lambda: store.dispatched_pos == store.max_pos)
    assert store.upkeep._saved_pos < store.dispatched_pos
    await load.changed(flushIntervalConsumeQueue="20")
    await until(lambda: store.upkeep._saved_pos == store.dispatched_pos)
    assert (await load.send()).code == 0
    await until(lambda: store.upkeep._saved_pos == store.max_pos)
    await load.changed(flushConsumeQueueThoroughInterval="0")
    await until(lambda: store.upkeep._synced_pos == store.max_pos)
    # Nobody looks at the disk for an hour.
    looks: list[object] = []
    look, store.upkeep._cleaner.look = store.upkeep._cleaner.look, lambda: looks.append(1) or look()  # type: ignore
    await load.changed(cleanResourceInterval="20")
    await until(lambda: len(looks) > 3)


@pytest.mark.process
async def test_answers_to_pulls_get_other_limits(load: Load) -> None:
    for _ in range(20):
        assert (await load.send(body=b"x" * 100)).code == 0
    await until(lambda: load.broker.store.dispatched_pos == load.broker.store.max_pos)
    assert await load.pulled() == 20
    await load.changed(maxTransferCountOnMessageInMemory="5", maxTransferCountOnMessageInDisk="3")
    assert await load.pulled() == 5
    await load.changed(accessMessageInMemoryMaxRatio="0")
    assert await load.pulled() == 3
    await load.changed(maxTransferBytesOnMessageInDisk="1")
    assert await load.pulled() == 1
    await load.changed(accessMessageInMemoryMaxRatio="40", maxTransferBytesOnMessageInMemory="500")
    assert await load.pulled() == 2


@pytest.mark.process
async def test_queries_get_other_limits(load: Load) -> None:
    for _ in range(20):
        assert (await load.send(properties="KEYS\x01k\x02UNIQ_KEY\x01u\x02")).code == 0
    store = load.broker.store
    await until(lambda: store.dispatched_pos == store.max_pos)
    ext = {"topic": "T", "key": "k", "maxNum": "20", "beginTimestamp": "0", "endTimestamp": str(1 << 60)}

    async def found(**more: str) -> int:
        answer = await load.ask(RequestCode.QUERY_MESSAGE, ext | more)
        assert answer.code == 0
        return answer.body.count(b"KEYS\x01k")

    assert await found() == 20
    await load.changed(maxMsgsNumBatch="4")
    assert await found() == 4
    await load.changed(maxMsgsNumBatch="64", defaultQueryMaxNum="7")
    assert await found(key="u", _UNIQUE_KEY_QUERY="true") == 7


@pytest.mark.process
async def test_answers_to_sends_tell_the_new_region(load: Load) -> None:
    assert (await load.send()).code == 0
    await load.changed(regionId="Elsewhere", traceOn="false")
    for properties in ("", "WAIT\x01false\x02"):  # by the kernel and by Python
        told = (await load.send(properties=properties)).ext or {}
        assert (told["MSG_REGION"], told["TRACE_ON"]) == ("Elsewhere", "false")


@pytest.mark.process
async def test_offsets_are_saved_in_the_new_interval(load: Load) -> None:
    assert (await load.send()).code == 0
    path = load.broker.store.root / "config" / "consumerOffset.json"
    fields = {"consumerGroup": "cg", "topic": "T", "queueId": "0", "commitOffset": "7"}
    # Without an answer that must be true after a crash.
    await load.client.oneway(str(load.broker.host), Command(RequestCode.UPDATE_CONSUMER_OFFSET, flag=2, ext=fields))
    await until(lambda: load.broker.offsets.query("cg", "T", 0) == 7)
    assert not path.exists() or "cg" not in path.read_text()
    await load.changed(flushConsumerOffsetInterval="100")
    await until(lambda: path.exists() and "T@cg" in path.read_text())


@pytest.mark.process
async def test_pulls_are_held_as_the_new_settings_say(load: Load) -> None:
    assert (await load.send()).code == 0
    await load.changed(longPollingEnable="false", shortPollingTimeMills="10")
    assert (await load.pull(1, flags=6, hold_ms=3_600_000)).code == 19, "an hour was allowed"
    await load.changed(longPollingEnable="true", pullThreadPoolQueueCapacity="1")
    waiting = asyncio.create_task(load.pull(1, flags=6, hold_ms=3_600_000))
    await until(lambda: len(load.broker.holds) == 1)
    assert (await load.pull(1, flags=6, hold_ms=3_600_000)).code == 2
    assert (await load.send()).code == 0
    assert (await waiting).code == 0


@pytest.mark.process
async def test_groups_are_not_created_any_more(load: Load) -> None:
    assert (await load.send()).code == 0
    assert (await load.pull(0)).code == 0
    await load.changed(autoCreateSubscriptionGroup="false")
    load.broker.groups.delete("cg")
    assert (await load.pull(0)).code == 26


@pytest.mark.process
async def test_half_messages_are_refused_once_that_is_asked_for(load: Load) -> None:
    half = "TRAN_MSG\x01true\x02PGROUP\x01pg\x02UNIQ_KEY\x01tx\x02"
    assert (await load.send("X", properties=half, sys_flag=4)).code == 0
    await load.changed(rejectTransactionMessage="true")
    assert (await load.send("X", properties=half, sys_flag=4)).code == 16
    await load.changed(startAcceptSendRequestTimeStamp=str(1 << 50))
    assert (await load.send("X")).code == 1
    await load.changed(startAcceptSendRequestTimeStamp="0")
    assert (await load.send("X")).code == 0


@pytest.mark.process
async def test_slow_groups_are_judged_by_the_new_threshold(load: Load) -> None:
    for _ in range(20):
        assert (await load.send(body=b"x" * 1000)).code == 0
    fallen = {"statsName": "GROUP_GET_FALL_SIZE", "statsKey": "0@T@cg"}
    assert (await load.pull(0)).code == 0
    assert ((await load.pull(0)).ext or {})["suggestWhichBrokerId"] == "0"
    await load.changed(slaveReadEnable="true", accessMessageInMemoryMaxRatio="0")
    assert ((await load.pull(0)).ext or {})["suggestWhichBrokerId"] == "1"
    await load.changed(diskFallRecorded="false")
    before = (await load.ask(RequestCode.VIEW_BROKER_STATS_DATA, fallen)).body
    assert (await load.pull(0)).code == 0
    assert (await load.ask(RequestCode.VIEW_BROKER_STATS_DATA, fallen)).body == before
    await load.changed(disableConsumeIfConsumerReadSlowly="true", consumerFallbehindThreshold="100")
    assert (await load.pull(0)).code == 0
    group = load.broker.groups.get("cg")
    assert group is not None and not group.consume_enable, "it reads too slowly"


@pytest.mark.process
async def test_transactions_are_checked_by_the_new_settings(load: Load) -> None:
    half = "TRAN_MSG\x01true\x02PGROUP\x01pg\x02UNIQ_KEY\x01tx\x02"
    assert (await load.send("X", properties=half, sys_flag=4)).code == 0
    transactions = load.broker.transactions
    assert transactions.without_producer == 0
    await load.changed(transactionTimeOut="0")  # an hour is between two rounds
    await until(lambda: transactions.without_producer == 1)
    await load.changed(transactionCheckMax="1", transactionCheckInterval="20")
    await until(lambda: transactions.discarded == 1)


def test_a_write_counts_as_slow_by_the_new_limit(tmp_path: Path) -> None:
    async def run() -> None:
        load = await opened(tmp_path)
        try:
            appender = load.broker.store.appender
            appender._note_duration(0.5)
            assert not appender.busy
            load.broker.change_settings({"osPageCacheBusyTimeOutMills": "100"})
            appender._note_duration(0.5)
            assert appender.busy
        finally:
            await load.broker.stop()

    asyncio.run(run())


@pytest.mark.process
async def test_every_part_of_a_store_has_the_settings_in_use(load: Load) -> None:
    """Parts that read a setting at each use see a change, because they all have the same object."""
    store, seen, found = load.broker.store, set(), []
    waiting: list[Any] = [store]
    while waiting:
        part = waiting.pop()
        if id(part) in seen or not type(part).__module__.startswith("tallystick.store"):
            continue
        seen.add(id(part))
        names = [*getattr(part, "__dict__", {}), *getattr(type(part), "__slots__", ())]
        for value in (getattr(part, name, None) for name in names):
            if isinstance(value, StoreSettings):
                found.append((type(part).__name__, value is store.settings))
            else:
                waiting.append(value)
    parts = {name for name, _ in found}
    assert {"MessageStore", "Appender", "Upkeep", "SegmentCleaner", "Preallocator", "LocalFlush", "Reads"} <= parts
    assert [name for name, same in found if not same] == []


@pytest.mark.process
async def test_other_settings_are_read_at_each_use(load: Load) -> None:
    broker = load.broker
    await load.changed(filterDataCleanTimeSpan="5", registerNameServerPeriod="50000", enablePropertyFilter="true")
    for part in (broker.filters, broker.registration, broker.topics, broker.groups):
        assert part.settings is broker.settings


@pytest.mark.process
async def test_a_refusal_says_why_and_changes_nothing(load: Load) -> None:
    refusals = {
        "fileReservedTime=999999999": "update: fileReservedTime: must be 0 to 878400, not 999999999",
        "deleteWhen=25": "update: deleteWhen: '25' is not an hour from 00 to 23",
        "diskSpaceWarningLevelRatio=0.5": "the broker would refuse sends before it deletes a segment",
        "maxMessageSize=big": "update: maxMessageSize: must be a whole number, not 'big'",
        "listenPort=1": "listenPort cannot be changed while the process runs: set it and restart",
        "mappedFileSizeCommitLog=1": "mappedFileSizeCommitLog cannot be changed: it belongs to the files of the store",
        "sendMessageThreadPoolNums=4": "sendMessageThreadPoolNums has no effect: there is no thread pool",
        "fileReservedTme=1": "fileReservedTme is not a setting",
    }
    before = load.broker.configuration()
    for change, reason in refusals.items():
        key, _, text = change.partition("=")
        answer = await load.change(longPollingEnable="false", **{key: text})
        assert answer.code == 1 and reason in (answer.remark or ""), answer.remark
    assert load.broker.configuration() == before
    assert not (load.broker.store.root / "config" / "tally-settings.json").exists()


def test_what_must_be_equal_in_a_group_is_not_changed_on_one_member() -> None:
    kinds = BrokerSettings, StoreSettings
    both = [name for kind in kinds for name, known in declarations(kind).items() if known.same_in_group]
    assert "maxMessageSize" in both
    for name in both:
        assert why_not_changeable(name, *kinds, in_group=True), name
    assert "equal on all members" in why_not_changeable("maxMessageSize", *kinds, in_group=True)
    assert why_not_changeable("maxMessageSize", *kinds) == ""


def put(process: TallyProcess, **changes: object) -> tuple[int, dict[str, Any]]:
    request = urllib.request.Request(
        f"http://{process.places['http']}/settings",
        json.dumps(changes).encode(),
        {"Content-Type": "application/json"},
        method="PUT",
    )
    try:
        with urllib.request.urlopen(request, timeout=60) as answer:
            return answer.status, json.load(answer)
    except urllib.error.HTTPError as error:
        return error.code, json.load(error)


def sent(process: TallyProcess, size: int) -> int:
    """The code of the answer to a send."""

    async def send() -> int:
        client = RemotingClient()
        try:
            ext = {
                "a": "pg", "b": "T", "c": "TBW102", "d": "4", "e": "0", "f": "0", "g": "1600000000000", "h": "0",
                "i": "", "j": "0", "k": "false", "m": "false",
            }  # fmt: skip
            command = Command(RequestCode.SEND_MESSAGE_V2, ext=ext, body=b"x" * size)
            return (await client.call(process.places["broker"], command, 60)).code
        finally:
            await client.close()

    return asyncio.run(send())


@pytest.mark.process
def test_changes_over_http_have_effect_and_outlive_a_kill(tmp_path: Path) -> None:
    with TallyProcess(tmp_path) as process:
        status, told = put(process, maxMessageSize=2048, fileReservedTime="48", traceOn=False)
        assert status == 200
        assert told["settings"]["maxMessageSize"] == {"value": 2048, "unit": "bytes", "change": "while running"}
        assert told["settings"]["traceOn"]["value"] is False
        assert json.loads(process.get("/settings")[1]) == told
        for wrong, reason in (
            ({"fileReservedTime": -1}, "must be 0 to"),
            ({"nothing": 1}, "nothing is not a setting"),
            ({"listenPort": 1}, "set it and restart"),
            ({"deleteWhen": ["04"]}, "must be a text, a number, true or false"),
        ):
            status, told = put(process, **wrong)
            assert status == 400 and reason in told["error"]
        assert sent(process, 4000) == 13 and sent(process, 1000) == 0
        process.process.kill()
        process.process.wait()
    with TallyProcess(tmp_path) as process:
        assert sent(process, 4000) == 13 and sent(process, 1000) == 0
        shown = json.loads(process.get("/settings")[1])["settings"]
        assert [shown[name]["value"] for name in ("maxMessageSize", "fileReservedTime", "traceOn")] == [2048, 48, False]
        assert "settings that were changed while the process ran, from" in process.log.read_text()


@pytest.mark.process
async def test_kept_settings_of_another_version_do_not_end_a_start(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    kept = {
        "longPollingEnable": "false", "newerThanThis": "1", "maxMessageSize": "2", "fileReservedTime": "5",
        "diskSpaceWarningLevelRatio": "0.1",
    }  # fmt: skip
    folder = tmp_path / "store" / "config"
    folder.mkdir(parents=True)
    (folder / "tally-settings.json").write_text(json.dumps(kept))
    with caplog.at_level(logging.INFO):
        load = await opened(tmp_path)
    try:
        broker = load.broker
        assert not broker.settings.longPollingEnable and broker.store.settings.fileReservedTime == 5
        assert broker.store.settings.maxMessageSize == 4 << 20
        assert broker.store.settings.diskSpaceWarningLevelRatio == 0.9, "it would be below the other ratio"
        for reason in ("unknown key 'newerThanThis'", "maxMessageSize: must be 128", "diskSpaceCleanForciblyRatio"):
            assert any(reason in line for line in caplog.messages), reason
        assert any("longPollingEnable=false, fileReservedTime=5" in line for line in caplog.messages)
        await load.changed(fileReservedTime="6")
        assert tables.decode((folder / "tally-settings.json").read_bytes()) == kept | {"fileReservedTime": "6"}
    finally:
        await load.client.close()
        await load.broker.stop()


def test_a_wrong_value_of_a_change_names_the_key() -> None:
    with pytest.raises(ConfigurationError, match="update: fileReservedTime: must be 0 to"):
        parse_text(StoreSettings(), {"fileReservedTime": "-1"}, "update")
