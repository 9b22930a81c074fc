"""The store's files over HTTP: what is served, up to which position, to which clients, and that no other client is
delayed."""

from __future__ import annotations

import asyncio
import json
import os
import socket
import threading
import urllib.request
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, closing
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from urllib.parse import quote

import aiohttp
import pytest
from aiohttp import web
from aiohttp.test_utils import TestClient, TestServer
from engine_lab import HOST, SYNC, message, opened, small, turns, until
from ledger_lab import open_ledger_of
from ledger_replica import LedgerReplica
from tally_process import TallyProcess
from yarl import URL

from tallystick.node.core.settings import HttpSettings
from tallystick.node.http import store_files_api
from tallystick.node.http.admin_api import AdminView
from tallystick.node.http.server import Probes, application
from tallystick.node.http.store_files_api import StoreFilesApi
from tallystick.store._kernel import Door
from tallystick.store.engine.message_store import MessageStore
from tallystick.store.formats.segment_files import segment_name

pytestmark = pytest.mark.process

LOG = "commitlog/" + segment_name(0)
LEDGER = "dledger-n0/data/"


class Node:
    """A store and its HTTP port. `store` None: it recovers."""

    def __init__(self, store: MessageStore | None, **options: Any) -> None:
        self.store = store
        owner = {"phase": "ready", "cluster": "lab", "group": "broker-a", "member": None}
        view = AdminView(self._broker, lambda: "starting: the store is being recovered, 25 %", lambda: owner)
        self.app = application(Probes(lambda: None, lambda: None, lambda form: iter(())), admin=view, **options)
        self.client = TestClient(TestServer(self.app))

    def _broker(self) -> Any:
        return (
            None
            if self.store is None
            else SimpleNamespace(store=self.store, group=None, audit=SimpleNamespace(record=lambda _: None))
        )

    async def show(self, under: str | None = None) -> dict[str, Any]:
        async with self.client.get("/store", params=None if under is None else {"under": under}) as answer:
            assert answer.status == 200, await answer.text()
            told: dict[str, Any] = await answer.json()
            return told

    async def read(self, path: str, wanted: str | None = None) -> tuple[int, bytes]:
        headers = {} if wanted is None else {"Range": f"bytes={wanted}"}
        async with self.client.get(URL(f"/store/files/{path}", encoded=True), headers=headers) as answer:
            return answer.status, await answer.read()

    async def raw(self, target: str) -> tuple[int, dict[str, Any]]:
        """A request whose target no client library has tidied up."""
        reader, writer = await asyncio.open_connection("127.0.0.1", self.client.port)
        writer.write(f"GET {target} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n".encode())
        head, _, body = (await reader.read()).partition(b"\r\n\r\n")
        writer.close()
        return int(head.split()[1]), json.loads(body)


@asynccontextmanager
async def served(store: MessageStore | None, **options: Any) -> AsyncIterator[Node]:
    node = Node(store, **options)
    async with node.client:
        yield node


@asynccontextmanager
async def member(root: Path) -> AsyncIterator[tuple[MessageStore, LedgerReplica]]:
    """A leader whose entries are committed when the test says so."""
    chosen = small(root, enableDLegerCommitLog=True, dLegerSelfId="n0", flushDiskType=SYNC)
    door = Door()
    replica = LedgerReplica(open_ledger_of(chosen, door))
    replica.on_failed = lambda error, final: None
    store = await MessageStore.open(chosen, store_host=HOST, door=door, replica=replica)
    try:
        store.group.take_lead(1)
        store.group.serve(True)
        yield store, replica
    finally:
        await store.close()


def derived(store: MessageStore) -> None:
    """Queues and index have all of the log, and their files do, too."""
    store.dispatcher.catch_up()
    store._dispatch.write_out()


# -- what is served ----------------------------------------------------------------------------------------------------


