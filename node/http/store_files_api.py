"""The store's files over HTTP, for jobs that run elsewhere than the volume: GET /store, GET /store/files/{path}.

    GET /store                      whose store it is, the bounds of the log, its committed position, its files
    GET /store?under=F              the files in folder F instead
    GET /store/queues?below=N       where each ConsumeQueue ends, and the last record before N that it names
    GET /store/files/{path}         a file; with `Range: bytes=a-b`, `a-` or `-n` a part of it

`store_files.py` decides which files there are. Nothing of the log at or behind the committed position is sent: a range
that reaches it is refused with 416 and the bound, and a range without an end goes up to it. If a body cannot be
completed, its connection is closed, so that no reader takes a part for the whole.

Two separate threads read files, so the event loop never waits for a disk. Two bodies are sent at a time, and a limited
number of requests wait. A reader that accepts nothing for some time loses its connection.
"""

from __future__ import annotations

import asyncio
import errno
import io
import json
import logging
import os
import re
import time
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

from aiohttp import web

from tallystick.node.http.admin_api import AdminView
from tallystick.node.http.json_api import ApiError, failed
from tallystick.node.http.store_files import NotServedError, StoreFile, StoreFolder, file_of
from tallystick.store import _kernel
from tallystick.store.engine.abort import was_aborted
from tallystick.store.engine.message_store import MessageStore
from tallystick.store.limited_log import LimitedLog

PATH = "/store"
READERS = 2
"""Bodies and listings in progress at a time."""
MOST_WAITING = 64
PIECE_BYTES = 256 << 10
STALLED_S = 30.0
"""A reader that accepts nothing for so long is dropped."""
_POSITION = re.compile(r"[0-9]{1,18}")
_RANGE = re.compile(r"bytes=(\d{0,18})-(\d{0,18})")
T = TypeVar("T")


class StoreFilesApi:
    """The routes of one process. Its threads start with the first request and end with the port (`add_to`)."""

    def __init__(self, view: AdminView, *, readers: int = READERS, most_waiting: int = MOST_WAITING) -> None:
        self._view = view
        self._places = asyncio.Semaphore(readers)
        self._waiting = 0
        self._most_waiting = most_waiting
        self._executor = ThreadPoolExecutor(max_workers=readers, thread_name_prefix="store-files")
        self._log = LimitedLog(logging.getLogger("tallystick.http"), time.monotonic)
        self._sending: set[asyncio.Transport] = set()
        self._stopping = False

    def add_to(self, app: web.Application) -> None:
        app.router.add_get(PATH, self._answering(self._show), allow_head=False)
        app.router.add_get(PATH + "/queues", self._answering(self._show_queues), allow_head=False)
        app.router.add_get(PATH + "/files/{path:.+}", self._answering(self._send), allow_head=False)
        app.on_shutdown.append(self._stop)

    async def _stop(self, _: web.Application) -> None:
        """The process ends: it does not wait for a reader of a gigabyte."""
        self._stopping = True
        for transport in list(self._sending):
            transport.abort()
        self._executor.shutdown(wait=False, cancel_futures=True)

    def _answering(
        self, work: Callable[[MessageStore, web.Request], Awaitable[web.StreamResponse]]
    ) -> Callable[[web.Request], Awaitable[web.StreamResponse]]:
        async def handle(request: web.Request) -> web.StreamResponse:
            if self._waiting >= self._most_waiting:
                return failed(503, f"{self._waiting} requests for files are waiting already: retry later")
            self._waiting += 1
            try:
                await self._places.acquire()
            finally:
                self._waiting -= 1
            try:
                broker = self._view.broker()  # read it here: it may have stopped or started meanwhile
                if broker is None or self._stopping:
                    return failed(503, "stopping" if self._stopping else self._view.absent())
                return await work(broker.store, request)
            except ApiError as error:
                return failed(error.status, str(error), **error.more)
            except NotServedError as error:
                return failed(404, f"the store does not have a file {error} that can be read")
            finally:
                self._places.release()

        return handle

    async def _on_thread(self, work: Callable[..., T], *arguments: Any) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._executor, work, *arguments)

    async def _show(self, store: MessageStore, request: web.Request) -> web.StreamResponse:
        under = request.query.get("under", "").rstrip("/")
        begin, committed = store.min_pos, store.readable_end  # before the files are listed: they are behind it
        node = self._view.node()
        owner = {name: node.get(name) for name in ("cluster", "group", "member")}
        try:
            text = await self._on_thread(_store_json, store, under, begin, committed, owner)
        except OSError as error:
            raise ApiError(503, f"the store's files cannot be listed: {error}") from error
        return web.Response(text=text, content_type="application/json")

    async def _show_queues(self, store: MessageStore, request: web.Request) -> web.StreamResponse:
        below = request.query.get("below", "")
        if _POSITION.fullmatch(below) is None:
            raise ApiError(400, f"below must be a position in the log, not {below!r:.100}")
        try:
            text = await self._on_thread(_queues_json, store, min(int(below), store.readable_end))
        except OSError as error:
            raise ApiError(503, f"the store's queues cannot be read: {error}") from error
        return web.Response(text=text, content_type="application/json")

    async def _send(self, store: MessageStore, request: web.Request) -> web.StreamResponse:
        file = file_of(request.match_info["path"])
        committed = store.readable_end
        try:
            opened, length = await self._on_thread(StoreFolder(store.settings).open, file)
        except OSError as error:
            raise ApiError(503, f"{request.match_info['path']} cannot be read: {error}") from error
        with opened:
            begin, end, whole = _asked(request.headers.get("Range"), file, length, committed)
            response = web.StreamResponse(status=200 if whole else 206)
            response.content_type = "application/octet-stream"
            response.content_length = end - begin
            response.headers["Accept-Ranges"] = "bytes"
            if not whole:
                response.headers["Content-Range"] = f"bytes {begin}-{end - 1}/{length}"
            await self._body(request, response, opened, begin, end)
            return response

    async def _body(
        self, request: web.Request, response: web.StreamResponse, opened: io.FileIO, begin: int, end: int
    ) -> None:
        transport = request.transport
        if transport is None:
            return  # the client is gone
        self._sending.add(transport)
        whole = False
        try:
            async with asyncio.timeout(STALLED_S) as stall:
                await response.prepare(request)
                while begin < end:
                    piece = await self._on_thread(os.pread, opened.fileno(), min(PIECE_BYTES, end - begin), begin)
                    if not piece:
                        raise OSError(errno.EIO, f"the file ends at byte {begin}", request.path)
                    await response.write(piece)
                    begin += len(piece)
                    stall.reschedule(asyncio.get_running_loop().time() + STALLED_S)
                await response.write_eof()
                whole = True
        except (ConnectionError, TimeoutError):
            pass  # the reader left, or accepts nothing: only its connection is lost
        except OSError as error:
            self._log.warning("read", "cannot send a file of the store to %s: %s", request.remote, error)
        finally:
            self._sending.discard(transport)
            if not whole:
                transport.abort()  # a closed connection shows that the promised length was not sent


