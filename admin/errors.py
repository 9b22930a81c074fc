"""Errors of the admin core beyond those of the client."""

from __future__ import annotations

from tallystick.client import ClientError


class ChangedError(ClientError):
    """The object is not the one that the caller saw: its `etag` differs from `if_match`. Nothing was changed."""

    def __init__(self, subject: str, etag: str) -> None:
        """`etag`: the one that it has now; empty: it does not exist."""
        super().__init__(f"{subject} was changed, or deleted, since it was read")
        self.etag = etag
