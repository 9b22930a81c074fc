"""Backups of stores without a group, in a folder: what they share, what a kill leaves, what is restored."""

from __future__ import annotations

import errno
import json
import lzma
import random
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from backup_lab import KEY, NAME, CountedPlace, CutError, back_up, fill, log_bytes, records, restore
from engine_lab import message, opened, read_queue, small

from tallystick.node.backup import catalog
from tallystick.node.backup.create import Outcome
from tallystick.node.backup.errors import BackupError, DamagedBackupError, KeyFileError, PlaceError
from tallystick.node.backup.manifest import Manifest, SourceName, ids_of, load, parse_address, sources_of
from tallystick.node.backup.one_topic import TopicRestore
from tallystick.node.backup.pieces import PIECE_BYTES, Throttle, pieces_of
from tallystick.node.backup.places import FolderPlace
from tallystick.node.backup.restore import Point
from tallystick.node.backup.seals import KeySeal, Seal, load_seal, new_key
from tallystick.node.backup.source import SourceStore
from tallystick.store import tables
from tallystick.store._kernel import Door
from tallystick.store.convert.conversion import Conversion, Options
from tallystick.store.convert.source import ConvertError
from tallystick.store.engine.lock import StoreLock
from tallystick.store.engine.recovery import RecoveryError
from tallystick.store.engine.restoring import FILE_NAME, IncompleteStoreError
from tallystick.store.verify.dump import dump
from tallystick.store.verify.repair import StoreRepair
from tallystick.store.verify.report import VerifyError, verify


def same_log(outcome: Outcome, source: bytes, root: Path) -> None:
    found = outcome.manifest
    assert log_bytes(root / "commitlog", found.begin, found.committed) == source


async def test_each_backup_is_restored_as_the_store_was_then(tmp_path: Path) -> None:
    root, place = tmp_path / "store", tmp_path / "place"
    made: list[tuple[Outcome, bytes]] = []
    for round_ in range(4):
        await fill(root, 40, seed=round_)
        outcome = back_up(root, place)
        made.append((outcome, log_bytes(root / "commitlog", outcome.manifest.begin, outcome.manifest.committed)))
    assert made[1][0].shared_bytes == made[0][0].manifest.committed, "the second backup stores only what is new"
    for number, (outcome, source) in enumerate(made):
        to = tmp_path / f"restored-{number}"
        result = restore(outcome, place, to)
        same_log(outcome, source, to)
        assert result.messages == len(records(to)) == 40 * (number + 1)
        report = verify(to)
        assert report.sound and report.clean and not (to / FILE_NAME).exists()


async def test_a_restored_store_serves_and_accepts(tmp_path: Path) -> None:
    root, to = tmp_path / "store", tmp_path / "to"
    await fill(root, 60)
    restore(back_up(root, tmp_path / "place"), tmp_path / "place", to)
    async with opened(small(root)) as store:
        wanted = {queue: read_queue(store, "T", queue) for queue in (0, 1)}
    async with opened(small(to)) as store:
        assert {queue: read_queue(store, "T", queue) for queue in (0, 1)} == wanted
        put = await store.writes.put(message(b"later"))
        assert put.status.stored and read_queue(store, "T", 0)[-1].body == b"later"


async def test_offsets_behind_the_end_are_corrected_and_named(tmp_path: Path) -> None:
    root, to = tmp_path / "store", tmp_path / "to"
    await fill(root, 30)
    result = restore(back_up(root, tmp_path / "place"), tmp_path / "place", to)
    ends = {(each.topic, each.queue_id): each.queue_offset + 1 for each in records(to)}
    found = tables.decode((to / "config/consumerOffset.json").read_bytes())["offsetTable"]
    assert found == {f"{topic}@g": {0: ends[topic, 0], 1: 1} for topic in ("T", "U")}
    assert [note for note in result.notes if "T@g queue 0: offset 1000000 is behind the end" in note]


