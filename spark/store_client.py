"""The files of a store over HTTP, as its broker serves them: `GET /store` and `GET /store/files/{path}`.

    with StoreClient("http://broker:8080") as client:
        store = client.store()
        for piece in client.read("commitlog/00000000000000000000", 0, 4096): ...

The client uses one connection. It repeats a request for a while if there is no complete answer, or an answer 5xx (a
broker that starts, or has too many readers). It reads the token at each request from the file that
`TALLYSTICK_READ_TOKEN_FILE` names, because the token can be replaced.
"""

from __future__ import annotations

import http.client
import json
import os
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlsplit

TOKEN_FILE_VARIABLE = "TALLYSTICK_READ_TOKEN_FILE"
TIMEOUT_S = 30.0
PATIENCE_S = 20.0
_PIECE_BYTES = 1 << 20
_PAUSES_S = (0.1, 0.3, 1.0, 2.0)


class StoreClientError(Exception):
    """The broker refused a request or did not answer. `status`: the HTTP status, None without an answer."""

    def __init__(self, address: str, what: str, status: int | None) -> None:
        super().__init__(f"{address}: {what}")
        self.status = status


@dataclass(frozen=True, slots=True)
class RemoteStore:
    """The answer to `GET /store`. `files`: (path in the store, bytes) of the requested files."""

    log_folder: str
    begin: int
    committed: int
    closed: bool
    files: tuple[tuple[str, int], ...]

    @classmethod
    def parse(cls, answer: Any) -> RemoteStore:
        """Parses an answer. ValueError: it is not an answer to GET /store."""
        try:
            return cls(
                log_folder=str(answer["logFolder"]),
                begin=int(answer["begin"]),
                committed=int(answer["committed"]),
                closed=answer["closed"] is True,
                files=tuple((str(each["path"]), int(each["bytes"])) for each in answer["files"]),
            )
        except (KeyError, TypeError, ValueError) as error:
            raise ValueError(f"not an answer of GET /store: {error!r}") from error


class StoreClient:
    """Reads a store over HTTP. A context manager. `address`: `http://host:port`. `patience_s`: how long requests are
    repeated. All methods raise StoreClientError: the broker did not answer, or refused.
    """

    def __init__(self, address: str, *, patience_s: float = PATIENCE_S, token_file: str | None = None) -> None:
        parts = urlsplit(address)
        if parts.scheme not in ("http", "https") or parts.hostname is None:
            raise StoreClientError(address, "is not an http address", None)
        self._address = address.rstrip("/")
        self._path = parts.path.rstrip("/")
        kind = http.client.HTTPSConnection if parts.scheme == "https" else http.client.HTTPConnection
        self._connection = kind(parts.hostname, parts.port, timeout=TIMEOUT_S)
        self._patience_s = patience_s
        self._token_file = token_file if token_file is not None else os.environ.get(TOKEN_FILE_VARIABLE)

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

    def read(self, path: str, begin: int, end: int) -> Iterator[bytes]:
        """Yields bytes [begin, end) of a file, end > begin, in pieces. FileNotFoundError: the file does not exist."""
        done = begin
        patience = _Patience(self._patience_s)
        while done < end:
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

    def _asked(self, path: str, headers: dict[str, str], good: tuple[int, ...], length: int = -1) -> Iterator[bytes]:
        response = self._answered(path, headers, good)
        left = length
        try:
            while piece := response.read(_PIECE_BYTES):
                left -= len(piece)
                yield piece
        except (OSError, http.client.HTTPException) as error:
            self._connection.close()
            raise StoreClientError(self._address, f"{path}: {error!r}", None) from error
        if length >= 0 and left:
            self._connection.close()
            raise StoreClientError(self._address, f"{path}: {left} of {length} bytes are missing", None)

    def _answered(self, path: str, headers: dict[str, str], good: tuple[int, ...]) -> http.client.HTTPResponse:
        patience = _Patience(self._patience_s)
        while True:
            try:
                self._connection.request("GET", self._path + path, headers=headers | self._authority())
                response = self._connection.getresponse()
                if response.status in good:
                    return response
                status, text = response.status, response.read(4096).decode(errors="replace").strip()
                failed = StoreClientError(self._address, f"{path}: {status} {text}", status)
            except (OSError, http.client.HTTPException) as error:
                failed = StoreClientError(self._address, f"{path}: {error!r}", None)
            self._connection.close()
            if (failed.status is not None and failed.status < 500) or not patience.more():
                raise failed

    def _authority(self) -> dict[str, str]:
        if not self._token_file:
            return {}
        try:
            return {"Authorization": f"Bearer {Path(self._token_file).read_text().strip()}"}
        except FileNotFoundError:
            return {}  # the secret is optional: the broker may not require a token


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
