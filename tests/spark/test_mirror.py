"""A store that is read over HTTP is the store that is read where it lies, and only what is looked at crosses."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from store_server import serving

from tallystick.spark.access import TOKEN_FILE_VARIABLE
from tallystick.spark.cluster import place as placing
from tallystick.spark.cluster.place import NODE_VARIABLE, PlacedRunner, SourceError
from tallystick.spark.cluster.plan import Place
from tallystick.spark.cluster.progress import Progress
from tallystick.spark.jobs import audit, stats, trace
from tallystick.spark.mirror import BLOCK_BYTES, Mirror
from tallystick.spark.options import ReadOptions, StorePath
from tallystick.spark.places import relocated
from tallystick.spark.presence import bringing
from tallystick.spark.runner import inline
from tallystick.spark.scan import EXPIRED, SplitScan, has_expired
from tallystick.spark.splits import plan
from tallystick.spark.store_client import StoreClient, StoreClientError
from tallystick.spark.volume import open_volume

Golden = Callable[[str], Path]


def options_of(*places: Place, **given: str) -> ReadOptions:
    options = ReadOptions.parse({"path": "x"} | given)
    return replace(options, paths=tuple(StorePath(each.root, each.node, each.group, each.http) for each in places))


def placed(*places: Place, members: bool = False) -> PlacedRunner:
    """A runner as on a host that has only the volume that the environment names."""
    names = {each.node if members else each.group: each for each in places}
    return PlacedRunner(names, lambda host_of: inline, Progress(1))


@pytest.mark.parametrize("name", ["clean", "killed", "edge", "cqext", "trimmed", "dledger-n1", "flipped-body"])
def test_jobs_see_the_same_over_http(golden: Golden, name: str) -> None:
    root = golden(name)
    bound = open_volume(root).bound
    with serving(root, bound) as server:
        here = Place("n-0", "n", 0, str(root), "host", server.address)
        runner = placed(here)
        for run in (stats.run, lambda options, by: trace.run(options, by, "no-such-key")):
            options = options_of(here, splitBytes="70000")
            assert run(options, runner) == run(options, inline)
        audited = placed(here, members=True)
        assert audit.run(options, audited) == audit.run(options, inline)
    assert runner.book.via("n-0") == audited.book.via("n-0") == "http"


def test_differences_are_named_by_the_stores_own_paths(golden: Golden) -> None:
    root = golden("clean")
    path = sorted(root.glob("consumequeue/GoldA/0/*"))[0]
    data = bytearray(path.read_bytes())
    data[60 + 7] ^= 1
    path.write_bytes(data)
    with serving(root, open_volume(root).bound) as server:
        here = Place("n-0", "n", 0, str(root), None, server.address)
        (difference,) = audit.run(options_of(here), placed(here, members=True))["differences"]
    assert (difference["file"], difference["offset"]) == (str(path), 60)


def test_only_bytes_that_are_read_are_transferred(golden: Golden) -> None:
    root = golden("clean")
    volume = open_volume(root)
    split = plan(volume, split_bytes=100_000)[3]
    with serving(root, volume.bound) as server:
        here = Place("n-0", "n", 0, str(root), None, server.address)
        (found,) = placed(here)(stats.sums_of, [replace(split, source="n")])
        assert found.records > 0
        read = [(path, begin, end) for path, begin, end in server.read]
    low, high = split.begin - split.file_start, split.end - split.file_start
    assert {path for path, _, _ in read} == {Path(split.path).relative_to(root).as_posix()}
    assert min(begin for _, begin, _ in read) >= low - BLOCK_BYTES
    assert max(end for _, _, end in read) <= high + BLOCK_BYTES


def test_nothing_behind_the_bound_is_asked_for(golden: Golden) -> None:
    root = golden("dledger-n0")
    bound = plan(open_volume(root), split_bytes=100_000)[1].end
    with serving(root, bound) as server:
        here = Place("n-0", "n", 0, str(root), None, server.address)
        summary = stats.run(options_of(here, splitBytes="50000"), placed(here))
    assert summary["sources"][0]["bound"] == bound and summary["messages"] > 0, "and nothing was refused"


def test_a_volume_that_is_here_is_read_here(golden: Golden, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also if another volume is mounted at the same path on the host: it goes by the node."""
    root = golden("clean")
    with serving(root, open_volume(root).bound) as server:
        here = Place("n-0", "n", 0, str(root), "host", server.address)
        monkeypatch.setenv(NODE_VARIABLE, "n-0")
        runner = placed(here)
        stats.run(options_of(here), runner)
        assert runner.book.via("n-0") == "local" and server.read == []
        monkeypatch.setenv(NODE_VARIABLE, "n-1")
        stats.run(options_of(here), runner)
        assert runner.book.via("n-0") == "mixed" and server.read
        assert {(each["via"], each["node"]) for each in runner.book.to_json()} == {("local", "n-0"), ("http", "n-0")}