async def test_a_store_that_was_made_again_shares_nothing(tmp_path: Path) -> None:
    root, place = tmp_path / "store", tmp_path / "place"
    await fill(root, 50, seed=1)
    first = back_up(root, place)
    old = log_bytes(root / "commitlog", 0, first.manifest.committed)
    shutil.rmtree(root)
    await fill(root, 90, seed=2)  # longer: each position of the old one exists in it
    second = back_up(root, place)
    assert second.shared_bytes == 0 and second.manifest.previous is None
    assert any("another one" in note for note in second.notes)
    restore(first, place, tmp_path / "old")
    same_log(first, old, tmp_path / "old")
    restore(second, place, tmp_path / "new")
    same_log(second, log_bytes(root / "commitlog", 0, second.manifest.committed), tmp_path / "new")


async def test_a_backup_that_is_killed_anywhere_is_none(tmp_path: Path) -> None:
    root = tmp_path / "store"
    await fill(root, 40, seed=1)
    clean = CountedPlace(FolderPlace(tmp_path / "clean"))
    back_up(root, clean)
    for calls in range(clean.calls):
        place = CountedPlace(FolderPlace(tmp_path / f"place-{calls}"))
        place.cut_at = calls
        with pytest.raises(CutError):
            back_up(root, place)
        place.cut_at = None
        killed_before_the_manifest = not ids_of(place, NAME)
        outcome = back_up(root, place)
        assert not catalog.verify(place, outcome.manifest, Seal())
        if killed_before_the_manifest:
            logs = [name for name in place.writes if "/log/" in name]
            assert len(logs) == len(set(logs)), "a piece that the killed run has stored is not stored again"
        catalog.delete(place, NAME, ids_of(place, NAME), force=True)
        assert place.names("") == {}


async def test_a_place_that_fails_is_named_and_leaves_no_backup(tmp_path: Path) -> None:
    root = tmp_path / "store"
    await fill(root, 40)
    clean = CountedPlace(FolderPlace(tmp_path / "clean"))
    back_up(root, clean)
    for call in range(1, clean.calls):  # without the removal of the announcement
        place = CountedPlace(FolderPlace(tmp_path / f"place-{call}"))
        place.fail_at = call
        with pytest.raises(PlaceError, match="the test fails this call"):
            back_up(root, place)
        place.fail_at = None
        for backup_id in ids_of(place, NAME):  # only the read of the manifest itself was left
            assert not catalog.verify(place, load(place, NAME, backup_id), Seal())


async def test_a_full_disk_of_the_place_is_named(tmp_path: Path) -> None:
    await fill(tmp_path / "store", 40)
    door = Door()
    door.fail("write", "place/lab", errno.ENOSPC, after=4)
    with pytest.raises(PlaceError, match=r"cannot store lab/broker-a/log/.*No space left"):
        back_up(tmp_path / "store", FolderPlace(tmp_path / "place", door))
    assert ids_of(FolderPlace(tmp_path / "place"), NAME) == []
    assert not list((tmp_path / "place").rglob("*.tmp"))


async def test_a_restore_that_is_killed_anywhere_is_no_store(tmp_path: Path) -> None:
    await fill(tmp_path / "store", 25)
    outcome = back_up(tmp_path / "store", tmp_path / "place")
    counted = Door()
    restore(outcome, tmp_path / "place", tmp_path / "whole", door=counted)
    calls = sum(counted.counts().values())
    for kill in [*range(0, calls - 1, 7), calls - 3, calls - 2]:
        to, door = tmp_path / f"to-{kill}", Door()
        door.kill_after(kill, keep_bytes=kill % 5)
        try:
            restore(outcome, tmp_path / "place", to, door=door)
        except (OSError, BackupError):
            pass
        if not door.dead or not to.exists():
            continue
        assert list(to.iterdir()) == [] or (to / FILE_NAME).exists() or verify(to).sound
        if (to / FILE_NAME).exists():
            with pytest.raises(IncompleteStoreError, match="did not finish"):
                StoreLock.acquire(to, Door())
            with pytest.raises((BackupError, IncompleteStoreError)):
                back_up(to, tmp_path / "elsewhere")
        shutil.rmtree(to)


