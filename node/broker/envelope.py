"""A client's request inside of a request between members, and its answer inside of that one's answer.

code                        from -> to           ext                        body
31001 FORWARDED_REQUEST     follower -> leader   key, client ("ip:port")    the client's frame
31002 CLIENT_LEFT           follower -> leader   key, client                -
31003 REQUEST_TO_CLIENT     leader -> follower   client, timeoutMillis      the frame for the client

The answer to a frame that was served has code 0 and the frame that answers it as its body (none: nobody waits for
one). Any other code says that nothing was done: SERVICE_NOT_AVAILABLE, the receiver does not lead. A frame inside keeps
header, flags and language as they came; only its opaque number means nothing.

Such a request has a code of its own, so it can be told from a client's before anything else is read of it. It is
never passed on: who gets one serves it or refuses it.
"""

from __future__ import annotations

from tallystick.node.remoting.codec import decode, encode
from tallystick.node.remoting.codes import RequestCode, ResponseCode
from tallystick.node.remoting.command import Command, need_str
from tallystick.node.remoting.errors import FrameError, HeaderError
from tallystick.node.remoting.frames import FrameSplitter
from tallystick.store.message import Host

KEY, CLIENT, TIMEOUT_MS = "key", "client", "timeoutMillis"


def forwarded(command: Command, client: Host, key: str) -> Command:
    """A client's request on its way to the leader. HeaderError, FrameError: it is too large to have one more around."""
    return Command(RequestCode.FORWARDED_REQUEST, ext={KEY: key, CLIENT: str(client)}, body=encode(command))


def left(client: Host, key: str) -> Command:
    """A client's connection is gone."""
    return Command(RequestCode.CLIENT_LEFT, ext={KEY: key, CLIENT: str(client)})


def to_client(command: Command, client: Host, timeout_s: float) -> Command:
    """A request of the leader's to a client that another member has the connection of."""
    ext = {CLIENT: str(client), TIMEOUT_MS: str(int(timeout_s * 1000))}
    return Command(RequestCode.REQUEST_TO_CLIENT, ext=ext, body=encode(command))


def answer(outer: Command, inner: Command | None) -> Command:
    """The answer to an envelope whose content was served. One that is too large for it is replaced by an error."""
    if inner is None:
        return outer.reply()
    try:
        return outer.reply(body=encode(inner))
    except (FrameError, HeaderError) as error:
        return outer.reply(body=encode(inner.reply(ResponseCode.SYSTEM_ERROR, remark=str(error))))


def opened(envelope: Command) -> Command | None:
    """What is inside; None: nothing. FrameError, HeaderError: no single frame."""
    if not envelope.body:
        return None
    frames = FrameSplitter().feed(envelope.body)
    if len(frames) != 1:
        raise FrameError(f"{len(frames)} frames in an envelope")
    return decode(*frames[0])


def client_of(envelope: Command) -> Host:
    """Whom it is about. ResponseError: it does not say; HeaderError: that is no address."""
    ip, _, port = need_str(envelope.ext, CLIENT).rpartition(":")
    host = Host(ip.removeprefix("[").removesuffix("]"), int(port) if port.isdecimal() and len(port) < 6 else 0)
    try:
        host.encode()
    except (OSError, OverflowError) as error:
        raise HeaderError(f"a client {ip}:{port}") from error
    return host
