"""All errors of the client. Each has `address`, `code` and `remark`, which are None where they have no meaning.

ClientError
├── ConfigurationError     an argument is wrong; also a ValueError
├── ClosedError            the client, producer or consumer was closed
├── ConnectionFailed       there was no connection, so the request was not sent
├── NoAnswer               the request was sent, and its answer did not come: the connection was lost
│   └── Timeout            ... or the time was up; also a TimeoutError
├── ProtocolError          the other side does not speak the protocol
├── Refused                the server answered with an error code
│   ├── AccessDenied       access control: the account, its signature or its permission
│   ├── Busy               the server is overloaded or starting; a repetition can succeed
│   ├── NotFound           the topic, group or message does not exist
│   └── NotSupported       the server does not know the request, or cannot do what it asks for
├── NotStored              no broker stored the message, and none will
├── Unknown                it is not known whether a broker stored the message
└── BufferFull             the memory for messages that wait is used up
"""

from __future__ import annotations

from tallystick.client.wire.codes import ResponseCode


class ClientError(Exception):
    """Base of all errors of the client. `address`: of the server; `code`, `remark`: of its answer."""

    def __init__(
        self, text: str, *, address: str | None = None, code: int | None = None, remark: str | None = None
    ) -> None:
        super().__init__(text)
        self.address = address
        self.code = code
        self.remark = remark


class ConfigurationError(ClientError, ValueError):
    """An argument is wrong. The text names it."""


class ClosedError(ClientError):
    """The client, producer or consumer was closed."""


class ConnectionFailed(ClientError):  # noqa: N818  # the names here are those of results, which `Error` would only repeat
    """There was no connection to `address`, so the request was not sent."""

    def __init__(self, address: str, reason: str) -> None:
        super().__init__(f"{address}: {reason}", address=address)


class NoAnswer(ClientError):  # noqa: N818
    """The request was sent and may have been served, but no answer came from `address`."""

    def __init__(self, address: str, reason: str) -> None:
        super().__init__(f"{address}: {reason}", address=address)


class Timeout(NoAnswer, TimeoutError):  # noqa: N818
    """No answer from `address` came in time."""


class ProtocolError(ClientError):
    """The server does not speak RocketMQ's protocol, or an answer cannot be read."""


class Refused(ClientError):  # noqa: N818
    """The server answered with an error code."""

    def __init__(self, address: str, code: int, remark: str | None) -> None:
        # Remarks of route errors end with a link to RocketMQ's FAQ on a separate line.
        reason = (remark or "no reason given").partition("\nSee http")[0].strip()
        super().__init__(f"{address} refused: {reason} (code {code})", address=address, code=code, remark=remark)


class AccessDenied(Refused):
    """Access control refused the request: the account, its signature, or its permission."""


class Busy(Refused):
    """The server is overloaded or starting. A repetition can succeed."""


class NotFound(Refused):
    """The topic, the group or the message does not exist."""


class NotSupported(Refused):
    """The server does not know the request, or cannot do what it asks for."""


class NotStored(ClientError):  # noqa: N818
    """No broker stored the message, and none will. The cause is the last error."""


class Unknown(ClientError):  # noqa: N818
    """It is not known whether a broker stored the message: a request was sent, and no answer to it came.

    The cause is the last error. `unique_key` identifies the message: a repetition with the same key can be recognised.
    """

    def __init__(self, text: str, unique_key: str, *, address: str | None = None) -> None:
        super().__init__(text, address=address)
        self.unique_key = unique_key


class BufferFull(ClientError):  # noqa: N818
    """The memory for messages that wait to be sent is used up. Wait for `Producer.room`."""


_KINDS: dict[int, type[Refused]] = {
    ResponseCode.SYSTEM_BUSY: Busy,
    ResponseCode.SERVICE_NOT_AVAILABLE: Busy,
    ResponseCode.FLOW_CONTROL: Busy,
    ResponseCode.TOPIC_NOT_EXIST: NotFound,
    ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST: NotFound,
    ResponseCode.QUERY_NOT_FOUND: NotFound,
    ResponseCode.NO_MESSAGE: NotFound,
    ResponseCode.REQUEST_CODE_NOT_SUPPORTED: NotSupported,
    ResponseCode.VERSION_NOT_SUPPORTED: NotSupported,
    ResponseCode.NO_PERMISSION: Refused,
}
_ACCESS = ("AclException", "AuthenticationException", "AuthorizationException")
"""What a remark of access control contains: RocketMQ answers code 1, as for all its errors."""


def refused(address: str, code: int, remark: str | None) -> Refused:
    """Returns the error for an answer with an error code."""
    if code == ResponseCode.SYSTEM_ERROR and remark and any(name in remark for name in _ACCESS):
        return AccessDenied(address, code, remark)
    return _KINDS.get(code, Refused)(address, code, remark)