async def test_nothing_takes_an_unfinished_restore_for_a_store(tmp_path: Path) -> None:
    await fill(tmp_path / "store", 25)
    door = Door()
    door.fail("remove", FILE_NAME, errno.EIO)
    with pytest.raises(OSError, match="Input/output error"):
        restore(back_up(tmp_path / "store", tmp_path / "place"), tmp_path / "place", tmp_path / "to", door=door)
    with pytest.raises(VerifyError, match="did not finish"):
        verify(tmp_path / "to")
    with pytest.raises(VerifyError, match="did not finish"), StoreRepair.opened(tmp_path / "to", dry_run=True):
        pass
    with pytest.raises(IncompleteStoreError, match="did not finish"):
        dump(tmp_path / "to")
    with pytest.raises(RecoveryError, match="did not finish"):
        async with opened(small(tmp_path / "to")):
            pass
    with pytest.raises(ConvertError, match="did not finish"):
        Conversion(tmp_path / "to", tmp_path / "new", Options(layout="dledger"), Door()).run()


async def test_a_full_disk_ends_a_restore_with_the_mark(tmp_path: Path) -> None:
    await fill(tmp_path / "store", 25)
    outcome = back_up(tmp_path / "store", tmp_path / "place")
    door = Door()
    door.fail("write", "commitlog", errno.ENOSPC, after=2)
    with pytest.raises(OSError, match="No space left"):
        restore(outcome, tmp_path / "place", tmp_path / "to", door=door)
    with pytest.raises(IncompleteStoreError):
        StoreLock.acquire(tmp_path / "to", Door())


async def test_only_an_empty_folder_is_restored_into(tmp_path: Path) -> None:
    await fill(tmp_path / "store", 10)
    outcome = back_up(tmp_path / "store", tmp_path / "place")
    (tmp_path / "to/lost+found").mkdir(parents=True)
    restore(outcome, tmp_path / "place", tmp_path / "to")
    with pytest.raises(BackupError, match="is not empty"):
        restore(outcome, tmp_path / "place", tmp_path / "to")
    assert verify(tmp_path / "to").sound


@pytest.mark.parametrize("kind", ["flipped", "short", "missing"])
async def test_a_damaged_object_is_named(tmp_path: Path, kind: str) -> None:
    await fill(tmp_path / "store", 40)
    outcome = back_up(tmp_path / "store", tmp_path / "place")
    broken = outcome.manifest.log[2]
    path = tmp_path / "place" / NAME.folder / broken.name
    data = path.read_bytes()
    match kind:
        case "flipped":
            path.write_bytes(data[:100] + bytes([data[100] ^ 1]) + data[101:])
        case "short":
            path.write_bytes(data[:-1])
        case _:
            path.unlink()
    place = FolderPlace(tmp_path / "place")
    faults = catalog.verify(place, outcome.manifest, Seal())
    assert len(faults) == 1 and broken.name in faults[0]
    assert bool(catalog.check_present(place, outcome.manifest)) is (kind != "flipped")
    with pytest.raises(DamagedBackupError, match=broken.name):
        restore(outcome, place, tmp_path / "to")
    with pytest.raises(IncompleteStoreError):
        StoreLock.acquire(tmp_path / "to", Door())


async def test_a_piece_that_is_missing_is_stored_again_by_the_next_backup(tmp_path: Path) -> None:
    await fill(tmp_path / "store", 40)
    first = back_up(tmp_path / "store", tmp_path / "place")
    (tmp_path / "place" / NAME.folder / first.manifest.log[1].name).unlink()
    second = back_up(tmp_path / "store", tmp_path / "place")
    assert second.new_bytes == first.manifest.log[1].bytes
    assert not catalog.verify(FolderPlace(tmp_path / "place"), first.manifest, Seal())


async def test_each_byte_of_a_manifest_counts(tmp_path: Path) -> None:
    await fill(tmp_path / "store", 10)
    outcome = back_up(tmp_path / "store", tmp_path / "place")
    data = outcome.manifest.encode(Seal())
    assert Manifest.decode(data, "here") == outcome.manifest
    dice = random.Random(5)
    for at in dice.sample(range(len(data)), 200):
        changed = data[:at] + bytes([data[at] ^ 1 << dice.randrange(7)]) + data[at + 1 :]
        try:
            found = Manifest.decode(changed, "here")
        except BackupError:
            continue
        assert found == outcome.manifest, "a change of white space"


