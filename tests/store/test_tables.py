"""JSON tables: RocketMQ's files come out as the same bytes but for a CRC, and at every moment one whole table can be
loaded."""

import json
import re

import pytest

from tallystick.store import fastjson
from tallystick.store._kernel import Door
from tallystick.store.tables import DamagedTableError, DataVersion, JsonTable, TableError, decode, encode


@pytest.mark.parametrize("name", ["clean", "killed", "cqext", "trimmed", "edge"])
def test_golden_tables_are_read_and_written_the_same(golden, name):
    """The same lines: entries of Java's hash maps come in another order, and so do the commas."""
    config = golden(name) / "config"
    files = sorted(config.glob("*.json"))
    for file in files:
        before = file.read_bytes()
        table = JsonTable(Door(), file)
        content = table.load()
        assert content
        table.save(content)
        text = file.read_bytes()
        assert re.match(rb'{\n\t"crc32":[0-9]+,\n', text)
        assert _lines(text) == _lines(before.replace(b"{", text.partition(b",")[0], 1))
        assert JsonTable(Door(), file).load() == content
        assert file.with_name(file.name + ".bak").read_bytes() == before
    assert files or name in ("edge", "trimmed")


def _lines(text):
    # Java's arrays (bitPos) stand on one line, lists do not; a reader cannot tell which it was.
    text = re.sub(rb"\[[^]]*]", lambda match: re.sub(rb"\s", b"", match[0]), text)
    return sorted(line.rstrip(b",") for line in text.split(b"\n"))


def test_nothing_yet(tmp_path):
    assert JsonTable(Door(), tmp_path / "config" / "topics.json").load() is None


def test_the_one_before_is_kept(tmp_path):
    table = JsonTable(Door(), tmp_path / "config" / "topics.json")
    for number in range(3):
        table.save({"table": {number: "x"}})
    assert sorted(file.name for file in table.path.parent.iterdir()) == ["topics.json", "topics.json.bak"]
    assert table.load() == {"table": {2: "x"}}
    table.path.unlink()
    assert JsonTable(Door(), table.path).load() == {"table": {1: "x"}}


