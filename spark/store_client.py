"""The files of a store over HTTP, as its broker serves them: `GET /store` and `GET /store/files/{path}`.

    with StoreClient("http://broker:8080") as client:
        store = client.store()
        queues = client.queues(store.committed)
        for piece in client.read("commitlog/00000000000000000000", 0, 4096): ...

The client uses one connection. It repeats a request for a while if there is no complete answer, or an answer 5xx (a
broker that starts, or has too many readers). It gives up an answer that arrives too slowly or is too long, so that no
server keeps a task forever or fills its memory. `Access` has the token and the certificates.
"""

from __future__ import annotations

import http.client
import io
import json
import socket
import ssl
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote, urlsplit

from tallystick.spark.access import NO_ACCESS, Access
from tallystick.store._kernel import QueueEnd

TIMEOUT_S = 30.0
LEAST_BYTES = 64 << 10
"""An answer must bring so many bytes, or end, in each `TIMEOUT_S`."""
PATIENCE_S = 20.0
_PIECE_BYTES = 1 << 20
_MOST_LISTING_BYTES = 256 << 20
_PAUSES_S = (0.1, 0.3, 1.0, 2.0)
_HINTS = {401: " (options token, tokenFile)", 403: " (options token, tokenFile)"}


class StoreClientError(Exception):
    """The broker refused a request or did not answer. `status`: the HTTP status, None without an answer."""

    def __init__(self, address: str, what: str, status: int | None) -> None:
        super().__init__(address, what, status)  # all of them: an error of a task is pickled
        self.status = status

    def __str__(self) -> str:
        return f"{self.args[0]}: {self.args[1]}"


@dataclass(frozen=True, slots=True)
class RemoteStore:
    """The answer to `GET /store`. `files`: (path in the store, bytes) of the requested files.

    `group`: the broker's name; `member`: its name in a group, None: it is alone. `tells_queues`: see `queues`; brokers
    of earlier versions do not.
    """

    log_folder: str
    begin: int
    committed: int
    closed: bool
    files: tuple[tuple[str, int], ...]
    group: str | None = None
    member: str | None = None
    tells_queues: bool = False

    @classmethod
    def parse(cls, answer: Any) -> RemoteStore:
        """Parses an answer. ValueError: it is not an answer to GET /store."""
        try:
            return cls(
                log_folder=str(answer["logFolder"]),
                begin=int(answer["begin"]),
                committed=int(answer["committed"]),
                closed=answer["closed"] is True,
                files=tuple((_inside(str(each["path"])), int(each["bytes"])) for each in answer["files"]),
                group=str(answer["group"]) if answer.get("group") else None,
                member=None if answer.get("member") is None else f"{answer.get('group')}-n{answer['member']}",
                tells_queues=answer.get("tellsQueues") is True,
            )
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            raise ValueError(f"not an answer of GET /store: {error!r}") from error


@dataclass(frozen=True, slots=True)
class RemoteQueues:
    """The answer to `GET /store/queues`: what a reader would find in the ConsumeQueues with `_kernel.queue_ends`.

    `index`: slots and entries of the index files; None: it is not known.
    """

    ends: tuple[QueueEnd, ...] = ()
    named_end: int = -1
    index: tuple[int, int] | None = None

    @classmethod
    def parse(cls, answer: Any) -> RemoteQueues:
        """Parses an answer. ValueError: it is not an answer to GET /store/queues."""
        try:
            index = answer["index"]
            return cls(
                ends=tuple(_queue_end(*each) for each in answer["queues"]),
                named_end=int(answer["namedEnd"]),
                index=(int(index["slots"]), int(index["entries"])),
            )
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            raise ValueError(f"not an answer of GET /store/queues: {error!r}") from error


def _queue_end(topic: str, queue: int, *numbers: int) -> QueueEnd:
    first, end, segment_bytes, pos, size, regular = map(int, numbers)
    if "/" in _inside(topic):
        raise ValueError(f"{topic!r} is not a topic")
    # The kernel's tuples are made from one tuple.
    return QueueEnd((topic, int(queue), first, end, segment_bytes, pos, size, bool(regular)))  # type: ignore[call-arg,arg-type]


def _inside(path: str) -> str:
    """A server must not choose where a reader writes."""
    if path.startswith("/") or any(part in ("", ".", "..") for part in path.split("/")):
        raise ValueError(f"{path!r} is not a path in a store")
    return path


