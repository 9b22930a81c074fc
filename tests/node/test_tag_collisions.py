"""Tags whose hash codes are equal: the broker selects by the code alone, and clients compare the text.

`Aa` and `BB` have one code, and so have all words made of as many of them. As in RocketMQ a pull brings the messages of
all tags with the code; none that was asked for is missing.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tallystick.node.broker.broker import Broker
from tallystick.node.broker.tables.filters import filter_of
from tallystick.node.broker.tables.subscriptions import MAX_CHARACTERS, SubscriptionError
from tallystick.node.broker.tables.topics import TopicConfig
from tallystick.node.core.settings import BrokerSettings
from tallystick.store.formats import properties
from tallystick.store.formats.record import Record
from tallystick.store.settings import StoreSettings

FAMILY = ["".join(parts) for parts in itertools.product(("Aa", "BB"), repeat=6)]
OTHERS = ["AaBB", "CC", "AaAaAaAaAaAb"]


@pytest.fixture
async def broker(tmp_path: Path) -> AsyncIterator[Broker]:
    settings = BrokerSettings(
        brokerIP1="127.0.0.1", bindAddress="127.0.0.1", listenPort=0, brokerName="b", vipListenerEnable=False
    )
    small = StoreSettings(str(tmp_path), mappedFileSizeCommitLog=1 << 20, maxHashSlotNum=100, maxIndexNum=400)
    broker = await Broker.start(settings, small)
    broker.topics.update(TopicConfig("T", 1, 1))
    for tag in (*FAMILY, *OTHERS):
        broker.store.log.append(
            b"T", 0, tag.encode(), properties.encode({"TAGS": tag, "a": tag}).encode(),
            now_ms=1_700_000_000_000, born_timestamp=1, born_host=broker.store.store_host.encode(),
        )  # fmt: skip
    await broker.store.flush()
    async with asyncio.timeout(20):
        while broker.store.dispatched_pos < broker.store.max_pos:  # noqa: ASYNC110  # dispatch has no event to wait for
            await asyncio.sleep(0.001)
    yield broker
    await broker.stop()


def pulled(broker: Broker, subscription: str, kind: str = "TAG") -> list[str]:
    """Bodies that a subscription brings, over as many pulls as it takes."""
    wanted, found, offset = filter_of(subscription, kind), [], 0
    while offset < len(FAMILY) + len(OTHERS):
        result = broker.store.reads.get_message("T", 0, offset, 32, codes=wanted.codes, accept=wanted.accept)
        at = 0
        while at < len(result.body):
            size = int.from_bytes(result.body[at : at + 4], "big")
            found.append(Record.decode(result.body[at : at + size]).body.decode())
            at += size
        offset = result.next_begin_offset
    return found


async def test_a_pull_brings_all_tags_with_the_code_and_no_other(broker: Broker) -> None:
    assert pulled(broker, FAMILY[0]) == FAMILY
    assert pulled(broker, f"{FAMILY[3]} || CC") == [*FAMILY, "CC"]
    assert pulled(broker, "AaBB") == pulled(broker, "BBAa") == ["AaBB"]
    assert pulled(broker, " || ".join(FAMILY)) == FAMILY
    assert filter_of(" || ".join(FAMILY), "TAG").codes == filter_of(FAMILY[0], "TAG").codes


async def test_an_expression_tells_them_apart(broker: Broker) -> None:
    assert pulled(broker, f"TAGS = '{FAMILY[5]}'", "SQL92") == [FAMILY[5]]
    assert pulled(broker, f"a IN ('{FAMILY[0]}', '{FAMILY[-1]}')", "SQL92") == [FAMILY[0], FAMILY[-1]]


@pytest.mark.parametrize("count", [15, 16, 17, 5000])
async def test_any_number_of_tags_is_looked_up(broker: Broker, count: int) -> None:
    many = " || ".join(f"t{number}" for number in range(count - 1))
    assert pulled(broker, f"{many} || CC") == ["CC"]
    assert pulled(broker, f"{many} || {FAMILY[1]}") == FAMILY
    assert pulled(broker, many) == []


def test_a_subscription_has_a_longest_length_and_long_ones_are_not_kept() -> None:
    longest = "x" * MAX_CHARACTERS
    assert filter_of(longest, "TAG").codes is not None
    with pytest.raises(SubscriptionError, match="65537 characters, 65536 are allowed"):
        filter_of(longest + "x", "TAG")
    assert filter_of("short", "TAG") is filter_of("short", "TAG")
    assert filter_of(longest, "TAG") is not filter_of(longest, "TAG")
