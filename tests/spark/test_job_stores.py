"""The place `job:`: which member of a group is asked, when a mounted volume takes its place, and what is reported."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from store_server import StoreServer, serving

from tallystick.spark import job_stores, places
from tallystick.spark.cluster.plan import Place
from tallystick.spark.cluster.progress import READS_PATH, Progress, served
from tallystick.spark.cluster.reads import Reads, with_reads
from tallystick.spark.job_stores import MountedVolume, report_read, signature
from tallystick.spark.options import OptionError, ReadOptions
from tallystick.spark.places import PlaceError, reached
from tallystick.spark.splits import Split, plan
from tallystick.spark.store_client import StoreClientError
from tallystick.spark.volume import Source, open_volume

Golden = Callable[[str], Path]
NOBODY = "http://127.0.0.1:9"


@pytest.fixture
def members(golden: Golden) -> Iterator[list[StoreServer]]:
    """Three members of a group, which have the same log."""
    with ExitStack() as stack:
        roots = [golden(f"dledger-n{number}") for number in range(3)]
        yield [stack.enter_context(serving(root, open_volume(root).bound)) for root in roots]


def stores(monkeypatch: pytest.MonkeyPatch, addresses: Sequence[str]) -> None:
    monkeypatch.setenv(job_stores.STORES_VARIABLE, json.dumps({"c-0": list(addresses)}))
    monkeypatch.setattr("tallystick.spark.store_client.PATIENCE_S", 0.0)
    monkeypatch.setattr(places.StoreClient.__init__, "__kwdefaults__", {"patience_s": 0.0})


def test_the_first_member_that_answers_is_planned_with(
    members: list[StoreServer], monkeypatch: pytest.MonkeyPatch
) -> None:
    stores(monkeypatch, [NOBODY, members[1].address, members[0].address])
    (source,) = ReadOptions.parse({}).sources()
    assert (source.source, source.group, source.http) == ("c-0", "c-0", members[1].address)
    stores(monkeypatch, [NOBODY, NOBODY])
    with pytest.raises(StoreClientError):
        ReadOptions.parse({}).sources()


def test_elsewhere_a_path_is_required(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(job_stores.STORES_VARIABLE, raising=False)
    with pytest.raises(OptionError, match="name a store"):
        ReadOptions.parse({})
    with pytest.raises(OptionError, match="does not run in one: name a path"):
        ReadOptions.parse({"path": "job:"}).sources()
    with pytest.raises(PlaceError):
        places.stores_at("job:", ReadOptions.parse({"path": "x"}).access)


# -- the mounted volume ------------------------------------------------------------------------------------------------


def volume_of(members: list[StoreServer], number: int) -> MountedVolume:
    own = members[number]
    return MountedVolume(f"c-0-{number}", str(own.root), own.address, tuple(each.address for each in members))


def read_of(members: list[StoreServer]) -> tuple[Source, list[Split], dict[str, tuple[int, int]]]:
    """What a task gets that reads the whole log, as it was planned with the first member."""
    root = places.address_of(members[0].address)
    source = Source("c-0", root, "c-0", members[0].address)
    splits = [places.relocated(each, str(members[0].root), root) for each in plan(open_volume(members[0].root))]
    files = {each.path: (each.file_end - each.file_start, each.end - each.file_start) for each in splits}
    return source, splits, files


def seen(members: list[StoreServer]) -> tuple[str, list[bytes]]:
    source, splits, files = read_of(members)
    with reached(source, files) as store:
        found = []
        for split in splits:
            here = store.to_here(split)
            assert store.from_here(here) == split, "damage is named as everyone knows it"
            if store.via == "local":
                found.append(Path(here.path).read_bytes()[: split.end - split.file_start])
        return store.via, found


def test_any_member_has_the_log(members: list[StoreServer], monkeypatch: pytest.MonkeyPatch) -> None:
    contents = []
    for number in range(3):
        monkeypatch.setenv(job_stores.VOLUME_VARIABLE, volume_of(members, number).to_json())
        via, content = seen(members)
        assert via == "local"
        contents.append(content)
    assert contents[0] == contents[1] == contents[2] and contents[0][0]
    assert not members[0].read, "nothing was fetched"


def _lags(members: list[StoreServer], monkeypatch: pytest.MonkeyPatch) -> None:
    members[1].committed = members[0].committed - 1


def _is_asked_in_vain(members: list[StoreServer], monkeypatch: pytest.MonkeyPatch) -> None:
    members[1].token = "another"


def _has_lost_a_file(members: list[StoreServer], monkeypatch: pytest.MonkeyPatch) -> None:
    min(members[1].root.glob("dledger-*/data/*")).unlink()


def _has_a_shorter_file(members: list[StoreServer], monkeypatch: pytest.MonkeyPatch) -> None:
    with min(members[1].root.glob("dledger-*/data/*")).open("r+b") as file:
        file.truncate(10)


def _has_another_log(members: list[StoreServer], monkeypatch: pytest.MonkeyPatch) -> None:
    (members[1].root / "dledger-n7" / "data").mkdir(parents=True)


def _is_of_another_group(members: list[StoreServer], monkeypatch: pytest.MonkeyPatch) -> None:
    stranger = MountedVolume("c-1-0", str(members[1].root), members[1].address, (members[1].address,))
    monkeypatch.setenv(job_stores.VOLUME_VARIABLE, stranger.to_json())


def _is_not_mounted(members: list[StoreServer], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(job_stores.VOLUME_VARIABLE)


@pytest.mark.parametrize(
    "change",
    [
        *(_lags, _is_asked_in_vain, _has_lost_a_file, _has_a_shorter_file, _has_another_log),
        *(_is_of_another_group, _is_not_mounted),
    ],
)
def test_otherwise_the_planned_member_is_read(
    members: list[StoreServer],
    monkeypatch: pytest.MonkeyPatch,
    change: Callable[[list[StoreServer], pytest.MonkeyPatch], None],
) -> None:
    monkeypatch.setenv(job_stores.VOLUME_VARIABLE, volume_of(members, 1).to_json())
    assert seen(members)[0] == "local"
    change(members, monkeypatch)
    assert seen(members)[0] == "http"


# -- reports -----------------------------------------------------------------------------------------------------------


def reads() -> Reads:
    found = [Place(f"c-0-{n}", "c-0", n, "/x", None, f"http://c-0-{n}:8080") for n in range(3)]
    return Reads(found, "the secret")


def test_tasks_tell_the_driver_what_they_read(monkeypatch: pytest.MonkeyPatch) -> None:
    found = reads()
    with served(Progress(1), 0, found.add) as port:
        monkeypatch.setenv(job_stores.READS_VARIABLE, f"http://127.0.0.1:{port}{READS_PATH}")
        monkeypatch.setenv(job_stores.SECRET_VARIABLE, "the secret")
        report_read("http://c-0-1:8080", "local", 3, 100)
        report_read("http://c-0-1:8080", "http", 4, 10)
        report_read("http://c-0-2:8080", "http", 5, 1)
        report_read("http://c-0-9:8080", "http", 5, 1)
        monkeypatch.setenv(job_stores.SECRET_VARIABLE, "another")
        report_read("http://c-0-2:8080", "local", 5, 1)
    report_read("http://c-0-2:8080", "local", 5, 1)
    assert [found.via(f"c-0-{n}") for n in range(3)] == [None, "mixed", "http"]
    summary = with_reads({"figures": {"records": 9, "late": 1}}, found)
    assert summary["sources"] == [{"source": "c-0-1", "records": 7}, {"source": "c-0-2", "records": 5}]
    assert summary["figures"] == {"records": 9, "bytes": 111, "late": 1}, "the program's own have priority"


@pytest.mark.parametrize("change", [{"via": "air"}, {"store": "http://c-0-9:8080"}])
def test_reports_of_unknown_things_are_not_taken(change: dict[str, Any]) -> None:
    body = json.dumps({"store": "http://c-0-1:8080", "via": "local", "records": 1, "bytes": 1} | change).encode()
    found = reads()
    assert found.add(body, signature("the secret", body)) is False and found.sources() == []
