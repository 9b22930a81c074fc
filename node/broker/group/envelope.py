"""A client's request inside a request between members, and its answer inside that request's answer.

code                        from -> to           ext                        body
31001 FORWARDED_REQUEST     follower -> leader   key, client ("ip:port"),   the client's frame
                                                 user
31002 CLIENT_LEFT           follower -> leader   key, client                -
31003 REQUEST_TO_CLIENT     leader -> follower   client, timeoutMillis      the frame for the client

The answer to a frame that was served has code 0, and the answering frame as its body (none if the client expects no
answer). Any other code says that nothing was done; SERVICE_NOT_AVAILABLE says that the receiver does not lead. The
inner frame keeps its header, flags and language; only its opaque number has no meaning. `user` is the account that the
follower found; it is absent without one.

RELAYED_HEART_BEAT (31004) and AUDIT_LINES (31006) are requests of the follower itself, and are served only inside an
envelope.

Such a request has its own code, so it can be distinguished from a client's before anything else of it is read. It is
never forwarded again: the receiver serves it or refuses it.
"""

from __future__ import annotations

from tallystick.node.remoting.codec import decode, encode
from tallystick.node.remoting.codes import RequestCode, ResponseCode
from tallystick.node.remoting.command import Command, need_str
from tallystick.node.remoting.errors import FrameError, HeaderError
from tallystick.node.remoting.frames import FrameSplitter
from tallystick.store.formats.message import Host

KEY, CLIENT, USER, TIMEOUT_MS = "key", "client", "user", "timeoutMillis"


def forwarded(command: Command, client: Host, key: str) -> Command:
    """A client's request on its way to the leader. HeaderError, FrameError: it is too large for the envelope."""
    ext = {KEY: key, CLIENT: str(client)} | ({USER: command.user} if command.user else {})
    return Command(RequestCode.FORWARDED_REQUEST, ext=ext, body=encode(command))


def left(client: Host, key: str) -> Command:
    """States that a client's connection is closed."""
    return Command(RequestCode.CLIENT_LEFT, ext={KEY: key, CLIENT: str(client)})


def to_client(command: Command, client: Host, timeout_s: float) -> Command:
    """A request of the leader to a client that is connected to another member."""
    ext = {CLIENT: str(client), TIMEOUT_MS: str(int(timeout_s * 1000))}
    return Command(RequestCode.REQUEST_TO_CLIENT, ext=ext, body=encode(command))


def answer(outer: Command, inner: Command | None) -> Command:
    """The answer to an envelope whose content was served. An answer that is too large is replaced by an error."""
    if inner is None:
        return outer.reply()
    try:
        return outer.reply(body=encode(inner))
    except (FrameError, HeaderError) as error:
        return outer.reply(body=encode(inner.reply(ResponseCode.SYSTEM_ERROR, remark=str(error))))


def opened(envelope: Command) -> Command | None:
    """Returns the inner frame; None for an empty body. Raises FrameError or HeaderError if it is not a valid frame."""
    if not envelope.body:
        return None
    frames = FrameSplitter().feed(envelope.body)
    if len(frames) != 1:
        raise FrameError(f"{len(frames)} frames in an envelope")
    return decode(*frames[0])


def client_of(envelope: Command) -> Host:
    """The client of the envelope. Raises ResponseError if it is missing, HeaderError if its address is invalid."""
    ip, _, port = need_str(envelope.ext, CLIENT).rpartition(":")
    host = Host(ip.removeprefix("[").removesuffix("]"), int(port) if port.isdecimal() and len(port) < 6 else 0)
    try:
        host.encode()
    except (OSError, OverflowError) as error:
        raise HeaderError(f"a client {ip}:{port}") from error
    return host
