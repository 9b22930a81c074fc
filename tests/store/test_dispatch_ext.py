"""ConsumeQueueExt: units with addresses, and the files they lead to."""

from __future__ import annotations

import struct
from pathlib import Path

import pytest
from derived_twin import string_hash, write_log

from tallystick.store._kernel import Dispatch, Door
from tallystick.store.formats.record import Record

LIMITS = (262144, 32, 65536, 8)
SEGMENT = 3 * 20 + 4 + 16  # three units, and sixteen bytes that no fourth one can use


def opened(folder: Path, door: Door | None = None, ext_segment_bytes: int = SEGMENT) -> Dispatch:
    dispatch = Dispatch(
        door or Door(),
        str(folder),
        str(folder / "commitlog"),
        log_segment_bytes=4096,
        queue_segment_bytes=200,
        index_slots=16,
        index_entries=64,
        index_enabled=False,
        ext_segment_bytes=ext_segment_bytes,
    )
    dispatch.load()
    dispatch.recover_queues()
    return dispatch


@pytest.fixture
def placed(tmp_path: Path) -> list[tuple[int, Record]]:
    records = [
        Record(
            "T",
            0,
            b"x",
            f"TAGS\x01tag{number % 3}\x02",
            queue_offset=number,
            store_timestamp_ms=1_600_000_000_000 + number,
        )
        for number in range(40)
    ]
    return write_log(tmp_path / "commitlog", records, 4096)[0]


def expected(placed: list[tuple[int, Record]]) -> list[tuple[int, int, int, bytes]]:
    return [(20, string_hash(f"tag{i % 3}"), record.store_timestamp_ms, b"") for i, (_, record) in enumerate(placed)]


def extensions(dispatch: Dispatch) -> list[tuple[int, int, int, bytes] | None]:
    return [dispatch.ext_unit(b"T", 0, unit[2]) for unit in dispatch.units(b"T", 0, dispatch.offsets(b"T", 0)[0], 1000)]


def test_the_files_are_laid_out_as_rocketmqs(tmp_path: Path, placed: list[tuple[int, Record]]) -> None:
    dispatch = opened(tmp_path)
    dispatch.run(placed[5][0], 1 << 40)
    addresses = [unit[2] for unit in dispatch.units(b"T", 0, 0, 10)]
    assert addresses == [-(1 << 63) + at for at in (0, 20, 40, SEGMENT, SEGMENT + 20)]
    assert extensions(dispatch) == expected(placed)[:5], "read from memory"
    dispatch.write_out()
    dispatch.sync()
    folder = tmp_path / "consumequeue_ext" / "T" / "0"
    units = [struct.pack(">hqqh", *unit[:3], 0) for unit in expected(placed)]
    assert (folder / f"{0:020d}").read_bytes() == (b"".join(units[:3]) + b"\xff\xff").ljust(SEGMENT, b"\0")
    assert (folder / f"{SEGMENT:020d}").read_bytes() == b"".join(units[3:5]).ljust(SEGMENT, b"\0")
    assert extensions(dispatch) == expected(placed)[:5], "read from the files"


def test_it_continues_after_the_last_unit_at_each_start(tmp_path: Path, placed: list[tuple[int, Record]]) -> None:
    for number in range(1, 40):
        dispatch = opened(tmp_path)
        dispatch.start(placed[max(0, number - 3)][0])  # some again
        dispatch.run(placed[number][0], 1 << 40)
        dispatch.write_out()
        assert extensions(dispatch) == expected(placed)[:number]
    wanted = frozenset({string_hash("tag1")})
    got = dispatch.get(b"T", 0, 0, 32, wanted, 1 << 40, 1 << 50, LIMITS)
    assert got[0] == 0 and got[4] == 3, "three of the ten in the queue's first file"


def test_files_go_with_their_units(tmp_path: Path, placed: list[tuple[int, Record]]) -> None:
    dispatch = opened(tmp_path)
    dispatch.run(1 << 40, 1 << 40)
    dispatch.write_out()
    dispatch.delete_below(placed[25][0])
    first = dispatch.offsets(b"T", 0)[0]
    assert first == 25
    assert extensions(dispatch) == expected(placed)[25:]
    names = sorted(file.name for file in (tmp_path / "consumequeue_ext" / "T" / "0").iterdir())
    assert int(names[0]) == 25 // 3 * SEGMENT
    dispatch.remove_topic(b"T")
    assert not (tmp_path / "consumequeue_ext" / "T" / "0").exists()


@pytest.mark.parametrize("seed", range(10))
def test_after_a_power_loss_no_unit_names_anothers_extension(
    tmp_path: Path, placed: list[tuple[int, Record]], seed: int
) -> None:
    door = Door(record=True)
    dispatch = opened(tmp_path, door)
    dispatch.run(placed[20][0], 1 << 40)
    dispatch.write_out()
    dispatch.sync()
    dispatch.run(placed[30][0], 1 << 40)
    dispatch.write_out()
    door.crash(seed)
    dispatch = opened(tmp_path)
    dispatch.start(placed[20][0])
    dispatch.run(1 << 40, 1 << 40)
    found = extensions(dispatch)
    assert len(found) == 40
    assert all(unit in (None, wanted) for unit, wanted in zip(found, expected(placed), strict=True))
    assert found[:20] == expected(placed)[:20]