def test_a_mirror_leaves_nothing_and_gives_space_back(golden: Golden, tmp_path: Path) -> None:
    root = golden("clean")
    volume = open_volume(root)
    parent = tmp_path / "mirrors"
    parent.mkdir()
    with serving(root, volume.bound) as server, Mirror(StoreClient(server.address), parent) as mirror:
        path = mirror.root / Path(volume.files[0].path).relative_to(root)
        length = path.stat().st_size
        assert length == Path(volume.files[0].path).stat().st_size and path.stat().st_blocks == 0
        mirror.bring(path, 0, 4 * BLOCK_BYTES)
        assert path.read_bytes()[: 4 * BLOCK_BYTES] == Path(volume.files[0].path).read_bytes()[: 4 * BLOCK_BYTES]
        crossed = mirror.fetched_bytes
        mirror.bring(path, 100, 3 * BLOCK_BYTES)
        assert mirror.fetched_bytes == crossed == min(length, 4 * BLOCK_BYTES), "what is there is not fetched again"
        held = path.stat().st_blocks
        mirror.release(path, 0, 2 * BLOCK_BYTES)
        assert path.stat().st_size == length and path.stat().st_blocks < held
        mirror.bring(path, 0, 10)
        assert path.read_bytes()[:10] == Path(volume.files[0].path).read_bytes()[:10]
    assert list(parent.iterdir()) == []


def test_a_file_that_expires_is_removed_here_too(golden: Golden, tmp_path: Path) -> None:
    root = golden("clean")
    volume = open_volume(root)
    splits = plan(volume)
    with serving(root, volume.bound) as server, Mirror(StoreClient(server.address), tmp_path) as mirror:
        for split in splits[:2]:
            Path(split.path).unlink()
        scan = SplitScan(relocated(splits[1], str(root), str(mirror.root)), ["topic"])
        with bringing(mirror):
            assert list(scan) == [] and [each.reason for each in scan.damage] == [EXPIRED]
        assert has_expired(scan.split)
        assert not Path(relocated(splits[0].path, str(root), str(mirror.root))).exists()


def test_a_broker_that_stumbles_is_asked_again(golden: Golden, tmp_path: Path) -> None:
    root = golden("clean")
    volume = open_volume(root)
    path = Path(volume.files[0].path)
    with serving(root, volume.bound) as server, StoreClient(server.address, patience_s=5) as client:
        server.failing, server.breaking = 2, 2
        size = path.stat().st_size
        assert b"".join(client.read(path.relative_to(root).as_posix(), 3, size)) == path.read_bytes()[3:]
        assert server.read[-1][1] > 3, "only what was missing came again"
        with pytest.raises(FileNotFoundError):
            list(client.read("commitlog/none", 0, 1))
    with StoreClient(server.address, patience_s=0) as client, pytest.raises(StoreClientError) as raised:
        client.store()
    assert raised.value.status is None


def test_the_token_is_the_files_of_now(golden: Golden, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    token = tmp_path / "token"
    monkeypatch.setenv(TOKEN_FILE_VARIABLE, str(token))
    with serving(golden("clean"), 1000) as server, StoreClient(server.address) as client:
        assert client.store().committed == 1000, "a file that is not there is no token"
        server.token = "first"
        token.write_text("first\n")
        assert client.store().committed == 1000
        server.token = "second"
        with pytest.raises(StoreClientError, match="401"):
            client.store()
        token.write_text("second\n")
        assert client.store().committed == 1000


def test_a_bound_that_the_files_have_is_taken_when_the_broker_does_not_answer(
    golden: Golden, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = golden("dledger-n0")
    monkeypatch.setenv(NODE_VARIABLE, "n-0")
    monkeypatch.setattr("tallystick.spark.planning._PATIENCE_S", 0.0)
    monkeypatch.setattr(placing, "reached", None)
    gone = Place("n-0", "n", 0, str(root), "host", "http://127.0.0.1:9")
    assert stats.run(options_of(gone), placed(gone))["sources"][0]["bound"] == open_volume(root).bound


def test_an_unreadable_store_is_reported_with_its_node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(NODE_VARIABLE, "n-0")
    here = Place("n-0", "n", 0, str(tmp_path), "host", "http://127.0.0.1:9")
    monkeypatch.setattr("tallystick.spark.planning._PATIENCE_S", 0.0)
    with pytest.raises(SourceError, match=r"n-0: .* is not a store"):
        stats.run(options_of(here), placed(here))


def test_replicas_of_two_groups_are_compared_within_each(golden: Golden, tmp_path: Path) -> None:
    """One member of the second group has another byte; where its log ends, the first group's continues."""
    members: Sequence[tuple[str, str, str]] = [
        ("a", "a-0", "dledger-n0"),
        ("a", "a-1", "dledger-n1"),
        ("b", "b-0", "dledger-n2"),
        ("b", "b-1", "dledger-n2"),
        ("b", "b-2", "dledger-n2"),
    ]
    roots = {}
    for _, node, name in members:
        roots[node] = tmp_path / node
        shutil.copytree(golden(name), roots[node])
    log = min(roots["b-1"].glob("dledger-*/data/*"))
    data = bytearray(log.read_bytes())
    data[48 + 100] ^= 1  # a property: no CRC has it
    log.write_bytes(data)
    path = ",".join(f"{group}/{node}={roots[node]}" for group, node, _ in members)
    summary = audit.run(ReadOptions.parse({"path": path}), inline)
    assert [(each["group"], each["members"]) for each in summary["replicas_compared"]] == [("a", 2), ("b", 3)]
    replicas = [each for each in summary["differences"] if each["what"] == "replicas"]
    assert [(each["source"], each["offset"]) for each in replicas] == [("b-1", 48 + 100)]
    assert [each["group"] for each in summary["sources"]] == ["a", "a", "b", "b", "b"]