class StoreClient:
    """Reads a store over HTTP. A context manager. `address`: `http://host:port`. `patience_s`: how long requests are
    repeated. All methods raise StoreClientError: the broker did not answer, or refused.
    """

    def __init__(self, address: str, access: Access = NO_ACCESS, *, patience_s: float = PATIENCE_S) -> None:
        parts = urlsplit(address)
        if parts.scheme not in ("http", "https") or parts.hostname is None:
            raise StoreClientError(address, "is not an http address", None)
        self._address = address.rstrip("/")
        self._path = parts.path.rstrip("/")
        self._connection = _connection(parts.scheme, parts.hostname, parts.port, access.ca)
        self._connection.response_class = _PacedResponse
        self._access = access
        self._patience_s = patience_s

    def __enter__(self) -> StoreClient:
        return self

    def __exit__(self, *_: object) -> None:
        self._connection.close()

    def store(self, under: str | None = None) -> RemoteStore:
        """Returns the present state of the store. `under`: lists the files below this folder instead of the log's."""
        path = "/store" if under is None else f"/store?under={quote(under)}"
        data = b"".join(self._asked(path, {}, (200,)))
        try:
            return RemoteStore.parse(json.loads(data))
        except ValueError as error:
            raise StoreClientError(self._address, f"{path}: {error}", 200) from error

    def queues(self, below: int) -> RemoteQueues:
        """Returns where the ConsumeQueues end, and the last record before the position `below` that each names."""
        path = f"/store/queues?below={below}"
        data = b"".join(self._asked(path, {}, (200,)))
        try:
            return RemoteQueues.parse(json.loads(data))
        except ValueError as error:
            raise StoreClientError(self._address, f"{path}: {error}", 200) from error

    def read(self, path: str, begin: int, end: int) -> Iterator[bytes]:
        """Yields bytes [begin, end) of a file, end > begin, in pieces. FileNotFoundError: the file does not exist."""
        done = tried = begin
        patience = _Patience(self._patience_s)
        while done < end:
            if done - tried >= LEAST_BYTES:
                tried, patience = done, _Patience(self._patience_s)
            headers = {"Range": f"bytes={done}-{end - 1}"}
            try:
                for piece in self._asked(f"/store/files/{quote(path)}", headers, (206,), end - done):
                    done += len(piece)
                    yield piece
            except StoreClientError as error:
                if error.status == 404:
                    raise FileNotFoundError(f"{self._address}: there is no {path}") from error
                if error.status is not None or not patience.more():
                    raise  # otherwise the body is incomplete: the next request reads the rest

    def _asked(
        self, path: str, headers: dict[str, str], good: tuple[int, ...], length: int | None = None
    ) -> Iterator[bytes]:
        """Yields the body, which must have `length` bytes; None: any number up to a limit."""
        response = self._answered(path, headers, good)
        left = _MOST_LISTING_BYTES if length is None else length
        try:
            while left and (piece := response.read(min(_PIECE_BYTES, left))):
                left -= len(piece)
                yield piece
            is_too_long = not left and bool(response.read(1))
        except (OSError, http.client.HTTPException) as error:
            raise self._failure(path, repr(error), None) from error
        if is_too_long:
            raise self._failure(path, "the answer is longer than what was requested", response.status)
        if left and length is not None:
            raise self._failure(path, f"{left} of {length} bytes are missing", None)

    def _failure(self, path: str, what: str, status: int | None) -> StoreClientError:
        self._connection.close()
        return StoreClientError(self._address, self._access.hidden(f"{path}: {what}"), status)

    def _answered(self, path: str, headers: dict[str, str], good: tuple[int, ...]) -> http.client.HTTPResponse:
        patience = _Patience(self._patience_s)
        while True:
            try:
                if self._connection.sock is not None:
                    self._connection.sock.settimeout(TIMEOUT_S)  # the last answer left less
                self._connection.request("GET", self._path + path, headers=headers | self._authority())
                response = self._connection.getresponse()
                if response.status in good:
                    return response
                status, text = response.status, response.read(4096).decode(errors="replace").strip()
                failed = self._failure(path, f"{status} {text}{_HINTS.get(status, '')}", status)
            except ssl.SSLCertVerificationError as error:
                raise self._failure(path, f"{error} (option ca)", None) from error
            except (OSError, http.client.HTTPException) as error:
                failed = self._failure(path, repr(error), None)
            if (failed.status is not None and failed.status < 500) or not patience.more():
                raise failed

    def _authority(self) -> dict[str, str]:
        token = self._access.bearer()
        return {} if token is None else {"Authorization": f"Bearer {token}"}


def _connection(scheme: str, host: str, port: int | None, ca: str | None) -> http.client.HTTPConnection:
    if scheme == "http":
        return http.client.HTTPConnection(host, port, timeout=TIMEOUT_S)
    return http.client.HTTPSConnection(host, port, timeout=TIMEOUT_S, context=ssl.create_default_context(cadata=ca))


class _PacedResponse(http.client.HTTPResponse):
    """An answer that must arrive at a least rate. A limit for each receive would let a server send a byte now and then
    without end."""

    def __init__(self, sock: socket.socket, *arguments: Any, **more: Any) -> None:
        super().__init__(sock, *arguments, **more)
        self.fp: Any = io.BufferedReader(_Paced(self.fp.detach(), sock))


class _Paced(io.RawIOBase):
    """What a socket receives. TimeoutError: less than `LEAST_BYTES` arrived in `TIMEOUT_S`."""

    def __init__(self, raw: io.RawIOBase, sock: socket.socket) -> None:
        self._raw, self._socket = raw, sock
        self._begin_turn()

    def _begin_turn(self) -> None:
        self._until, self._received = time.monotonic() + TIMEOUT_S, 0

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int | None:
        left = self._until - time.monotonic()
        if left <= 0:
            raise TimeoutError(f"only {self._received} bytes arrived in {TIMEOUT_S:g} s")
        self._socket.settimeout(left)
        count = self._raw.readinto(buffer)
        self._received += count or 0
        if self._received >= LEAST_BYTES:
            self._begin_turn()
        return int(count or 0)

    def close(self) -> None:
        self._raw.close()
        super().close()


class _Patience:
    """Waits a little longer each time, until the time is over."""

    def __init__(self, seconds: float) -> None:
        self._until = time.monotonic() + seconds
        self._tries = 0

    def more(self) -> bool:
        if time.monotonic() >= self._until:
            return False
        time.sleep(_PAUSES_S[min(self._tries, len(_PAUSES_S) - 1)])
        self._tries += 1
        return True