async def test_a_manifest_names_no_other_files(tmp_path: Path) -> None:
    """Without encryption, each program that can write to the place can write manifests."""
    await fill(tmp_path / "store", 10)
    found = back_up(tmp_path / "store", tmp_path / "place").manifest
    table = found.tables[0]
    for file in ("config/../../etc/cron", "/etc/passwd", "abort", "config/.ssh", "config/a/b", ""):
        forged = replace(found, tables=[replace(table, file=file)])
        with pytest.raises(DamagedBackupError, match="is not the file of a table"):
            Manifest.decode(forged.encode(Seal()), "here")
    for changes in ({"sizes": {"storePathRootDir": "/"}}, {"segment_bytes": 0}, {"begin": -1}):
        with pytest.raises(DamagedBackupError):
            Manifest.decode(replace(found, **changes).encode(Seal()), "here")
    with pytest.raises(DamagedBackupError):
        Manifest.decode(replace(found, log=[replace(found.log[0], name="log/../x")]).encode(Seal()), "here")


async def test_ends_of_idle_queues_are_known(tmp_path: Path) -> None:
    """All records of a queue are before the begin of the log: only its ConsumeQueue has its end."""
    root = tmp_path / "store"
    await fill(root, 7, topics=("idle",))
    every = records(root)
    await fill(root, 60, seed=2, topics=("busy",))
    ends = {(each.topic, each.queue_id): each.queue_offset + 1 for each in every}
    begin = every[-1].pos + every[-1].size
    begin += -begin % 4096
    source = SourceStore(root, NAME)
    found = source._ends_before(begin)
    assert {queue: end for queue, end in found.items() if queue[0] == "idle"} == ends
    assert ("busy", 0) not in found and source._ends_before(0) == {}


async def test_deleting_keeps_what_other_backups_use(tmp_path: Path) -> None:
    root, place = tmp_path / "store", FolderPlace(tmp_path / "place")
    made = []
    for seed in range(3):
        await fill(root, 20, seed=seed)
        made.append(back_up(root, place))
    deleted = catalog.delete(place, NAME, [made[1].manifest.id])
    assert deleted.backups == [made[1].manifest.id] and not deleted.waits
    assert not catalog.verify(place, made[0].manifest, Seal()) and not catalog.verify(place, made[2].manifest, Seal())
    catalog.delete(place, NAME, [made[0].manifest.id])
    assert not catalog.verify(place, made[2].manifest, Seal())
    assert catalog.delete(place, NAME, [made[2].manifest.id]).objects > 0
    assert place.names("") == {} and sources_of(place) == []


async def test_a_deletion_waits_for_a_backup_that_runs(tmp_path: Path) -> None:
    root, place = tmp_path / "store", FolderPlace(tmp_path / "place")
    await fill(root, 20)
    first = back_up(root, place)
    place.write(f"{NAME.folder}/running/20261125T000000Z-abcd.json", b"{}")
    deleted = catalog.delete(place, NAME, [first.manifest.id])
    assert deleted.waits and deleted.objects == 0 and not catalog.check_present(place, first.manifest)
    assert catalog.delete(place, NAME, [], force=True).objects > 0
    assert place.names("") == {}


async def test_a_backup_gives_up_while_a_deletion_runs(tmp_path: Path) -> None:
    root, place = tmp_path / "store", FolderPlace(tmp_path / "place")
    await fill(root, 20)
    place.write(f"{NAME.folder}/deleting/20261125T000000Z-abcd.json", b"{}")
    with pytest.raises(BackupError, match="a deletion of backups of lab/broker-a is running"):
        back_up(root, place)


# -- points in time ----------------------------------------------------------------------------------------------------