async def test_a_store_tells_what_it_has_and_gives_it(tmp_path: Path) -> None:
    async with opened(small(tmp_path)) as store, served(store) as node:
        for number in range(60):
            await store.writes.put(message(b"x" * 100, queue=number % 2, properties=f"KEYS\x01k{number}\x02"))
        derived(store)
        told = await node.show()
        files = {file["path"]: file["bytes"] for file in told.pop("files")}
        assert told == {
            "cluster": "lab",
            "group": "broker-a",
            "member": None,
            "layout": "plain",
            "logFolder": "commitlog",
            "begin": 0,
            "committed": store.readable_end,
            "segmentBytes": 4096,
            "closed": False,
            "tellsQueues": True,
        }
        last = store.readable_end - store.readable_end % 4096
        assert files == {f"commitlog/{segment_name(start)}": 4096 for start in range(0, last + 1, 4096)}
        assert last >= 4096
        for folder in ("consumequeue", "index"):
            for file in (await node.show(folder))["files"]:
                assert await node.read(file["path"]) == (200, (tmp_path / file["path"]).read_bytes())
        paths = [file["path"] for file in (await node.show("consumequeue/T/1"))["files"]]
        assert paths == [f"consumequeue/T/1/{segment_name(start)}" for start in (0, 320)]
        assert (await node.show("consumequeue/none"))["files"] == (await node.show("consumequeue_ext"))["files"] == []
        assert [file["path"] for file in (await node.show("abort"))["files"]] == ["abort"]
        assert await node.read("abort") == (200, b"")
        assert (await node.read("checkpoint"))[1] == (tmp_path / "checkpoint").read_bytes()


@pytest.mark.parametrize(
    ("wanted", "begin", "end"),
    [("0-0", 0, 1), ("7-99", 7, 100), ("4000-", 4000, 4096), ("0-4095", 0, 4096), ("-10", 4086, 4096)],
)
async def test_ranges_of_a_log_file_that_is_full(tmp_path: Path, wanted: str, begin: int, end: int) -> None:
    async with opened(small(tmp_path)) as store, served(store) as node:
        while store.readable_end < 5000:
            await store.writes.put(message(os.urandom(100)))
        whole = (tmp_path / LOG).read_bytes()
        assert await node.read(LOG) == (200, whole)
        async with node.client.get(f"/store/files/{LOG}", headers={"Range": f"bytes={wanted}"}) as answer:
            assert answer.status == 206
            assert answer.headers["Content-Range"] == f"bytes {begin}-{end - 1}/4096"
            assert await answer.read() == whole[begin:end]


@pytest.mark.parametrize(
    "wanted", ["", "-", "9-7", "4096-", "4096-4099", "-0", "1-2,5-6", "x-2", "1", "1-99999999999999999999"]
)
async def test_invalid_ranges(tmp_path: Path, wanted: str) -> None:
    async with opened(small(tmp_path)) as store, served(store) as node:
        while store.readable_end < 5000:
            await store.writes.put(message(b"x"))
        status, body = await node.read(LOG, wanted)
        assert status == 416, body
        assert json.loads(body)["bytes"] == 4096


async def test_a_range_of_a_derived_file_ends_with_it(tmp_path: Path) -> None:
    async with opened(small(tmp_path)) as store, served(store) as node:
        await store.writes.put(message(b"x"))
        derived(store)
        path = "consumequeue/T/0/" + segment_name(0)
        assert [len((await node.read(path, wanted))[1]) for wanted in ("300-999", "300-", "-20")] == [20, 20, 20]
        assert (await node.read(path, "320-"))[0] == 416


@pytest.mark.parametrize("topic", ["%RETRY%readers", "data", "commitlog"])
async def test_a_topic_whose_name_means_something_else_too(tmp_path: Path, topic: str) -> None:
    async with opened(small(tmp_path)) as store, served(store) as node:
        await store.writes.put(message(b"x", topic=topic))
        derived(store)
        (file,) = (await node.show(f"consumequeue/{topic}"))["files"]
        assert file["path"] == f"consumequeue/{topic}/0/" + segment_name(0)
        status, body = await node.read(quote(file["path"]))
        assert (status, len(body)) == (200, 320)


