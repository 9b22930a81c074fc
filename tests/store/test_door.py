"""The door: what it does, what a test may do to it, and which states a power loss may leave.

The model test drives a recording door and a twin in Python side by side. The twin keeps, for every sector, length and
name, the list of values it may have after a crash; the door has to leave one of each. A crash that keeps everything
leaves the newest ones, one that keeps nothing leaves what was synced.
"""

import errno
import random
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from tallystick.store._kernel import Door

SECTOR = 512


# -- the twin ----------------------------------------------------------------------------------------------------------


@dataclass
class File:
    """One file, whatever its name: its bytes now, and what the disk may have instead."""

    data: bytearray = field(default_factory=bytearray)
    lengths: list[tuple[int, int]] = field(default_factory=list)
    sectors: dict[int, list[tuple[int, bytes]]] = field(default_factory=dict)
    """By sector: (operation, value), the first one durable. A sector that is not here is durable."""

    def sector(self, number: int) -> bytes:
        return bytes(self.data[number * SECTOR : (number + 1) * SECTOR]).ljust(SECTOR, b"\0")

    def change(self, op: int, new: bytes) -> None:
        if len(new) != len(self.data):
            self.lengths = self.lengths or [(0, len(self.data))]
            self.lengths.append((op, len(new)))
        before = File(bytearray(self.data))
        self.data[:] = new
        for number in range(-(-max(len(new), len(before.data)) // SECTOR)):
            if self.sector(number) != before.sector(number):
                self.sectors.setdefault(number, [(0, before.sector(number))]).append((op, self.sector(number)))

    def writes(self) -> set[int]:
        """The operations of which the disk may lack the effect."""
        pasts: list[list[tuple[int, Any]]] = [self.lengths, *self.sectors.values()]
        return {op for past in pasts for op, _ in past}

    def synced(self, doomed: set[int]) -> None:
        self.sectors = {number: past for number, past in self.sectors.items() if past[-1][0] in doomed}
        if self.lengths and self.lengths[-1][0] not in doomed:
            self.lengths = []

    def torn_length(self, length: int) -> bool:
        """A write that made the file longer may have been torn, and its length with it."""
        steps = zip(self.lengths, self.lengths[1:], strict=False)
        return length % SECTOR == 0 and any(before < length < after for (_, before), (_, after) in steps)

    def why_not(self, found: bytes, keep: float | None) -> str | None:
        """Why the disk cannot have these bytes; None: it can."""
        lengths = pick([length for _, length in self.lengths] or [len(self.data)], keep)
        if len(found) not in lengths and not (keep not in (0, 1) and self.torn_length(len(found))):
            return f"{len(found)} bytes, possible are {lengths}"
        for number in range(-(-len(found) // SECTOR)):
            part = found[number * SECTOR : (number + 1) * SECTOR]
            values = pick([value for _, value in self.sectors.get(number, [])] or [self.sector(number)], keep)
            if not any(value[: len(part)] == part for value in values):
                return f"sector {number} has not one of its {len(values)} possible values"
        return None


def pick(values: list, keep: float | None) -> list:
    return values[:1] if keep == 0 else values[-1:] if keep == 1 else values


class World:
    """A recording door on a folder, and its twin."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.door = Door(record=True)
        self.op = 0
        self.doomed: set[int] = set()
        self.files: dict[Path, File] = {}
        self.names: dict[Path, list[File | None]] = {}
        """By path: what may be there, the first one durable; a path that is not here is durable."""
        for folder in ("a", "b"):
            self.door.mkdir(root / folder)
        self.door.keep_fs(root)

    def name(self, path: Path, file: File | None) -> None:
        self.names.setdefault(path, [self.files.get(path)]).append(file)
        if file is None:
            self.files.pop(path, None)
        else:
            self.files[path] = file

    def create(self, path: Path, size: int) -> None:
        self.op += 1
        self.door.create(path, size, allocate=False)
        if path not in self.files:
            self.name(path, File())
        file = self.files[path]
        file.change(self.op, bytes(file.data[:size]).ljust(size, b"\0"))

    def write(self, path: Path, offset: int, data: bytes) -> None:
        self.op += 1
        self.door.write(path, offset, data)
        file = self.files[path]
        new = bytearray(file.data.ljust(offset, b"\0"))
        new[offset : offset + len(data)] = data
        file.change(self.op, bytes(new))

    def truncate(self, path: Path, size: int) -> None:
        self.op += 1
        self.door.truncate(path, size)
        file = self.files[path]
        file.change(self.op, bytes(file.data[:size]).ljust(size, b"\0"))

    def sync(self, path: Path) -> None:
        self.door.sync(path)
        self.files[path].synced(self.doomed)

    def sync_fails(self, path: Path) -> None:
        self.door.fail("sync", str(path), errno.EIO, times=1)
        with pytest.raises(OSError):
            self.door.sync(path)
        file = self.files[path]
        self.doomed |= file.writes()

    def sync_dir(self, folder: Path) -> None:
        self.door.sync_dir(folder)
        self.names = {path: past for path, past in self.names.items() if path.parent != folder}

    def _all_files(self) -> list[File]:
        past = [file for history in self.names.values() for file in history if file is not None]
        return [*self.files.values(), *past]

    def sync_fs(self) -> None:
        assert self.door.sync_fs(self.root)
        for file in self._all_files():
            file.synced(self.doomed)
        self.names = {}

    def sync_fs_fails(self) -> None:
        self.door.fail("sync_fs", str(self.root), errno.EIO, times=1)
        with pytest.raises(OSError):
            self.door.sync_fs(self.root)
        for file in self._all_files():
            self.doomed |= file.writes()

    def rename(self, path: Path, to: Path) -> None:
        self.door.rename(path, to)
        file = self.files[path]
        self.name(path, None)
        self.name(to, file)

    def remove(self, path: Path) -> None:
        self.door.remove(path)
        self.name(path, None)

    def check_now(self) -> None:
        """Without a crash, all writes are visible to all."""
        found = {path: path.read_bytes() for folder in ("a", "b") for path in (self.root / folder).iterdir()}
        assert found == {path: bytes(file.data) for path, file in self.files.items()}

    def crash(self, seed: int, keep: float | None) -> None:
        lost = self.door.crash(seed, keep)
        found = {path: path.read_bytes() for folder in ("a", "b") for path in (self.root / folder).iterdir()}
        for path in found.keys() | self.files.keys() | self.names.keys():
            candidates = pick(self.names.get(path, [self.files.get(path)]), keep)
            reasons = [why_not(file, found.get(path), keep) for file in candidates]
            assert None in reasons, f"{path.name} after losing {lost}: {reasons}"
        self.files = {path: File(bytearray(data)) for path, data in found.items()}
        self.names = {}


def why_not(file: File | None, found: bytes | None, keep: float | None) -> str | None:
    if file is None or found is None:
        return None if file is found else "it is there" if found is not None else "it is not there"
    return file.why_not(found, keep)


# -- the model test ----------------------------------------------------------------------------------------------------

_PATHS = st.sampled_from(["a/x", "a/y", "a/z", "b/x"])
_KEEP = st.sampled_from([0.0, 0.5, 1.0, None])
_PAYLOAD = st.tuples(st.integers(1, 255), st.integers(1, 2000)).map(lambda pair: bytes([pair[0]]) * pair[1])


class DoorAgreesWithItsTwin(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.folder = tempfile.TemporaryDirectory()
        self.world = World(Path(self.folder.name))

    def teardown(self) -> None:
        self.folder.cleanup()

    def path(self, name: str) -> Path | None:
        path = self.world.root / name
        return path if path in self.world.files else None

    @rule(name=_PATHS, size=st.integers(0, 3000))
    def create(self, name, size):
        self.world.create(self.world.root / name, size)

    @rule(name=_PATHS, offset=st.integers(0, 3000), data=_PAYLOAD)
    def write(self, name, offset, data):
        if path := self.path(name):
            self.world.write(path, offset, data)

    @rule(name=_PATHS, size=st.integers(0, 3000))
    def truncate(self, name, size):
        if path := self.path(name):
            self.world.truncate(path, size)

    @rule(name=_PATHS)
    def sync(self, name):
        if path := self.path(name):
            self.world.sync(path)

    @rule(name=_PATHS)
    def sync_fails(self, name):
        if path := self.path(name):
            self.world.sync_fails(path)

    @rule(folder=st.sampled_from("ab"))
    def sync_dir(self, folder):
        self.world.sync_dir(self.world.root / folder)

    @rule()
    def sync_fs(self):
        self.world.sync_fs()

    @rule()
    def sync_fs_fails(self):
        self.world.sync_fs_fails()

    @rule(name=_PATHS, to=_PATHS)
    def rename(self, name, to):
        if name != to and (path := self.path(name)):
            self.world.rename(path, self.world.root / to)

    @rule(name=_PATHS)
    def remove(self, name):
        if path := self.path(name):
            self.world.remove(path)

    @rule(seed=st.integers(0, 2**64 - 1), keep=_KEEP)
    def crash(self, seed, keep):
        self.world.crash(seed, keep)

    @invariant()
    def same_content(self):
        self.world.check_now()


TestDoorAgreesWithItsTwin = DoorAgreesWithItsTwin.TestCase
TestDoorAgreesWithItsTwin.settings = settings(max_examples=60, stateful_step_count=40)


def wander(world: World, seed: int, keep: float | None, *, rest: bool = False) -> None:
    """Random steps that sync much, then (with `rest`: when all is synced) a crash."""
    dice = random.Random(seed)
    paths = [world.root / name for name in ("a/x", "a/y", "b/x")]
    for path in paths:
        world.create(path, 2048)
    for _ in range(30):
        path = dice.choice(paths)
        match dice.randrange(3):
            case 0:
                world.write(path, dice.randrange(1500), bytes([dice.randrange(1, 256)]) * dice.randrange(1, 1500))
            case 1:
                world.sync(path)
            case _:
                world.sync_dir(path.parent)
    for path in paths if rest else ():
        world.sync(path)
        world.sync_dir(path.parent)
    world.crash(seed, keep)


@pytest.mark.parametrize("seed", range(60))
def test_a_walk_with_many_syncs(tmp_path, seed):
    wander(World(tmp_path), seed, (0.0, 0.3, 0.9, None)[seed % 4])


def test_a_sync_of_a_folder_says_nothing_of_the_folders_below_it(tmp_path: Path) -> None:
    door = Door(record=True)
    door.mkdir(tmp_path / "below")
    door.sync_dir(tmp_path)
    path = tmp_path / "below" / "file"
    door.create(path, 4096, allocate=False)
    door.sync(path)
    door.sync_dir(tmp_path)
    door.crash(1, 0.0)
    assert not path.exists()


@pytest.mark.parametrize("op", ["sync", "sync_dir"])
def test_a_sync_left_out_is_seen(tmp_path, op):
    """The plant: a disk that only says that it synced is found out, and not only once in a blue moon."""
    seen = 0
    for seed in range(20):
        world = World(tmp_path / str(seed))
        world.door.lie(op, "/a")
        try:
            wander(world, seed, None, rest=True)
        except AssertionError:
            seen += 1
    assert seen >= 10


def test_a_sync_of_a_whole_file_system_makes_everything_durable(tmp_path: Path) -> None:
    for lies in (False, True):
        door = Door(record=True)
        folder = tmp_path / str(lies)
        door.mkdir(folder)
        door.keep_fs(tmp_path)
        if lies:
            door.lie("sync_fs", str(tmp_path))
        for number in range(3):
            door.create(folder / str(number), 10, allocate=False)
            door.write(folder / str(number), 0, b"content")
        assert door.sync_fs(tmp_path)
        door.crash(1, 0.0)
        assert sorted(path.read_bytes()[:7] for path in folder.iterdir()) == ([] if lies else [b"content"] * 3)


def test_an_unnamed_file_system_is_not_synced_as_a_whole(tmp_path: Path) -> None:
    """Its errors would be those that another process has left."""
    door = Door(record=True)
    door.write_file(tmp_path / "file", b"before")
    door.sync_dir(tmp_path)
    door.write(tmp_path / "file", 0, b"behind")
    assert not door.sync_fs(tmp_path)
    door.crash(1, 0.0)
    assert (tmp_path / "file").read_bytes() == b"before"


def test_a_dead_process_syncs_no_file_system(tmp_path: Path) -> None:
    first = Door(record=True)
    first.keep_fs(tmp_path)
    first.write_file(tmp_path / "file", b"first.")
    first.sync_dir(tmp_path)
    first.write(tmp_path / "file", 0, b"second")
    first.kill()
    with pytest.raises(OSError):
        first.sync_fs(tmp_path)
    second = first.next_process()
    assert second.sync_fs(tmp_path), "the failed call dooms nothing"
    second.crash(1, 0.0)
    assert (tmp_path / "file").read_bytes() == b"second"


def test_one_seed_replays_the_crash(tmp_path):
    left = []
    for name in ("first", "second"):
        folder = tmp_path / name
        folder.mkdir()
        door = Door(record=True)
        for number in range(20):
            door.create(folder / f"{number:02d}", 4096, allocate=False)
            door.write(folder / f"{number:02d}", 100, bytes([number + 1]) * 3000)
        lost = door.crash(7)
        assert lost
        left.append({path.name: path.read_bytes() for path in folder.iterdir()})
    assert left[0] == left[1]


# -- plain use ---------------------------------------------------------------------------------------------------------


def test_what_the_methods_do(tmp_path):
    door = Door()
    path, other = tmp_path / "file", tmp_path / "other"
    door.write_file(path, b"long content")
    door.write_file(str(path), bytearray(b"short"))
    assert path.read_bytes() == b"short"
    door.write(path, 7, b"!")
    assert path.read_bytes() == b"short\0\0!"
    door.truncate(path, 3)
    door.sync(path)
    door.rename(path, other)
    door.sync_dir(tmp_path)
    assert other.read_bytes() == b"sho"
    door.remove(other)
    assert not other.exists()
    door.mkdir(tmp_path / "x" / "y" / "z")
    door.mkdir(tmp_path / "x" / "y" / "z")
    assert (tmp_path / "x/y/z").is_dir()


def test_created_files_have_their_length_and_their_blocks(tmp_path):
    door = Door()
    door.create(tmp_path / "deep" / "sparse", 1 << 20, False)
    door.create(tmp_path / "deep" / "whole", 1 << 20, True)
    sparse, whole = ((tmp_path / "deep" / name).stat() for name in ("sparse", "whole"))
    assert sparse.st_size == whole.st_size == 1 << 20
    assert sparse.st_blocks < 100
    assert whole.st_blocks * 512 >= 1 << 20


@pytest.mark.parametrize("record", [False, True])
def test_errors_name_the_file(tmp_path, record):
    door = Door(record=record)
    missing = tmp_path / "missing"
    for call in (
        lambda: door.write(missing, 0, b"x"),
        lambda: door.sync(missing),
        lambda: door.truncate(missing, 0),
        lambda: door.remove(missing),
        lambda: door.rename(missing, tmp_path / "to"),
        lambda: door.sync_dir(missing),
        lambda: door.sync_fs(missing),
        lambda: door.keep_fs(missing),
    ):
        with pytest.raises(FileNotFoundError) as caught:
            call()
        assert caught.value.errno == errno.ENOENT
        assert caught.value.filename == str(missing)
        assert caught.value.strerror == "No such file or directory"


_CALLS = {
    "create": lambda door, path: door.create(path, 10, False),
    "allocate": lambda door, path: door.create(path, 10, True),
    "open": lambda door, path: door.write(path, 0, b"x"),
    "write": lambda door, path: door.write(path, 0, b"x"),
    "truncate": lambda door, path: door.truncate(path, 3),
    "sync": lambda door, path: door.sync(path),
    "rename": lambda door, path: door.rename(path, path),
    "remove": lambda door, path: door.remove(path),
    "sync_dir": lambda door, path: door.sync_dir(path.parent),
    "mkdir": lambda door, path: door.mkdir(path.parent),
    "sync_fs": lambda door, path: door.sync_fs(path.parent),
}


@pytest.mark.parametrize("record", [False, True])
@pytest.mark.parametrize("op", _CALLS)
def test_calls_can_be_let_fail(tmp_path, op, record):
    door = Door(record=record)
    path = tmp_path / "log" / "file"
    door.mkdir(path.parent)
    door.write_file(path, b"content")
    door.keep_fs(path.parent)
    door.fail(op, "/log", errno.ENOSPC, after=1, times=2)
    outcomes = []
    for _ in range(4):
        if not path.exists():
            path.write_bytes(b"content")
        before = path.read_bytes()
        try:
            _CALLS[op](door, path)
            outcomes.append(True)
        except OSError as error:
            assert error.errno == errno.ENOSPC
            assert "/log" in error.filename
            assert path.read_bytes() == before or op == "allocate"
            outcomes.append(False)
    assert outcomes == [True, False, False, True]


def test_rules_look_at_the_path_and_can_be_healed(tmp_path):
    door = Door()
    door.fail("write", "queue", errno.EIO)
    door.write_file(tmp_path / "log", b"x")
    with pytest.raises(OSError):
        door.write_file(tmp_path / "queue", b"x")
    door.heal()
    door.write_file(tmp_path / "queue", b"x")
    with pytest.raises(ValueError, match='no operation "erase"; there are open, create'):
        door.fail("erase", "", 5)


@pytest.mark.parametrize("record", [False, True])
def test_a_torn_write(tmp_path, record):
    door = Door(record=record)
    path = tmp_path / "log"
    door.write_file(path, b"........")
    door.tear("log", 3)
    with pytest.raises(OSError) as caught:
        door.write(path, 1, b"abcdef")
    assert caught.value.errno == errno.EIO
    assert path.read_bytes() == b".abc...."
    door.write(path, 1, b"abcdef")
    assert path.read_bytes() == b".abcdef."


def test_counts(tmp_path):
    door = Door()
    before = door.counts()
    assert set(before.values()) == {0}
    door.write_file(tmp_path / "x", b"1")
    door.write(tmp_path / "x", 0, b"2")
    door.sync_dir(tmp_path)
    counts = {op: count for op, count in door.counts().items() if count}
    assert counts == {"create": 1, "truncate": 1, "write": 2, "sync": 1, "open": 1, "sync_dir": 1}


def test_only_a_recording_door_crashes(tmp_path):
    with pytest.raises(ValueError, match="record=True"):
        Door().crash(1)
    with pytest.raises(ValueError, match="probability"):
        Door(record=True).crash(1, keep=1.5)
    with pytest.raises(ValueError, match="only sync"):
        Door().lie("write", "")


def test_a_dead_process_changes_nothing(tmp_path: Path) -> None:
    door = Door(record=True)
    path = tmp_path / "file"
    door.write_file(path, b"before")
    door.kill()
    assert door.dead
    for call in (
        lambda: door.write_file(path, b"after"),
        lambda: door.write(path, 0, b"after"),
        lambda: door.rename(path, tmp_path / "other"),
        lambda: door.remove(path),
    ):
        with pytest.raises(OSError):
            call()
    assert path.read_bytes() == b"before"


def test_the_next_process_has_the_same_disk(tmp_path: Path) -> None:
    """The next process sees the writes of a killed one, but a power loss still discards unsynced writes."""
    first = Door(record=True)
    path = tmp_path / "file"
    first.write_file(path, b"synced")
    first.sync_dir(tmp_path)
    first.write(path, 0, b"SYNCED")
    first.kill()
    second = first.next_process()
    assert not second.dead
    assert path.read_bytes() == b"SYNCED"
    second.write(path, 0, b"S")
    second.crash(1, 0.0)
    assert path.read_bytes() == b"synced"


def test_a_process_dies_within_a_write(tmp_path: Path) -> None:
    door = Door(record=True)
    path = tmp_path / "file"
    door.write_file(path, b"......")
    door.kill_after(3, keep_bytes=2)
    door.write(path, 0, b"ab")  # an open and a write
    assert not door.dead
    with pytest.raises(OSError):
        door.write(path, 0, b"123456")
    assert door.dead
    assert path.read_bytes() == b"12...."


def test_a_sync_of_a_dead_process_was_never_asked_for(tmp_path: Path) -> None:
    """It dooms nothing: the next process syncs what the dead one wrote."""
    first = Door(record=True)
    path = tmp_path / "file"
    first.write_file(path, b"first.")
    first.sync_dir(tmp_path)
    first.write(path, 0, b"second")
    first.kill()
    with pytest.raises(OSError):
        first.sync(path)
    second = first.next_process()
    second.sync(path)
    second.crash(1, 0.0)
    assert path.read_bytes() == b"second"