async def test_every_offset_restores_the_records_before_it(tmp_path: Path) -> None:
    await fill(tmp_path / "store", 30)
    outcome = back_up(tmp_path / "store", tmp_path / "place")
    every = records(tmp_path / "store")
    ends = [each.pos + each.size for each in every]
    dice = random.Random(3)
    for offset in [ends[0], ends[5] - 1, ends[5], ends[5] + 1, ends[-1], *dice.sample(range(ends[0], ends[-1]), 12)]:
        to = tmp_path / f"to-{offset}"
        if to.exists():
            continue
        result = restore(outcome, tmp_path / "place", to, point=Point(offset=offset))
        assert records(to) == [each for each in every if each.pos + each.size <= offset]
        assert result.end <= offset and verify(to).sound
        assert not any(log_bytes(to / "commitlog", result.end, offset + 4096))
    with pytest.raises(BackupError, match="no record up to there"):
        restore(outcome, tmp_path / "place", tmp_path / "none", point=Point(offset=ends[0] - 1))
    with pytest.raises(BackupError, match="not byte"):
        restore(outcome, tmp_path / "place", tmp_path / "behind", point=Point(offset=outcome.manifest.committed + 1))


async def test_every_time_restores_the_records_until_then(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from tallystick.store.engine import writes

    now = iter(range(1_700_000_000_000, 1_800_000_000_000, 7))
    monkeypatch.setattr(writes, "wall_ms", lambda: next(now))
    await fill(tmp_path / "store", 30)
    outcome = back_up(tmp_path / "store", tmp_path / "place")
    every = records(tmp_path / "store")
    times = [each.store_timestamp_ms for each in every]
    assert len(set(times)) == len(times)
    for time_ms in (times[0], times[4] + 1, times[11], times[12] - 1, times[-1], times[-1] + 5):
        to = tmp_path / f"to-{time_ms}"
        restore(outcome, tmp_path / "place", to, point=Point(time_ms=time_ms))
        assert records(to) == [each for each in every if each.store_timestamp_ms <= time_ms]
        assert verify(to).sound
    with pytest.raises(BackupError, match="no record"):
        restore(outcome, tmp_path / "place", tmp_path / "none", point=Point(time_ms=times[0] - 1))


async def test_what_was_delivered_behind_the_point_is_delivered_again(tmp_path: Path) -> None:
    root, place = tmp_path / "store", tmp_path / "place"
    half, delays = "RMQ_SYS_TRANS_HALF_TOPIC@CID_RMQ_SYS_TRANS", "SCHEDULE_TOPIC_XXXX"
    await fill(root, 20, topics=("T", delays))

    def save(offset: int) -> None:
        kept = {"T@g": {0: offset}, half: {0: offset}}
        (root / "config/consumerOffset.json").write_bytes(tables.encode({"offsetTable": kept}))
        (root / "config/delayOffset.json").write_bytes(tables.encode({"offsetTable": {1: offset}}))

    save(2)
    first = back_up(root, place)
    await fill(root, 40, seed=2, topics=("T", delays), first=20)
    save(6)
    second = back_up(root, place)
    restore(second, place, tmp_path / "between", point=Point(offset=second.manifest.committed - 1))
    found = tables.decode((tmp_path / "between/config/delayOffset.json").read_bytes())
    assert found["offsetTable"] == {1: 2}, "of the first backup, which ends before the point"
    found = tables.decode((tmp_path / "between/config/consumerOffset.json").read_bytes())
    assert found["offsetTable"] == {"T@g": {0: 6}, half: {0: 0}}, "clamped: the lab's log has no half message"
    result = restore(second, place, tmp_path / "early", point=Point(offset=first.manifest.committed - 1))
    assert any("handled again" in note for note in result.notes)
    assert tables.decode((tmp_path / "early/config/delayOffset.json").read_bytes())["offsetTable"] == {}
    found = tables.decode((tmp_path / "early/config/consumerOffset.json").read_bytes())
    assert half not in found["offsetTable"]


# -- one topic ---------------------------------------------------------------------------------------------------------


async def test_one_topic_is_restored_alone(tmp_path: Path) -> None:
    await fill(tmp_path / "store", 80)
    outcome = back_up(tmp_path / "store", tmp_path / "place")
    place, to = FolderPlace(tmp_path / "place"), tmp_path / "to"
    result = TopicRestore(outcome.manifest, place, Seal(), to, "U").run()
    wanted = [each for each in records(tmp_path / "store") if each.topic == "U"]
    assert [replace_pos(each) for each in records(to)] == [replace_pos(each) for each in wanted]
    assert result.messages == len(wanted) and verify(to).sound
    rows = tables.decode((to / "config/topics.json").read_bytes())["topicConfigTable"]
    assert list(rows) == ["U"]
    offsets = tables.decode((to / "config/consumerOffset.json").read_bytes())["offsetTable"]
    assert list(offsets) == ["U@g"]
    async with opened(small(to)) as store:
        assert [each.body for each in read_queue(store, "U", 0)] == [each.body for each in wanted if each.queue_id == 0]
    with pytest.raises(BackupError, match="no messages of the topic nothing"):
        TopicRestore(outcome.manifest, place, Seal(), tmp_path / "none", "nothing").run()


def replace_pos(record: object) -> object:
    return record._replace(pos=0)  # type: ignore[attr-defined]


async def test_one_topic_up_to_a_point(tmp_path: Path) -> None:
    await fill(tmp_path / "store", 40)
    outcome = back_up(tmp_path / "store", tmp_path / "place")
    every = records(tmp_path / "store")
    offset = every[25].pos + every[25].size
    place = FolderPlace(tmp_path / "place")
    TopicRestore(outcome.manifest, place, Seal(), tmp_path / "to", "T", point=Point(offset=offset)).run()
    wanted = [each.body for each in every[:26] if each.topic == "T"]
    assert [each.body for each in records(tmp_path / "to")] == wanted


# -- encryption --------------------------------------------------------------------------------------------------------


async def test_encrypted_backups_need_their_key(tmp_path: Path) -> None:
    await fill(tmp_path / "store", 40)
    place, seal = FolderPlace(tmp_path / "place"), KeySeal(KEY)
    first = back_up(tmp_path / "store", place, seal)
    second = back_up(tmp_path / "store", place, seal)
    assert second.new_bytes == 0 and second.shared_bytes == second.manifest.committed
    everything = b"".join(path.read_bytes() for path in (tmp_path / "place").rglob("*") if path.is_file())
    for secret in (b"1-3 ", b"TALLY", KEY, KEY.hex().encode(), b'"T"'):
        assert (secret in everything) is (secret == b"TALLY"), secret  # the magic of encrypted objects
    restore(first, place, tmp_path / "to", seal)
    same_log(first, log_bytes(tmp_path / "store/commitlog", 0, first.manifest.committed), tmp_path / "to")
    with pytest.raises(KeyFileError, match="name its file with --key-file"):
        load(place, NAME, first.manifest.id, Seal())
    with pytest.raises(KeyFileError, match="the file has the key"):
        load(place, NAME, first.manifest.id, KeySeal(b"o" * 32))
    assert catalog.verify(place, first.manifest, Seal()) == [], "what is stored can be checked without the key"
    path = tmp_path / "place" / NAME.folder / first.manifest.log[1].name
    data = path.read_bytes()
    path.write_bytes(data[:50] + bytes([data[50] ^ 1]) + data[51:])
    (fault,) = catalog.verify(place, first.manifest, Seal())
    assert "its SHA-256 differs" in fault
    path.write_bytes(data)
    plain = back_up(tmp_path / "store", place)
    assert plain.shared_bytes == 0 and any("another key" in note for note in plain.notes)
    with pytest.raises(KeyFileError, match="is not encrypted"):
        load(place, NAME, plain.manifest.id, seal)


async def test_no_one_without_the_key_changes_a_backup(tmp_path: Path) -> None:
    await fill(tmp_path / "store", 40)
    place, seal = FolderPlace(tmp_path / "place"), KeySeal(KEY)
    found = back_up(tmp_path / "store", place, seal).manifest
    one, other = found.log[0], found.log[1]
    # Objects are exchanged, with manifests that say so, by a program that can write to the place.
    data = place.read(f"{NAME.folder}/{other.name}")
    place.write(f"{NAME.folder}/{one.name}", data)
    forged = replace(found, log=[replace(one, bytes=other.bytes, sha256=other.sha256), *found.log[1:]])
    place.write(f"{NAME.folder}/{found.name}", forged.encode(Seal()))
    with pytest.raises(DamagedBackupError, match="was not written by a holder of the key"):
        load(place, NAME, found.id, seal)
    faults = catalog.verify(place, forged, seal)
    assert len(faults) == 1 and "is the object of another name" in faults[0]


def test_key_files(tmp_path: Path) -> None:
    new_key(tmp_path / "key")
    assert (tmp_path / "key").stat().st_mode & 0o777 == 0o600
    seal = load_seal(tmp_path / "key")
    assert seal.opened("a", seal.sealed("a", b"content")) == b"content"
    assert seal.sealed("a", b"content") != seal.sealed("a", b"content")
    for changed in (b"", b"content", seal.sealed("b", b"content"), seal.sealed("a", b"content")[:-1]):
        with pytest.raises(DamagedBackupError):
            seal.opened("a", changed)
    with pytest.raises(FileExistsError):
        new_key(tmp_path / "key")
    (tmp_path / "short").write_text("abcd")
    with pytest.raises(KeyFileError, match="64 hexadecimal digits"):
        load_seal(tmp_path / "short")


# -- retention, damage, names ------------------------------------------------------------------------------------------


async def test_segments_that_retention_deletes_meanwhile_are_named(tmp_path: Path) -> None:
    root = tmp_path / "store"
    await fill(root, 60)
    place = CountedPlace(FolderPlace(tmp_path / "place"))
    write = place.write

    def write_and_delete(name: str, data: bytes) -> None:
        write(name, data)
        if "/log/" in name and len([each for each in place.writes if "/log/" in each]) == 2:
            for start in (0, 4096, 8192):
                (root / f"commitlog/{start:020}").unlink()

    place.write = write_and_delete  # type: ignore[method-assign]
    outcome = back_up(root, place)
    assert outcome.manifest.begin == 3 * 4096
    assert outcome.notes == ["retention deleted the log before byte 12288 during the backup, which begins there"]
    restore(outcome, place, tmp_path / "to")
    assert verify(tmp_path / "to").sound
    later = back_up(root, place)
    assert later.new_bytes == 0 and later.manifest.begin == 3 * 4096


async def test_a_file_that_disappears_in_the_middle_is_an_error(tmp_path: Path) -> None:
    root = tmp_path / "store"
    await fill(root, 60)
    (root / f"commitlog/{4096:020}").unlink()
    with pytest.raises(BackupError, match="the segment before this one is missing"):
        back_up(root, tmp_path / "place")


async def test_damage_of_the_source_is_in_the_backup_and_named(tmp_path: Path) -> None:
    root = tmp_path / "store"
    await fill(root, 60)
    victim = records(root)[7]
    path = root / f"commitlog/{victim.pos - victim.pos % 4096:020}"
    data = bytearray(path.read_bytes())
    at = data.index(victim.body or b"?")
    data[at] ^= 1
    path.write_bytes(data)
    outcome = back_up(root, tmp_path / "place")
    assert [pos for pos, _, _ in outcome.manifest.damage] == [victim.pos]
    assert restore(outcome, tmp_path / "place", tmp_path / "to").damaged > 0


async def test_damaged_tables_of_the_source_are_refused(tmp_path: Path) -> None:
    root = tmp_path / "store"
    await fill(root, 10)
    sound = (root / "config/topics.json").read_bytes()
    (root / "config/topics.json").write_bytes(sound.replace(b"perm", b"pern"))
    with pytest.raises(BackupError, match=r"topics.json is damaged"):
        back_up(root, tmp_path / "place")
    (root / "config/topics.json.bak").write_bytes(sound)
    outcome = back_up(root, tmp_path / "place")
    restore(outcome, tmp_path / "place", tmp_path / "to")
    assert tables.decode((tmp_path / "to/config/topics.json").read_bytes()) == tables.decode(sound)


async def test_names_of_sources_lead_nowhere_else(tmp_path: Path) -> None:
    for text in ("a", "/b", "a/", "a/b/c"):
        with pytest.raises(BackupError, match="CLUSTER/BROKER"):
            SourceName.parse(text)
    assert SourceName("..", "a/b").folder == "%2E%2E/a%2Fb"
    assert parse_address("s3://b/p/c/d%2Fe/20261125T000000Z-abcd") == (
        "s3://b/p",
        SourceName("c", "d/e"),
        "20261125T000000Z-abcd",
    )
    with pytest.raises(BackupError, match="PLACE/CLUSTER/BROKER/ID"):
        parse_address("/backups/20261125T000000Z-abcd")


def test_pieces_cover_a_log_once() -> None:
    dice = random.Random(1)
    for _ in range(200):
        segment = dice.choice([4096, PIECE_BYTES, PIECE_BYTES * 3 + 4096])
        first = dice.randrange(3) * segment
        begin = first + dice.randrange(2 * segment)
        end = begin + dice.randrange(1, 3 * segment)
        found = list(pieces_of(begin, end, first, segment))
        assert [found[0][0], *(last for _, last in found)] == [*(start for start, _ in found), end]
        assert all((a - first) // segment == (b - 1 - first) // segment and b - a <= PIECE_BYTES for a, b in found)
        whole = list(pieces_of(first, end, first, segment))
        assert all(piece in whole for piece in found[1:-1]), "where a backup begins does not move later pieces"


def test_the_throttle_keeps_the_rate() -> None:
    now = [0.0]

    def sleep(seconds: float) -> None:
        now[0] += seconds

    throttle = Throttle(1000, lambda: now[0], sleep)
    for _ in range(10):
        throttle.took(500)
    assert now[0] == pytest.approx(5.0)
    now[0] += 100.0
    throttle.took(500)
    assert now[0] == pytest.approx(105.5), "unused time is not saved up"
    Throttle(0, lambda: now[0], sleep).took(10**12)
    assert now[0] == pytest.approx(105.5)


async def test_the_list_shows_manifests_that_cannot_be_read(tmp_path: Path) -> None:
    await fill(tmp_path / "store", 10)
    place = FolderPlace(tmp_path / "place")
    first, second = back_up(tmp_path / "store", place), back_up(tmp_path / "store", place)
    path = tmp_path / "place" / NAME.folder / first.manifest.name
    fields = json.loads(path.read_bytes())
    path.write_text(json.dumps(fields | {"begin": 1}))
    found = catalog.listed(place)
    assert [(each.id, bool(each.fault)) for each in found] == [(first.manifest.id, True), (second.manifest.id, False)]
    with pytest.raises(DamagedBackupError):
        catalog.delete(place, NAME, [second.manifest.id])  # it is unknown what the other one uses


@pytest.mark.parametrize("name", ["clean", "killed", "trimmed", "edge"])
async def test_stores_that_rocketmq_wrote(
    golden: Callable[[str], Path], golden_folder: Path, tmp_path: Path, name: str
) -> None:
    root = golden(name)
    outcome = back_up(root, tmp_path / "place")
    restore(outcome, tmp_path / "place", tmp_path / "to")
    found, begin, end = outcome.manifest, outcome.manifest.begin, outcome.manifest.committed
    assert log_bytes(tmp_path / "to/commitlog", begin, end) == log_bytes(root / "commitlog", begin, end)
    assert not any(log_bytes(root / "commitlog", end, end + found.segment_bytes)), "nothing is behind the end"
    assert verify(tmp_path / "to").sound
    assert records(tmp_path / "to") == records(root)
    if name == "clean":  # RocketMQ's listing of its store is also one of the restored store
        settings = dict(
            line.split("=", 1) for line in (golden_folder / name / "settings.properties").read_text().splitlines()
        )
        with lzma.open(golden_folder / name / "expected.json.xz", "rt") as file:
            wanted = json.load(file)
        assert json.loads(json.dumps(dump(tmp_path / "to", settings)))["opened"] == wanted["opened"]