async def test_a_log_that_is_kept_elsewhere(tmp_path: Path) -> None:
    (tmp_path / "disk").mkdir()
    (tmp_path / "link").symlink_to("disk")  # the operator may name a link; what is in the store may be none
    async with opened(small(tmp_path / "store", storePathCommitLog=str(tmp_path / "link" / "log"))) as store:
        await store.writes.put(message(b"x"))
        async with served(store) as node:
            assert [file["path"] for file in (await node.show())["files"]] == [LOG]
            assert (await node.read(LOG, "0-50"))[1] == (tmp_path / "disk" / "log" / segment_name(0)).read_bytes()[:51]


# -- the bound ---------------------------------------------------------------------------------------------------------


async def test_what_is_not_committed_is_not_served(tmp_path: Path) -> None:
    """It is written and synced, and another leader may take it back."""
    async with member(tmp_path) as (store, replica), served(store) as node:
        puts = [asyncio.create_task(store.writes.put(message(b"m" * 150, queue=number % 2))) for number in range(60)]
        await until(lambda: replica.ledger.last_index >= 59 and replica.log.written > 8192)
        told = await node.show()
        assert (told["layout"], told["logFolder"], told["committed"]) == ("ledger", "dledger-n0/data", 0)
        assert told["files"] == []
        for committed in (0, 3, 17, 40, 59):
            replica.committed_index = committed
            bound = replica.ledger.end_of(committed)
            store.group.commit(bound)
            assert (await node.show())["committed"] == bound
            for start in range(0, replica.log.written, 4096):
                path = LEDGER + segment_name(start)
                there, below = (tmp_path / path).read_bytes(), min(4096, bound - start)
                status, body = await node.read(path, "0-")
                if below <= 0:
                    assert status == 416
                    assert (await node.read(path, "0-0"))[0] == (await node.read(path, "-1"))[0] == 416
                else:
                    assert (status, body) == (206, there[:below])
                    assert (await node.read(path, f"0-{below - 1}"))[1] == there[:below]
                    assert (await node.read(path, "-8"))[1] == there[below - 8 : below]
                if below < 4096:
                    for wanted in (f"{max(0, below - 1)}-{max(0, below)}", "0-4095", "4090-9999", None):
                        status, body = await node.read(path, wanted)
                        assert status == 416
                        assert json.loads(body)["committed"] == bound
                        assert str(bound) in json.loads(body)["error"]
            paths = [file["path"] for file in (await node.show())["files"]]
            assert paths == [LEDGER + segment_name(start) for start in range(0, bound, 4096)]
        assert (await node.read("dledger-n0/index/" + segment_name(0)))[0] == 200
        await asyncio.gather(*puts)


async def test_the_bound_is_not_passed_while_writes_go_on(tmp_path: Path) -> None:
    """Each answer ends at a bound that held between its request and its end, and holds what the file has there now."""
    async with opened(small(tmp_path, mappedFileSizeCommitLog=1 << 20)) as store, served(store) as node:

        async def write() -> None:
            for number in range(2000):
                await store.writes.put(message(os.urandom(number % 300)))

        writer, ends, log = asyncio.create_task(write()), set(), tmp_path / LOG
        await until(lambda: store.readable_end > 0)
        while not writer.done():
            before = store.readable_end
            status, body = await node.read(LOG, "0-")
            assert status == 206
            assert before <= len(body) <= store.readable_end
            assert body == log.read_bytes()[: len(body)]
            ends.add(len(body))
        await writer
        assert len(ends) > 3, "the log grew meanwhile"


# -- nothing else ------------------------------------------------------------------------------------------------------