def test_a_message_whose_extension_is_lost_is_let_through(tmp_path: Path, placed: list[tuple[int, Record]]) -> None:
    """Its tag is unknown then: the client compares it, and the broker must not omit the message."""
    dispatch = opened(tmp_path)
    dispatch.run(placed[5][0], 1 << 40)
    dispatch.write_out()
    for file in (tmp_path / "consumequeue_ext" / "T" / "0").iterdir():
        file.unlink()
    again = opened(tmp_path)
    got = again.get(b"T", 0, 0, 32, frozenset({string_hash("tag1")}), 1 << 40, 1 << 50, LIMITS)
    assert (got[0], got[4]) == (0, 5)


def test_an_address_is_never_given_twice(tmp_path: Path, placed: list[tuple[int, Record]]) -> None:
    """What a unit names may be lost with the power: the next unit's extension goes behind that place."""
    dispatch = opened(tmp_path)
    dispatch.run(placed[2][0], 1 << 40)
    dispatch.write_out()
    file = tmp_path / "consumequeue_ext" / "T" / "0" / f"{0:020d}"
    file.write_bytes(bytes(SEGMENT))
    again = opened(tmp_path)
    again.start(placed[2][0])
    again.run(placed[4][0], 1 << 40)
    addresses = [unit[2] for unit in again.units(b"T", 0, 0, 10)]
    assert len(set(addresses)) == len(addresses) == 4
    assert extensions(again) == [None, None, *expected(placed)[2:4]]


# Retention


def write_records(folder: Path, count: int) -> list[tuple[int, Record]]:
    records = [
        Record(
            "T", 0, b"x" * 50, f"n\x01{number}\x02", queue_offset=number, store_timestamp_ms=1_600_000_000_000 + number
        )
        for number in range(count)
    ]
    return write_log(folder / "commitlog", records, 4096)[0]


def ext_files(folder: Path) -> list[int]:
    return sorted(int(path.name) for path in (folder / "consumequeue_ext").glob("T/0/*"))


@pytest.mark.parametrize("ext_bytes", [0, 84])
def test_files_of_another_setting_go_with_their_units(tmp_path: Path, ext_bytes: int) -> None:
    """RocketMQ wrote extensions, or an earlier setting did: retention removes them whatever is set now."""
    records = write_records(tmp_path, 60)
    before = opened(tmp_path, ext_segment_bytes=84)
    before.run(records[40][0], 1 << 40)
    before.write_out()
    assert len(ext_files(tmp_path)) == 10
    now = opened(tmp_path, ext_segment_bytes=ext_bytes)
    now.start(records[40][0])
    now.run(1 << 40, 1 << 40)
    now.write_out()
    now.delete_below(records[25][0])
    assert ext_files(tmp_path)[0] == 6 * 84, "unit 25 is in the seventh file"
    for offset in range(25, 40):
        _, _, code = now.units(b"T", 0, offset, 1)[0]
        assert now.ext_unit(b"T", 0, code) is not None
    now.delete_below(records[45][0])
    assert bool(ext_files(tmp_path)) == (ext_bytes == 84)
    now.delete_below(records[59][0])
    now.remove_topic(b"T")
    assert not (tmp_path / "consumequeue_ext" / "T").exists()


def test_a_new_queue_of_the_name_does_not_read_the_old_ones_extension(tmp_path: Path) -> None:
    records = write_records(tmp_path, 20)
    dispatch = opened(tmp_path, ext_segment_bytes=4096)
    dispatch.run(records[10][0], 1 << 40)
    dispatch.write_out()
    old = dispatch.units(b"T", 0, 3, 1)[0][2]
    assert dispatch.ext_unit(b"T", 0, old) is not None
    dispatch.remove_topic(b"T")
    assert dispatch.ext_unit(b"T", 0, old) is None
    dispatch.run(1 << 40, 1 << 40)
    dispatch.write_out()
    times = [dispatch.ext_unit(b"T", 0, code) for _, _, code in dispatch.units(b"T", 0, 10, 10)]
    assert [unit is not None and unit.store_ms for unit in times] == [
        record.store_timestamp_ms for _, record in records[10:]
    ]


def test_what_is_in_memory_counts_and_is_written(tmp_path: Path) -> None:
    write_records(tmp_path, 30)
    dispatch = opened(tmp_path, ext_segment_bytes=4096)
    dispatch.run(1 << 40, 1 << 40)
    assert dispatch.pending_bytes == 30 * (20 + 20)
    dispatch.write_out()
    assert dispatch.pending_bytes == 0