def _store_json(store: MessageStore, under: str, begin: int, committed: int, owner: dict[str, Any]) -> str:
    folder = StoreFolder(store.settings)
    files = folder.listed(under or folder.log_path)
    if not under:
        files = [(path, length) for path, length in files if file_of(path).readable_bytes(length, committed)]
    answer = owner | {
        "layout": "ledger" if store.settings.enableDLegerCommitLog else "plain",
        "logFolder": folder.log_path,
        "begin": begin,
        "committed": committed,
        "segmentBytes": store.settings.mappedFileSizeCommitLog,
        "closed": not was_aborted(store.root),
        "tellsQueues": True,
        "files": [{"path": path, "bytes": length} for path, length in files],
    }
    return json.dumps(answer)


def _queues_json(store: MessageStore, below: int) -> str:
    """Reads a page of each queue, so that a reader need not fetch the queues to plan."""
    ends = _kernel.queue_ends(store.root / "consumequeue", below)
    index = {"slots": store.settings.maxHashSlotNum, "entries": store.settings.maxIndexNum}
    return json.dumps({"namedEnd": ends.named_end, "index": index, "queues": [list(each) for each in ends]})


def _asked(header: str | None, file: StoreFile, length: int, committed: int) -> tuple[int, int, bool]:
    """[begin, end) of the file, and whether that is the whole file. Raises ApiError 416."""
    readable = file.readable_bytes(length, committed)
    told = {"committed": committed, "readable": readable, "bytes": length}
    behind = f"the log is committed up to {committed}, which is byte {readable} of this file"
    if header is None:
        if readable < length:
            raise ApiError(416, f"{behind}: request a range before it", **told)
        return 0, length, True
    match = _RANGE.fullmatch(header.strip())
    if match is None or match[0] == "bytes=-":
        raise ApiError(416, f"only one range of bytes is supported, bytes=a-b, not {header!r:.100}", **told)
    first, last = match[1], match[2]
    if not first:  # the last so many bytes
        begin, end = max(0, readable - int(last)), readable
    else:
        begin, end = int(first), int(last) + 1 if last else readable
    if file.log_start is not None and end > readable:
        raise ApiError(416, behind, **told)
    end = min(end, readable)
    if begin >= end:
        raise ApiError(416, f"there are no bytes {header[6:]} of {readable}", **told)
    return begin, end, False
