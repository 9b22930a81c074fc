"""Backups in an S3-compatible store: with a server from a package, and with one that fails in all ways."""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit
from xml.sax.saxutils import escape

import pytest
from backup_lab import KEY, NAME, back_up, fill, log_bytes, restore
from s3_lab import S3Lab
from tally_process import environment, tally

from tallystick.node.backup import catalog, s3
from tallystick.node.backup.errors import BackupError, DamagedBackupError, MissingObjectError, PlaceError
from tallystick.node.backup.manifest import ids_of
from tallystick.node.backup.places import open_place
from tallystick.node.backup.s3 import S3Place, s3_settings
from tallystick.node.backup.seals import KeySeal, Seal
from tallystick.store.verify.report import verify

SECRET = "not-for-anybodys-eyes"


class FaultyS3(ThreadingHTTPServer):
    """Objects in memory. `fault(method, key)` returns what to do wrong for a request; None: nothing."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.objects: dict[str, bytes] = {}
        self.requests: list[tuple[str, str]] = []
        self.fault: Any = lambda method, key: None
        threading.Thread(target=self.serve_forever, daemon=True).start()

    @property
    def endpoint(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"


class _Handler(BaseHTTPRequestHandler):
    server: FaultyS3
    protocol_version = "HTTP/1.1"

    def log_message(self, *_: Any) -> None:
        return

    def _key(self) -> str:
        return unquote(urlsplit(self.path).path).removeprefix("/bucket").lstrip("/")

    def _answer(self, status: int, body: bytes = b"", length: int | None = None) -> None:
        self.send_response(status)
        self.send_header("Content-Length", str(len(body) if length is None else length))
        self.send_header("ETag", f'"{hashlib.md5(body).hexdigest()}"')
        self.send_header("Last-Modified", "Wed, 25 Nov 2026 00:00:00 GMT")
        self.end_headers()
        self.wfile.write(body)

    def _failed(self, key: str) -> bool:
        self.server.requests.append((self.command, key))
        fault = self.server.fault(self.command, key)
        match fault:
            case int():
                self._answer(fault, b"<Error><Code>InternalError</Code><Message>the test</Message></Error>")
            case "cut":
                self.close_connection = True
                self.connection.close()
            case "short":
                data = self.server.objects[key]
                self._answer(200, data[: len(data) // 2], len(data))
                self.close_connection = True
        return isinstance(fault, int) or fault in ("cut", "short")

    def do_PUT(self) -> None:
        data = self.rfile.read(int(self.headers["Content-Length"]))
        if self._failed(self._key()):
            return
        if self.server.fault("STORE", self._key()) == "flip":
            data = data[:-1] + bytes([data[-1] ^ 1])
        self.server.objects[self._key()] = data
        self._answer(200)

    def do_GET(self) -> None:
        query = parse_qs(urlsplit(self.path).query)
        if self._failed(query.get("prefix", [""])[0] if "list-type" in query else self._key()):
            return
        if "list-type" in query:
            prefix = query.get("prefix", [""])[0]
            rows = "".join(
                f"<Contents><Key>{escape(key)}</Key><Size>{len(data)}</Size><ETag>x</ETag>"
                "<LastModified>2026-11-25T00:00:00.000Z</LastModified></Contents>"
                for key, data in sorted(self.server.objects.items())
                if key.startswith(prefix)
            )
            text = f"<ListBucketResult><IsTruncated>false</IsTruncated>{rows}</ListBucketResult>"
            self._answer(200, text.encode())
        elif self._key() in self.server.objects:
            self._answer(200, self.server.objects[self._key()])
        else:
            self._answer(404, b"<Error><Code>NoSuchKey</Code></Error>")

    def do_DELETE(self) -> None:
        if not self._failed(self._key()):
            self.server.objects.pop(self._key(), None)
            self._answer(204)

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers.get("Content-Length", 0)))
        self._answer(501)


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[FaultyS3]:
    for name in ("AWS_ENDPOINT_URL", "AWS_REGION", "AWS_DEFAULT_REGION"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(s3, "RETRY_S", 3.0)
    monkeypatch.setattr(s3, "FIRST_PAUSE_S", 0.005)
    found = FaultyS3()
    yield found
    found.shutdown()
    found.server_close()


def place_at(server: FaultyS3) -> S3Place:
    settings = {
        "AWS_ACCESS_KEY_ID": "AKIDTALLY",
        "AWS_SECRET_ACCESS_KEY": SECRET,
        "AWS_ENDPOINT_URL": server.endpoint,
    }
    return S3Place("s3://bucket/some/prefix", settings)


@pytest.mark.process
async def test_backups_in_a_real_server(tmp_path: Path) -> None:
    await fill(tmp_path / "store", 60)
    with S3Lab() as lab:
        settings = tmp_path / "s3"
        settings.write_text(f"# of a test\nAWS_ENDPOINT_URL = {lab.endpoint}\nAWS_REGION = us-east-1\n")
        place = open_place(f"s3://{lab.make_bucket()}/some/prefix", settings)
        for seal in (Seal(), KeySeal(KEY)):
            first = back_up(tmp_path / "store", place, seal)
            second = back_up(tmp_path / "store", place, seal)
            assert first.shared_bytes == 0 and second.new_bytes == 0
            assert catalog.verify(place, second.manifest, seal) == []
            to = tmp_path / f"to-{seal.key_id}"
            restore(second, place, to, seal)
            end = second.manifest.committed
            assert log_bytes(to / "commitlog", 0, end) == log_bytes(tmp_path / "store/commitlog", 0, end)
            assert verify(to).sound
        assert len(catalog.listed(place)) == 4
        catalog.delete(place, NAME, ids_of(place, NAME))
        assert place.names("") == {}
        with pytest.raises(MissingObjectError):
            place.read("nothing")
        with pytest.raises(PlaceError, match="cannot list the objects"):
            open_place("s3://no-bucket/x", settings).names("")


@pytest.mark.parametrize("fault", [500, 503, "cut"])
async def test_requests_are_repeated(tmp_path: Path, server: FaultyS3, fault: object) -> None:
    await fill(tmp_path / "store", 30)
    failed: set[tuple[str, str]] = set()

    def first_time(method: str, key: str) -> object:
        if method == "STORE" or (method, key) in failed:
            return None
        failed.add((method, key))
        return fault

    server.fault = first_time
    place = place_at(server)
    outcome = back_up(tmp_path / "store", place)
    server.fault = lambda method, key: None
    restore(outcome, place, tmp_path / "to")
    assert verify(tmp_path / "to").sound and failed


async def test_a_server_that_stays_broken_is_named(tmp_path: Path, server: FaultyS3) -> None:
    await fill(tmp_path / "store", 30)
    place = place_at(server)
    server.fault = lambda method, key: 503 if method == "PUT" and "/log/" in key else None
    with pytest.raises(
        PlaceError, match=r"s3://bucket/some/prefix: cannot store lab/broker-a/log/0{20}-.*503"
    ) as error:
        back_up(tmp_path / "store", place)
    assert SECRET not in str(error.value) and "\n" not in str(error.value)
    assert ids_of(place, NAME) == []
    server.fault = lambda method, key: 403 if method == "GET" else None
    with pytest.raises(PlaceError, match="403"):
        place.names("")


async def test_what_the_server_changes_is_found_after_the_upload(tmp_path: Path, server: FaultyS3) -> None:
    await fill(tmp_path / "store", 30)
    place, flips = place_at(server), [0]

    def flip(method: str, key: str) -> object:
        flips[0] += method == "STORE" and "/log/" in key
        return "flip" if method == "STORE" and "/log/" in key and flips[0] <= 2 else None

    server.fault = flip
    outcome = back_up(tmp_path / "store", place)
    assert flips[0] == len(outcome.manifest.log) + 2, "the first object was stored three times"
    assert catalog.verify(place, outcome.manifest, Seal()) == []
    for name in list(server.objects):
        del server.objects[name]
    server.fault = lambda method, key: "flip" if method == "STORE" and "/log/" in key else None
    with pytest.raises(DamagedBackupError, match="has other bytes than were stored, 3 times"):
        back_up(tmp_path / "store", place)
    assert ids_of(place, NAME) == []


async def test_an_answer_that_ends_early_is_read_again(tmp_path: Path, server: FaultyS3) -> None:
    await fill(tmp_path / "store", 30)
    place = place_at(server)
    outcome = back_up(tmp_path / "store", place)
    short: set[str] = set()

    def end_early(method: str, key: str) -> object:
        if method == "GET" and "/log/" in key and key not in short:
            short.add(key)
            return "short"
        return None

    server.fault = end_early
    restore(outcome, place, tmp_path / "to")
    assert verify(tmp_path / "to").sound and len(short) == len(outcome.manifest.log)


async def test_an_object_that_is_lost_is_named(tmp_path: Path, server: FaultyS3) -> None:
    await fill(tmp_path / "store", 30)
    place = place_at(server)
    outcome = back_up(tmp_path / "store", place)
    lost = outcome.manifest.log[1].name
    del server.objects[f"some/prefix/{NAME.folder}/{lost}"]
    with pytest.raises(DamagedBackupError, match=f"{lost} is missing"):
        restore(outcome, place, tmp_path / "to")


def test_settings_come_from_the_environment_or_a_file(tmp_path: Path) -> None:
    known = {"AWS_ACCESS_KEY_ID": "a", "AWS_SECRET_ACCESS_KEY": "b", "AWS_DEFAULT_REGION": "r", "HOME": "/"}
    assert s3_settings(None, known) == {"AWS_ACCESS_KEY_ID": "a", "AWS_SECRET_ACCESS_KEY": "b", "AWS_REGION": "r"}
    (tmp_path / "s3").write_text("aws_access_key_id = c\n\n# comment\nAWS_SESSION_TOKEN='t'\n")
    found = s3_settings(tmp_path / "s3", known)
    assert (found["AWS_ACCESS_KEY_ID"], found["AWS_SESSION_TOKEN"], found["AWS_REGION"]) == ("c", "t", "r")
    (tmp_path / "s3").write_text("password = hunter2\n")
    with pytest.raises(BackupError, match="line 1: must be NAME = VALUE") as error:
        s3_settings(tmp_path / "s3", {})
    assert "hunter2" not in str(error.value)
    with pytest.raises(BackupError, match="set AWS_ACCESS_KEY_ID"):
        S3Place("s3://bucket/x", {})
    for text in ("s3://", "s3://user:secret@bucket/x", "s3://bucket/x?y"):
        with pytest.raises(BackupError, match="not of the form"):
            S3Place(text, known)
    with pytest.raises(BackupError, match="a place of backups is a folder or s3"):
        open_place("ftp://host/x")


@pytest.mark.process
def test_the_command_without_the_library_says_what_to_install(tmp_path: Path) -> None:
    (tmp_path / "obstore.py").write_text("raise ImportError('not installed')")
    done = tally("backup", "list", "s3://bucket/x", env=environment(PYTHONPATH=str(tmp_path)))
    assert done.returncode == 2 and done.stdout == ""
    assert done.stderr == "tally: backups in S3 need the library obstore: pip install 'tallystick[backup]'\n"
