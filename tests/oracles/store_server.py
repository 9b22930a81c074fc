"""A broker's file API as a reader knows it, over a folder, in a thread: GET /store, /store/queues, /store/files/{path}.

The bound is given, and can be moved; so can a number of answers that fail first, and a token that is asked for. What
was asked is kept, so that a test sees how little of a store crossed.
"""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import parse_qs, unquote, urlsplit

from tallystick.store import _kernel
from tallystick.store.formats.segment_files import SegmentFiles, segment_start


class StoreServer:
    def __init__(self, root: Path, committed: int) -> None:
        self.root = root
        self.committed = committed
        self.token: str | None = None
        self.failing = 0
        """So many answers are 503."""
        self.breaking = 0
        """So many bodies end halfway."""
        self.index: tuple[int, int] | None = None
        """Slots and entries of the index files. None: it does not tell where queues end, as in earlier versions."""
        self.read: list[tuple[str, int, int]] = []
        """(path, begin, end) of all bodies."""
        self.address = ""

    @property
    def log_folder(self) -> str:
        ledgers = sorted(self.root.glob("dledger-*/data"))
        return str(ledgers[0].relative_to(self.root)) if ledgers else "commitlog"

    def listing(self, under: str | None) -> dict[str, object]:
        folder = self.root / (under or self.log_folder)
        files = sorted(path for path in folder.rglob("*") if path.is_file())
        if under is None:
            files = [path for path in files if (segment_start(path.name) or 0) < self.committed]
        log = SegmentFiles(self.root / self.log_folder)
        return {
            "layout": "plain" if self.log_folder == "commitlog" else "ledger",
            "logFolder": self.log_folder,
            "begin": log.first,
            "committed": self.committed,
            "segmentBytes": log.segment_bytes,
            "closed": not (self.root / "abort").exists(),
            "tellsQueues": self.index is not None,
            "files": [{"path": str(path.relative_to(self.root)), "bytes": path.stat().st_size} for path in files],
        }

    def queues(self, below: int) -> dict[str, object]:
        ends = _kernel.queue_ends(self.root / "consumequeue", below)
        slots, entries = self.index or (0, 0)
        index = {"slots": slots, "entries": entries}
        return {"namedEnd": ends.named_end, "index": index, "queues": [list(each) for each in ends]}

    def part(self, path: str, asked: str | None) -> tuple[int, bytes]:
        """HTTP's status, and the body."""
        file = self.root / path
        if not file.is_file():
            return 404, b"{}"
        match = re.fullmatch(r"bytes=(\d+)-(\d+)", asked or "")
        assert match is not None, "readers ask for ranges"
        begin, end = int(match[1]), int(match[2]) + 1
        in_log = path.startswith("commitlog/") or "/data/" in path
        if in_log and (segment_start(file.name) or 0) + end > self.committed:
            return 416, json.dumps({"committed": self.committed}).encode()
        self.read.append((path, begin, end))
        with file.open("rb") as opened:
            opened.seek(begin)
            return 206, opened.read(end - begin)


@contextmanager
def serving(root: Path, committed: int) -> Iterator[StoreServer]:
    store = StoreServer(root, committed)

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        disable_nagle_algorithm = True

        def do_GET(self) -> None:
            url = urlsplit(self.path)
            if store.token is not None and self.headers.get("Authorization") != f"Bearer {store.token}":
                return self.give(401, b"{}")
            if store.failing:
                store.failing -= 1
                return self.give(503, b"{}")
            if url.path == "/store":
                under = parse_qs(url.query).get("under", [None])[0]
                return self.give(200, json.dumps(store.listing(under)).encode())
            if url.path == "/store/queues" and store.index is not None:
                below = int(parse_qs(url.query)["below"][0])
                return self.give(200, json.dumps(store.queues(below)).encode())
            return self.give(*store.part(unquote(url.path).removeprefix("/store/files/"), self.headers.get("Range")))

        def give(self, status: int, body: bytes) -> None:
            self.send_response(status)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            if status == 206 and store.breaking:
                store.breaking -= 1
                self.wfile.write(body[: len(body) // 2])
                self.close_connection = True
                return
            self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    store.address = f"http://127.0.0.1:{server.server_address[1]}"
    try:
        yield store
    finally:
        server.shutdown()
        server.server_close()
