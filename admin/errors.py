"""Errors of the admin core beyond those of the client."""

from __future__ import annotations

from tallystick.client import ClientError, ConnectionFailed


class ChangedError(ClientError):
    """The object is not the one that the caller saw: its `etag` differs from `if_match`. Nothing was changed."""

    def __init__(self, subject: str, etag: str) -> None:
        """`etag`: the one that it has now; empty: it does not exist."""
        super().__init__(f"{subject} was changed, or deleted, since it was read")
        self.etag = etag


class NoNameServerError(ConnectionFailed):
    """No name server answers. The text has the last error."""

    def __init__(self, error: ClientError) -> None:
        ClientError.__init__(self, f"no name server answers: {error}", address=error.address)