ELSEWHERE = [
    "../secret",
    "consumequeue/../../secret",
    "consumequeue/T/0/../../../config/topics.json",
    "%2e%2e/secret",
    "consumequeue/%2e%2e/%2e%2e/secret",
    "consumequeue%2f..%2f..%2fsecret",
    "consumequeue/T/0/%2e%2e%2f%2e%2e%2f%2e%2e%2f%2e%2e%2fsecret",
    "./checkpoint",
    "/etc/passwd",
    "%2fetc%2fpasswd",
    "config/topics.json",
    "lock",
    "tally/x",
    "dledger-n0/member",
    "dledger-n0/votes/x",
    "dledger-n0/data/tally.json",
    "dledger-../data/00000000000000000000",
    "commitlog",
    "commitlog/",
    "commitlog/x",
    "commitlog/000000000000000000000",
    "commitlog/0000000000000000000%D9%A0",
    "consumequeue/T",
    "consumequeue/T/0/00000000000000000000/x",
    "consumequeue/link/0/00000000000000000000",
    "consumequeue/T/0/link",
    "consumequeue/T/0/pipe",
    "consumequeue/T/0/folder",
    "consumequeue/T/0/none",
    "consumequeue/T/0/%00",
    "consumequeue/T/0/" + "x" * 300,
    "index/%ff%fe",
    "",
]


@pytest.mark.parametrize("target", ELSEWHERE)
async def test_nothing_else_is_served(tmp_path: Path, target: str) -> None:
    root = tmp_path / "store"
    async with opened(small(root)) as store, served(store) as node:
        await store.writes.put(message(b"x"))
        derived(store)
        (tmp_path / "secret").write_text("secret")
        for name in ("config/topics.json", "tally/x", "dledger-n0/member", "dledger-n0/votes/x", "commitlog/x"):
            (root / name).parent.mkdir(parents=True, exist_ok=True)
            (root / name).write_text("secret")
        (root / "dledger-n0" / "data").mkdir()
        (root / "dledger-n0" / "data" / "tally.json").write_text("secret")
        (root / "consumequeue" / "link").symlink_to("T")
        queue = root / "consumequeue" / "T" / "0"
        (queue / "link").symlink_to(tmp_path / "secret")
        (queue / "folder").mkdir()
        os.mkfifo(queue / "pipe")
        status, told = await node.raw(f"/store/files/{target}")
        assert status == 404, told
        assert "secret" not in told.get("error", "").replace(target, "").replace("../secret", "")


@pytest.mark.parametrize(
    "under", ["..", "config", "consumequeue/..", "/commitlog", ".", "tally", "checkpoint/x", "dledger-n0/votes"]
)
async def test_no_other_folder_is_listed(tmp_path: Path, under: str) -> None:
    async with opened(small(tmp_path)) as store, served(store) as node:
        status, told = await node.raw(f"/store?under={under}")
        assert (status, "files" in told) == (404, False)


async def test_links_and_strange_names_are_not_listed(tmp_path: Path) -> None:
    async with opened(small(tmp_path)) as store, served(store) as node:
        await store.writes.put(message(b"x"))
        derived(store)
        (tmp_path / "consumequeue" / "link").symlink_to("T")
        (tmp_path / "consumequeue" / "T" / "0" / "link").symlink_to(segment_name(0))
        (tmp_path / "commitlog" / "strange").touch()
        assert len((await node.show("consumequeue"))["files"]) == 1
        assert [file["path"] for file in (await node.show())["files"]] == [LOG]


