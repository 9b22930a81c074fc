"""A SYNC_MASTER: whom it waits for, and with which codes it answers. Slaves are `Copies` here; no sockets."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from engine_lab import SYNC, Peer, message, opened, send_frame, small, turns, until
from hypothesis import given
from hypothesis import strategies as st

from tallystick.store.engine.copies import Copies
from tallystick.store.engine.message_store import MessageStore
from tallystick.store.engine.opening import check_settings
from tallystick.store.formats.message import PutStatus
from tallystick.store.settings import BrokerRole, FlushDiskType, SettingsError, StoreSettings

FLUSHES = pytest.mark.parametrize("flush", list(FlushDiskType))


def settings(root: Path, **changes: Any) -> StoreSettings:
    return small(root, brokerRole=BrokerRole.SYNC_MASTER, **changes)


def copies_of(store: MessageStore) -> Copies:
    assert store.copies is not None
    return store.copies


def hot(store: MessageStore) -> Peer:
    store.connections.set_topic("T", 4)
    store.admission.set_hot(True)
    return Peer(store)


@FLUSHES
async def test_without_a_slave_a_send_is_stored_and_answered_with_11(tmp_path: Path, flush: FlushDiskType) -> None:
    async with opened(settings(tmp_path, flushDiskType=flush)) as store:
        assert (await store.writes.put(message())).status is PutStatus.SLAVE_NOT_AVAILABLE
        peer = hot(store)
        assert len(peer.feed(send_frame())) == 1, "the kernel leaves it to Python"


@FLUSHES
async def test_a_send_is_answered_with_0_when_a_slave_has_its_last_byte(tmp_path: Path, flush: FlushDiskType) -> None:
    async with opened(settings(tmp_path, flushDiskType=flush)) as store:
        copies, peer = copies_of(store), hot(store)
        slave = copies.attach(0)
        put = asyncio.ensure_future(store.writes.put(message()))
        await until(lambda: store.log.staged > 0)
        assert not peer.feed(send_frame())
        end = store.log.staged
        await until(lambda: copies.sendable == end)
        copies.stored(slave, end - 1)
        await turns()
        assert put.done() and not peer.answers, "the first record is complete at the slave, the second is not"
        copies.stored(slave, end)
        (answer,) = await peer.answered(1)
        assert answer["code"] == 0
        assert (await put).status is PutStatus.PUT_OK
        assert sum(store.log.take_put_times()[0]) == 1, "the figures of puts contain the time until the slave's report"


@FLUSHES
async def test_a_slave_that_stores_nothing_costs_syncflushtimeout_and_12(tmp_path: Path, flush: FlushDiskType) -> None:
    async with opened(settings(tmp_path, flushDiskType=flush, syncFlushTimeout=50)) as store:
        copies_of(store).attach(0)
        peer = hot(store)
        assert not peer.feed(send_frame())
        assert (await store.writes.put(message())).status is PutStatus.FLUSH_SLAVE_TIMEOUT
        (answer,) = await peer.answered(1)
        assert answer["code"] == 12 and answer["extFields"]["msgId"]
        assert sum(store.log.take_put_times()[0]) == 1


@FLUSHES
async def test_a_slave_may_have_a_message_before_its_sender_waits(tmp_path: Path, flush: FlushDiskType) -> None:
    async with opened(settings(tmp_path, flushDiskType=flush, syncFlushTimeout=30_000)) as store:
        copies = copies_of(store)
        slave = copies.attach(0)
        copies.on_sendable = lambda: copies.stored(slave, copies.sendable)
        async with asyncio.timeout(20):
            for _ in range(5):
                assert (await store.writes.put(message())).status is PutStatus.PUT_OK


async def test_a_slave_too_far_behind_is_not_waited_for(tmp_path: Path) -> None:
    async with opened(settings(tmp_path, haSlaveFallbehindMax=1000)) as store:
        copies = copies_of(store)
        slave = copies.attach(0)
        put = asyncio.ensure_future(store.writes.put(message(b"x" * 700)))
        await until(lambda: copies.sendable > 0)
        assert (await store.writes.put(message(b"x" * 700))).status is PutStatus.SLAVE_NOT_AVAILABLE
        assert not put.done(), "the first one still waits"
        copies.stored(slave, copies.sendable)
        assert (await put).status is PutStatus.PUT_OK


async def test_sends_that_wait_and_sends_that_do_not_are_answered_by_their_own_rule(tmp_path: Path) -> None:
    async with opened(settings(tmp_path)) as store:
        copies, peer = copies_of(store), hot(store)
        first = copies.attach(0)
        assert not peer.feed(send_frame(opaque=1))
        await until(lambda: copies.sendable > 0)
        first_end = copies.sendable
        copies.detach(first)
        assert len(peer.feed(send_frame(opaque=2))) == 1
        assert (await store.writes.put(message())).status is PutStatus.SLAVE_NOT_AVAILABLE
        assert not peer.answers, "the first one still waits"
        second = copies.attach(0)
        assert not peer.feed(send_frame(opaque=3))
        await until(lambda: copies.sendable == store.log.staged)
        copies.stored(second, first_end)
        assert [(each["opaque"], each["code"]) for each in await peer.answered(1)] == [(1, 0)]
        copies.stored(second, copies.sendable)
        assert [(each["opaque"], each["code"]) for each in await peer.answered(2)] == [(1, 0), (3, 0)]


async def test_a_message_that_waits_for_nothing_is_answered_with_0(tmp_path: Path) -> None:
    async with opened(settings(tmp_path)) as store:
        assert (await store.writes.put(message(properties="WAIT\x01false\x02"))).status is PutStatus.PUT_OK
        copies_of(store).attach(0)
        assert (await store.writes.put(message(properties="WAIT\x01false\x02"))).status is PutStatus.PUT_OK


async def test_with_sync_flush_a_slave_gets_only_what_is_synced(tmp_path: Path) -> None:
    async with opened(settings(tmp_path, flushDiskType=SYNC)) as store:
        copies = copies_of(store)
        copies.attach(0)
        seen: list[tuple[int, int]] = []
        copies.on_sendable = lambda: seen.append((copies.sendable, store.log.flushed))
        puts = [asyncio.ensure_future(store.writes.put(message(b"%d" % n))) for n in range(30)]
        await until(lambda: copies.sendable == store.log.staged > 0)
        assert seen and all(sendable <= flushed for sendable, flushed in seen)
        copies.stored(1, copies.sendable)
        assert {(await put).status for put in puts} == {PutStatus.PUT_OK}


async def test_the_transient_pool_does_not_answer_before_a_slave(tmp_path: Path) -> None:
    async with opened(settings(tmp_path, transientStorePoolEnable=True)) as store:
        copies, peer = copies_of(store), hot(store)
        slave = copies.attach(0)
        assert not peer.feed(send_frame())
        await until(lambda: copies.sendable > 0)
        assert not peer.answers
        copies.stored(slave, copies.sendable)
        assert (await peer.answered(1))[0]["code"] == 0


async def test_a_member_of_a_group_cannot_be_a_sync_master(tmp_path: Path) -> None:
    role = BrokerRole.SYNC_MASTER
    with pytest.raises(SettingsError, match="brokerRole: SYNC_MASTER is not supported in a replicated group"):
        check_settings(small(tmp_path, brokerRole=role, enableDLegerCommitLog=True), is_replicated=True)


# -- Copies ------------------------------------------------------------------------------------------------------------


def test_a_slave_that_comes_back_with_an_empty_disk_counts_as_empty() -> None:
    copies = Copies(begin=0, max_behind=100)
    copies.moved(1000)
    slave = copies.attach(0)
    copies.stored(slave, 1000)
    assert copies.newest == 1000 and copies.available(1050)
    copies.detach(slave)
    assert copies.newest == -1 and not copies.available(1050)
    copies.attach(0)
    assert copies.newest == 0 and not copies.available(1050), "RocketMQ would wait for it"


@given(begin=st.integers(0, 50), sent=st.integers(0, 100), grown=st.integers(0, 100), asked=st.integers(0, 250))
def test_a_copy_is_foreign_when_no_one_was_sent_that_much(begin: int, sent: int, grown: int, asked: int) -> None:
    copies = Copies(begin=begin, max_behind=1)
    copies.moved(begin + grown)
    copies.sent = max(begin, min(sent, copies.sendable))
    assert copies.is_foreign(asked) == (asked > copies.sent)


def test_nobody_is_told_of_what_slaves_may_get_while_there_is_none() -> None:
    copies = Copies(begin=5, max_behind=1)
    copies.moved(9)
    copies.moved(7)
    assert copies.sendable == 9