def test_every_changed_bit_of_a_table_is_found(tmp_path):
    content = {"dataVersion": {"counter": 3}, "offsetTable": {"T@g": {0: 15, 1: 8}}, "topics": {"T0": {"perm": 6}}}
    data = encode(content)
    found = 0
    for bit in range(8 * len(data)):
        changed = bytearray(data)
        changed[bit // 8] ^= 1 << bit % 8
        try:
            read = decode(bytes(changed))
        except DamagedTableError:
            found += 1
        else:
            assert read.items() >= content.items(), "the bit was in the name of the CRC's field"
    assert found >= 8 * (len(data) - len('{\n\t"crc32":'))
    assert decode(data) == content


def test_blocks_that_changed_within_valid_json_are_found():
    """RocketMQ's form has no CRC. Zeros within two strings join them, and what was between them is lost."""
    rows = {f"T{number}": {"topicName": f"T{number}", "perm": 6} for number in range(200)}
    data = encode({"table": rows})
    swapped = data[:1024] + data[1536:2048] + data[1024:1536] + data[2048:]
    for changed in (swapped, data.replace(b'"T7"', b'"T8"')):
        with pytest.raises(DamagedTableError, match=r"CRC .* remove the field"):
            decode(changed)
    without = fastjson.dumps({"table": rows}, pretty=True)
    assert decode(without) == {"table": rows}, "as RocketMQ writes it"
    begin, end = without.index(b'opicName":"T3"'), without.index(b'Name":"T9"')
    with pytest.raises(DamagedTableError, match=f"a control character at byte {begin}"):
        decode(without[:begin] + bytes(end - begin) + without[end:])


def test_a_file_that_rocketmq_has_rewritten_is_accepted(tmp_path):
    path = tmp_path / "topics.json"
    JsonTable(Door(), path).save({"a": 1})
    path.write_bytes(b'{\n\t"b":2\n}')
    assert JsonTable(Door(), path).load() == {"b": 2}


@pytest.mark.parametrize("damage", [b"", b'{"a":', b"[]", b"\0" * 40])
def test_a_damaged_table_gives_way_to_its_backup_and_does_not_replace_it(tmp_path, damage):
    door = Door()
    path = tmp_path / "topics.json"
    JsonTable(door, path).save({"a": 1})
    JsonTable(door, path).save({"a": 2})
    path.write_bytes(damage)
    table = JsonTable(door, path)
    assert table.load() == {"a": 1}
    door.fail("rename", ".tmp", 28)
    with pytest.raises(OSError):
        table.save({"a": 3})
    assert JsonTable(door, path).load() == {"a": 1}
    door.heal()
    table.save({"a": 3})
    assert JsonTable(door, path).load() == {"a": 3}


def test_if_both_are_unreadable_the_error_names_both(tmp_path):
    path = tmp_path / "topics.json"
    path.write_bytes(b"{")
    path.with_name("topics.json.bak").write_bytes(b"nonsense")
    with pytest.raises(TableError, match=r"topics\.json: .*topics\.json\.bak: ") as caught:
        JsonTable(Door(), path).load()
    assert caught.value.path == path


@pytest.mark.parametrize("op", ["write", "sync", "rename", "sync_dir", "create", "mkdir"])
@pytest.mark.parametrize("after", range(3))
def test_a_failing_disk_leaves_a_table_to_load(tmp_path, op, after):
    door = Door(record=True)
    table = JsonTable(door, tmp_path / "t.json")
    table.save({"a": 1})
    table.save({"a": 2})
    door.fail(op, "", 5, after=after)
    with pytest.raises(OSError) as caught:
        for number in range(3, 7):
            table.save({"a": number})
    assert caught.value.errno == 5
    assert str(tmp_path) in caught.value.filename
    door.heal()
    last = {"a": int(number)}
    assert JsonTable(door, table.path).load() in (last, {"a": number - 1})
    table.save({"a": 9})
    assert JsonTable(door, table.path).load() == {"a": 9}


@pytest.mark.parametrize("seed", range(100))
def test_power_loss(tmp_path, seed):
    """A save that returned is there; one that did not may be; what is loaded is always whole."""
    door = Door(record=True)
    table = JsonTable(door, tmp_path / "t.json")
    door.sync_dir(tmp_path)
    for number in range(1, 4):
        table.save({"a": number, "long": "x" * 2000})
    if seed % 2:
        door.fail(("sync_dir", "rename", "sync")[seed % 3], "", 5, after=seed % 2)
        with pytest.raises(OSError):
            table.save({"a": 4, "long": "x" * 2000})
            table.save({"a": 5, "long": "x" * 2000})
    door.crash(seed)
    loaded = JsonTable(door, table.path).load()
    assert loaded is not None
    assert loaded["long"] == "x" * 2000
    assert loaded["a"] in ((3, 4, 5) if seed % 2 else (3,))


def test_a_sync_left_out_would_be_seen(tmp_path):
    """The plant: with a disk that only says it synced, some crash leaves no whole table."""
    seen = 0
    for seed in range(50):
        door = Door(record=True)
        path = tmp_path / str(seed) / "t.json"
        table = JsonTable(door, path)
        door.lie("sync", ".tmp")
        for number in range(3):
            table.save({"a": number, "long": "x" * 2000})
        door.crash(seed, keep=0.5)
        try:
            seen += JsonTable(door, path).load() != {"a": 2, "long": "x" * 2000}
        except TableError:
            seen += 1
    assert seen > 5


def test_versions():
    version = DataVersion().next(5).next(7)
    assert version == DataVersion(2, 7)
    assert DataVersion.from_json(json.loads(json.dumps(version.to_json()))) == version
    assert DataVersion.from_json({"counter": "x", "timestamp": 3, "stateVersion": 1}) == DataVersion(0, 3)
    assert DataVersion.from_json(None) == DataVersion()
