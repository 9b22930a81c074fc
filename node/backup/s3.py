"""Backups in an S3-compatible store, through the library `obstore`, which the extra `tallystick[backup]` installs.

The endpoint and the credentials come from the environment, from a file of lines `name = value`, or from a folder with a
file for each name, as Kubernetes mounts a Secret; never from arguments, which other users of the machine can see:

    AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY, AWS_SESSION_TOKEN     AWS_ENDPOINT_URL (another store than Amazon's)
    AWS_REGION

Each upload carries its SHA-256, which the store checks. The library repeats a request that was not answered, or was
answered with 5xx, for `RETRY_S` seconds.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from datetime import timedelta
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from tallystick.node.backup.errors import BackupError, MissingObjectError, PlaceError

RETRY_S = 60.0
FIRST_PAUSE_S = 0.1
"""The pause before the first repetition. The library doubles it for each further one."""
_REQUEST_S = 120
_READS = 5
_NAMES = (
    "AWS_ACCESS_KEY_ID",
    "AWS_SECRET_ACCESS_KEY",
    "AWS_SESSION_TOKEN",
    "AWS_ENDPOINT_URL",
    "AWS_REGION",
)
_REASON_CHARS = 300


def s3_settings(path: Path | None, environment: Mapping[str, str] | None = None) -> dict[str, str]:
    """Returns the settings by name. BackupError: the file cannot be read, or has another line; OSError."""
    environment = os.environ if environment is None else environment
    found = {name: environment[name] for name in _NAMES if environment.get(name)}
    if "AWS_REGION" not in found and environment.get("AWS_DEFAULT_REGION"):
        found["AWS_REGION"] = environment["AWS_DEFAULT_REGION"]
    if path is not None and path.is_dir():
        return found | {name: (path / name).read_text().strip() for name in _NAMES if (path / name).is_file()}
    for number, line in enumerate(() if path is None else path.read_text().splitlines(), 1):
        name, separator, value = (part.strip() for part in line.partition("="))
        if not line.strip() or line.startswith("#"):
            continue
        if not separator or name.upper() not in _NAMES:
            raise BackupError(f"{path}, line {number}: must be NAME = VALUE with one of {', '.join(_NAMES)}")
        found[name.upper()] = value.strip("\"'")
    return found


class S3Place:
    """Objects below `s3://bucket/prefix`. See `places.Place`."""

    def __init__(self, text: str, settings: Mapping[str, str]) -> None:
        parts = urlsplit(text)
        if not parts.netloc or parts.query or parts.fragment or "@" in parts.netloc:
            raise BackupError(f"{text!r} is not of the form s3://bucket/prefix")
        self.text = text.rstrip("/")
        self._secrets = [settings[name] for name in _NAMES[:3] if name in settings]
        self._library = _library()
        self._prefix = parts.path.strip("/")
        self._store = self._connected(parts.netloc, settings)

    def _connected(self, bucket: str, settings: Mapping[str, str]) -> Any:
        if "AWS_ACCESS_KEY_ID" not in settings or "AWS_SECRET_ACCESS_KEY" not in settings:
            raise BackupError(
                f"{self.text}: set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or name a file with them by "
                "--s3-settings"
            )
        options: dict[str, Any] = {
            "access_key_id": settings["AWS_ACCESS_KEY_ID"],
            "secret_access_key": settings["AWS_SECRET_ACCESS_KEY"],
            "region": settings.get("AWS_REGION", "us-east-1"),
            "checksum_algorithm": "SHA256",
        }
        if "AWS_SESSION_TOKEN" in settings:
            options["session_token"] = settings["AWS_SESSION_TOKEN"]
        endpoint = settings.get("AWS_ENDPOINT_URL")
        if endpoint is not None:
            if urlsplit(endpoint).scheme not in ("http", "https") or not urlsplit(endpoint).netloc:
                raise BackupError(f"AWS_ENDPOINT_URL {endpoint!r} is not of the form http://host:port")
            options["endpoint"] = endpoint
            options["virtual_hosted_style_request"] = False
        try:
            return self._library.store.S3Store(
                bucket,
                prefix=self._prefix or None,
                client_options={"allow_http": True, "timeout": timedelta(seconds=_REQUEST_S)},
                retry_config={
                    "max_retries": 10,
                    "retry_timeout": timedelta(seconds=RETRY_S),
                    "backoff": {"init_backoff": timedelta(seconds=FIRST_PAUSE_S)},
                },
                **options,
            )
        except self._library.exceptions.BaseError as error:
            raise self._failed("cannot be opened", error) from None

    def _failed(self, what: str, error: Exception) -> PlaceError:
        """The library's texts have several lines, with the answer of the server."""
        reason = re.sub(r"\s+", " ", str(error).split("\n\nDebug source")[0]).strip()
        for secret in self._secrets:
            reason = reason.replace(secret, "...")
        return PlaceError(f"{self.text}: {what}: {reason[:_REASON_CHARS]}")

    def names(self, below: str) -> dict[str, int]:
        """See `Place`."""
        try:
            pages = self._library.list(self._store, prefix=below.rstrip("/") or None)
            return {each["path"]: each["size"] for page in pages for each in page}
        except (self._library.exceptions.BaseError, OSError) as error:
            raise self._failed("cannot list the objects", error) from None

    def read(self, name: str) -> bytes:
        """See `Place`."""
        for attempt in range(1, _READS + 1):
            try:
                answer = self._library.get(self._store, name)
            except FileNotFoundError:
                raise MissingObjectError(self.text, name) from None
            except (self._library.exceptions.BaseError, OSError) as error:
                raise self._failed(f"cannot read {name}", error) from None
            try:
                return bytes(answer.bytes())
            except (self._library.exceptions.BaseError, OSError) as error:  # the library does not repeat a body
                if attempt == _READS:
                    raise self._failed(f"cannot read {name}", error) from None
        raise AssertionError("the last attempt returns or raises")

    def write(self, name: str, data: bytes) -> None:
        """See `Place`. One request, which stores all or nothing."""
        try:
            self._library.put(self._store, name, data, use_multipart=False)
        except (self._library.exceptions.BaseError, OSError) as error:
            raise self._failed(f"cannot store {name}", error) from None

    def remove(self, name: str) -> None:
        """See `Place`."""
        try:
            self._library.delete(self._store, name)
        except FileNotFoundError:
            return
        except (self._library.exceptions.BaseError, OSError) as error:
            raise self._failed(f"cannot remove {name}", error) from None


def _library() -> Any:
    try:
        import obstore
        import obstore.exceptions
        import obstore.store
    except ImportError:
        raise BackupError("backups in S3 need the library obstore: pip install 'tallystick[backup]'") from None
    return obstore
