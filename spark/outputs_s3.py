"""An output in an S3-compatible store: objects below `s3://bucket/prefix`.

An object appears when its upload is complete. It is uploaded from a temporary file when its writer has finished, so a
task that fails or is killed leaves no object. Each process that uses the output reads the credentials itself
(AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY, AWS_SESSION_TOKEN): from the files of the folder that
TALLYSTICK_OUTPUT_S3_SETTINGS names, such as a mounted Secret, or from the environment. No object, message or pickle
contains them.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache
from pathlib import Path
from typing import Any, BinaryIO
from urllib.parse import urlsplit

import pyarrow.fs as filesystems

from tallystick.node.backup.s3 import s3_settings
from tallystick.spark.outputs import Output, OutputError, checked, read_whole

_PIECE_BYTES = 8 << 20
_CONNECT_S, _REQUEST_S = 10, 60
_KEY, _SECRET, _SESSION = "AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN"
FOLDER_VARIABLE = "TALLYSTICK_OUTPUT_S3_SETTINGS"
"""The environment variable that names a folder with a file for each setting."""


def output_settings() -> dict[str, str]:
    """Returns the settings of the store by their names in the environment, as they are now. OSError."""
    folder = os.environ.get(FOLDER_VARIABLE)
    return s3_settings(Path(folder) if folder else None)


class S3Output(Output):
    """`endpoint`: `http(s)://host:port` of a store other than Amazon's; buckets are then parts of its paths."""

    shared = True

    def __init__(self, uri: str, endpoint: str | None = None, region: str | None = None) -> None:
        parts = urlsplit(uri)
        if parts.scheme != "s3" or not parts.netloc or parts.query or parts.fragment or "@" in parts.netloc:
            raise OutputError(f"{uri!r} is not of the form s3://bucket/prefix")
        if endpoint is not None and (
            urlsplit(endpoint).scheme not in ("http", "https") or not urlsplit(endpoint).netloc
        ):
            raise OutputError(f"the endpoint {endpoint!r} is not of the form http://host:port")
        self._base = f"{parts.netloc}/{parts.path.strip('/')}".rstrip("/")
        self._endpoint = endpoint
        self._region = region
        self.place = f"s3://{self._base}"

    @contextmanager
    def create(self, name: str) -> Iterator[BinaryIO]:
        with tempfile.TemporaryFile() as file:
            yield file
            file.seek(0)
            with self._store.open_output_stream(self._path(name)) as stream:
                shutil.copyfileobj(file, stream, _PIECE_BYTES)

    def read(self, name: str) -> bytes | None:
        return read_whole(self._store, self._path(name))

    @contextmanager
    def opened(self, name: str) -> Iterator[Any]:
        with self._store.open_input_file(self._path(name)) as file:
            yield file

    def sizes(self) -> dict[str, int]:
        return self._listed(self._base)

    def names(self, below: str = "") -> list[str]:
        return sorted(self._listed(self._path(below) if below else self._base))

    def _listed(self, base: str) -> dict[str, int]:
        found = self._store.get_file_info(filesystems.FileSelector(base, allow_not_found=True, recursive=True))
        return {each.path[len(self._base) + 1 :]: each.size for each in found if each.is_file}

    def remove(self, name: str) -> None:
        try:
            self._store.delete_file(self._path(name))
        except FileNotFoundError:
            return

    def _path(self, name: str) -> str:
        return f"{self._base}/{checked(name)}"

    @property
    def _store(self) -> Any:
        settings = output_settings()
        key, secret = settings.get(_KEY), settings.get(_SECRET)
        if not key or not secret:
            raise OutputError(f"an output in S3 needs {_KEY} and {_SECRET}")
        return _connected(self._endpoint, self._region, (key, secret, settings.get(_SESSION)), os.getpid())


@lru_cache(maxsize=4)
def _connected(endpoint: str | None, region: str | None, credentials: tuple[str, str, str | None], process: int) -> Any:
    """One for each process: a fork must not share its parent's connections."""
    key, secret, session = credentials
    options: dict[str, Any] = {} if region is None else {"region": region}
    if endpoint is not None:
        parts = urlsplit(endpoint)
        # Other endpoints use path-style addresses and have one region, whose name does not matter.
        options |= {"endpoint_override": parts.netloc, "scheme": parts.scheme, "region": region or "us-east-1"}
    return filesystems.S3FileSystem(
        access_key=key,
        secret_key=secret,
        session_token=session,
        connect_timeout=_CONNECT_S,
        request_timeout=_REQUEST_S,
        **options,
    )