# -- who may -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("files", "answers"),
    [
        ("", {"": (200, 200), "admin": (200, 200), "reader": (200, 200)}),
        ("a", {"": (401, 401), "admin": (200, 200), "reader": (401, 401)}),
        ("r", {"": (401, 200), "admin": (401, 200), "reader": (200, 200)}),
        ("ar", {"": (401, 401), "admin": (200, 200), "reader": (200, 403), "other": (401, 401)}),
    ],
)
async def test_who_may_read(tmp_path: Path, files: str, answers: dict[str, tuple[int, int]]) -> None:
    """With a file of tokens for administration (a), for reading (r), both or none: (/store, /node)."""
    for name in ("admin", "reader"):
        (tmp_path / name).write_text(name)
    settings = HttpSettings(
        adminTokenFile=str(tmp_path / "admin") if "a" in files else "",
        readTokenFile=str(tmp_path / "reader") if "r" in files else "",
    )
    async with opened(small(tmp_path / "store")) as store, served(store, settings=settings) as node:
        await store.writes.put(message(b"x"))
        for token, (reads, administers) in answers.items():
            headers = {"Authorization": f"Bearer {token}"} if token else {}
            for path, expected in (("/store", reads), ("/store/files/checkpoint", reads), ("/node", administers)):
                async with node.client.get(path, headers=headers) as answer:
                    assert answer.status == expected, (token, path)
                    if expected >= 400:
                        assert set(await answer.json()) == {"error", "leader"}
            async with node.client.get("/healthz", headers=headers) as answer:
                assert answer.status == 200
            for path in ("/store/../node", "/store/files/../../node", "/storex"):
                status, _ = await node.raw(path)
                assert status in (401, 404), path


def test_the_process_takes_a_file_of_tokens_for_readers(tmp_path: Path) -> None:
    (tmp_path / "reader").write_text("reader")
    with TallyProcess(tmp_path, TALLY_READTOKENFILE=str(tmp_path / "reader")) as process:
        assert process.get("/store")[0] == 401
        assert process.get("/node")[0] == 200
        asked = urllib.request.Request(f"http://{process.places['http']}/store")
        asked.add_header("Authorization", "Bearer reader")
        with urllib.request.urlopen(asked, timeout=30) as answer:
            assert json.loads(answer.read())["committed"] == 0


async def test_a_store_that_recovers_says_so(tmp_path: Path) -> None:
    async with served(None) as node:
        for path in ("/store", f"/store/files/{LOG}"):
            assert (await node.raw(path))[0] == 503
            assert (await node.raw(path))[1]["error"] == "starting: the store is being recovered, 25 %"
        async with opened(small(tmp_path)) as store:
            node.store = store
            assert (await node.show())["committed"] == 0


async def test_only_reading_is_understood(tmp_path: Path) -> None:
    async with opened(small(tmp_path)) as store, served(store) as node:
        for method in ("PUT", "POST", "DELETE", "HEAD"):
            async with node.client.request(method, f"/store/files/{LOG}") as answer:
                assert answer.status == 405


# -- while it is read --------------------------------------------------------------------------------------------------

BIG = 8 << 20


@asynccontextmanager
async def big(root: Path) -> AsyncIterator[tuple[MessageStore, bytes]]:
    """A store whose first segment is full, and larger than what sockets hold."""
    async with opened(small(root, mappedFileSizeCommitLog=BIG)) as store:
        while store.readable_end < BIG:
            await store.writes.put(message(os.urandom(1 << 20)))
        yield store, (root / LOG).read_bytes()


async def test_a_file_that_expires_while_it_is_read_is_read_to_its_end(tmp_path: Path) -> None:
    async with big(tmp_path) as (store, whole), served(store) as node:
        async with node.client.get(f"/store/files/{LOG}") as answer:
            first = await answer.content.readexactly(100)
            (tmp_path / LOG).unlink()
            assert first + await answer.read() == whole
        assert (await node.read(LOG))[0] == 404
        assert segment_name(0) not in {file["path"][-20:] for file in (await node.show())["files"]}


async def test_a_body_that_cannot_be_completed_is_no_whole_one(tmp_path: Path) -> None:
    async with big(tmp_path) as (store, _), served(store) as node:
        with pytest.raises(aiohttp.ClientPayloadError):
            async with node.client.get(f"/store/files/{LOG}") as answer:
                await answer.content.readexactly(100)
                os.truncate(tmp_path / LOG, BIG - 1)
                await answer.read()
        assert (await node.read("checkpoint"))[0] == 200, "the place is free again"


