"""Dispatch stands at a record whose index entry cannot be written. No start may lose that record."""

from pathlib import Path

from engine_lab import kill, message, opened, read_queue, small

from tallystick.store._kernel import Door
from tallystick.store.engine.message_store import MessageStore
from tallystick.store.formats.message import PutStatus


async def test_a_record_at_which_the_index_failed_is_read_after_a_kill(tmp_path: Path) -> None:
    door = Door()
    settings = small(tmp_path)
    async with opened(settings, door) as store:
        await store.writes.put(message(b"0", properties="KEYS\x01k0\x02"))
        store.dispatcher.catch_up()
        door.fail("create", "/index/", 5)  # the second index file cannot be made
        count = 1
        while not store.dispatcher.behind_bytes or count < 70:
            result = await store.writes.put(message(b"%d" % count, properties=f"KEYS\x01k{count}\x02"))
            assert result.status is PutStatus.PUT_OK
            count += 1
            store.dispatcher.catch_up()
        assert 0 < store.queues.max_offset("T", 0) < count, "dispatch has to stand at a record"
        await store.upkeep.save(thorough=True)
        await kill(store)
    # What gathered units was never written: the queue ends before the record, the table behind it.
    table = tmp_path / "tally-queues"
    assert table.exists()
    files = sorted((tmp_path / "consumequeue" / "T" / "0").iterdir())
    path = [path for path in files if any(path.read_bytes())][-1]
    data = path.read_bytes()
    last = max(at for at in range(0, len(data), 20) if any(data[at : at + 20]))
    path.write_bytes(data[:last] + bytes(len(data) - last))
    again = await MessageStore.open(settings, store_host=store.store_host)
    assert [record.body for record in read_queue(again)] == [b"%d" % number for number in range(count)]
    await again.close()
