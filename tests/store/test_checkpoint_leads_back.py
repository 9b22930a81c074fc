"""The checkpoint of an open store leads RocketMQ far enough back to build again the index files it throws away."""

from pathlib import Path

from engine_lab import message, opened, small

from tallystick.store.formats import properties
from tallystick.store.formats.checkpoint import StoreCheckpoint

KEYED = properties.encode({properties.KEYS: "key"})


async def test_the_times_are_no_later_than_the_beginning_of_the_newest_index_file(tmp_path: Path) -> None:
    """Seen before: after kill -9 RocketMQ found 925 of 10 000 messages by none of their keys."""
    settings = small(tmp_path, maxIndexNum=1000)
    async with opened(settings) as store:
        first = await store.writes.put(message(properties=KEYED))
        last = first
        while last.store_timestamp_ms == first.store_timestamp_ms:
            last = await store.writes.put(message(properties=KEYED))

    checkpoint = StoreCheckpoint.load(tmp_path / "checkpoint")
    assert checkpoint.logics_timestamp_ms == first.store_timestamp_ms
    assert checkpoint.physic_timestamp_ms == last.store_timestamp_ms
    assert checkpoint.index_timestamp_ms == last.store_timestamp_ms


async def test_without_an_index_the_times_are_those_of_the_newest_message(tmp_path: Path) -> None:
    async with opened(small(tmp_path, messageIndexEnable=False)) as store:
        last = await store.writes.put(message(properties=KEYED))

    checkpoint = StoreCheckpoint.load(tmp_path / "checkpoint")
    assert checkpoint.logics_timestamp_ms == checkpoint.physic_timestamp_ms == last.store_timestamp_ms