class Stalled:
    """A reader that asks for the whole file and takes nothing of it."""

    def __init__(self, port: int) -> None:
        self._socket = socket.create_connection(("127.0.0.1", port))
        self._socket.sendall(f"GET /store/files/{LOG} HTTP/1.1\r\nHost: x\r\n\r\n".encode())

    def close(self) -> None:
        self._socket.close()


async def api_of(store: MessageStore, **limits: int) -> tuple[StoreFilesApi, web.Application]:
    app = web.Application()
    view = AdminView(lambda: SimpleNamespace(store=store), str, dict)  # type: ignore[arg-type,return-value]
    api = StoreFilesApi(view, **limits)
    api.add_to(app)
    return api, app


async def test_two_bodies_are_sent_at_a_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with big(tmp_path) as (store, whole):
        api, app = await api_of(store)
        seen = []
        read = os.pread

        def noted(*arguments: int) -> bytes:
            seen.append(len(api._sending))
            return read(*arguments)

        monkeypatch.setattr(os, "pread", noted)
        async with TestClient(TestServer(app)) as client:

            async def one() -> bool:
                async with client.get(f"/store/files/{LOG}") as answer:
                    return await answer.read() == whole

            assert all(await asyncio.gather(*(one() for _ in range(8))))
        assert max(seen) == 2


async def test_no_more_wait_than_may(tmp_path: Path) -> None:
    async with big(tmp_path) as (store, _):
        api, app = await api_of(store, readers=1, most_waiting=1)
        async with TestClient(TestServer(app)) as client:
            assert client.port is not None
            with closing(Stalled(client.port)):
                await until(lambda: api._sending)
                waiting = asyncio.create_task(client.get("/store"))
                await until(lambda: api._waiting == 1)
                async with client.get("/store") as answer:
                    assert answer.status == 503
                    assert "waiting already" in (await answer.json())["error"]
            async with await waiting as answer:
                assert answer.status == 200, "a closed request makes room"


async def test_a_reader_that_takes_nothing_is_given_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store_files_api, "STALLED_S", 0.05)
    async with big(tmp_path) as (store, _), served(store) as node:
        assert node.client.port is not None
        with closing(Stalled(node.client.port)), closing(Stalled(node.client.port)):
            await turns()
            assert (await node.read("checkpoint"))[0] == 200


async def test_a_slow_disk_does_not_delay_other_requests(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """While both threads wait for the disk, messages are stored and probes answered."""
    async with big(tmp_path) as (store, whole), served(store) as node:
        disk, read, waiting = threading.Event(), os.pread, threading.Semaphore(0)

        def slow(*arguments: int) -> bytes:
            waiting.release()
            disk.wait()
            return read(*arguments)

        monkeypatch.setattr(os, "pread", slow)
        readers = [asyncio.create_task(node.read(LOG)) for _ in range(4)]
        try:
            for _ in range(2):
                await asyncio.to_thread(waiting.acquire)
            for _ in range(10):
                assert (await store.writes.put(message(b"x"))).status.stored
                async with node.client.get("/healthz") as answer:
                    assert answer.status == 200
            assert not any(reader.done() for reader in readers)
        finally:
            disk.set()
        assert await asyncio.gather(*readers) == [(200, whole)] * 4


async def test_the_port_closes_during_a_read(tmp_path: Path) -> None:
    async with big(tmp_path) as (store, _):
        api, app = await api_of(store, readers=1)
        runner = web.AppRunner(app, shutdown_timeout=1000)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        port = runner.addresses[0][1]
        with closing(Stalled(port)), closing(Stalled(port)):
            await until(lambda: api._sending and api._waiting)
            async with asyncio.timeout(30):
                await runner.cleanup()
