"""What is fuzzed: functions that take bytes of a stranger. Each raises only for a defect.

A target allows the errors that its documentation names, and checks what must hold of everything that is accepted: it
can be written and read again, and two ways of reading agree.
"""

from __future__ import annotations

import contextlib
import functools
import re
import struct
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from aiohttp.test_utils import make_mocked_request
from multidict import CIMultiDict

from tallystick.node.access.acl_users import AclUser
from tallystick.node.access.addresses import AddressError, AddressPattern
from tallystick.node.access.control import Accounts, DeniedError, judge
from tallystick.node.access.fields import AclError
from tallystick.node.access.plain_acl import dump, parse
from tallystick.node.access.request_table import BROKER, UNKNOWN
from tallystick.node.access.signatures import is_signed, sign
from tallystick.node.broker.sql92 import Sql92Error
from tallystick.node.broker.sql92 import compile as compile_sql
from tallystick.node.http.authentication import foreign, host_name
from tallystick.node.remoting.codec import decode, encode
from tallystick.node.remoting.command import Command
from tallystick.node.remoting.errors import FrameError, HeaderError
from tallystick.node.remoting.frames import FrameSplitter
from tallystick.store import fastjson
from tallystick.store._kernel import Door, Log
from tallystick.store.formats import properties

from .tls import tls

Target = Callable[[bytes], None]
_SECRET = "12345678"
_AS_SECRET = re.compile(rb"(secretKey|password)[\"']?\s*:\s*[\"']?12345678")
_ACCOUNTS = f"""globalWhiteRemoteAddresses: [10.0.0.1]
accounts:
- {{accessKey: producer, secretKey: "{_SECRET}", topicPerms: [T=PUB]}}
- {{accessKey: administrator, secretKey: "{_SECRET}", admin: true}}
users:
- username: alice
  password: "{_SECRET}"
  policies: [{{entries: [{{resource: "Topic:*", actions: [Pub], decision: Allow}}]}}]
"""


def frames(data: bytes) -> None:
    """A stream of frames: pieces of it give the same frames and the same error as the whole."""

    def cut(pieces: list[bytes]) -> tuple[list[Any], str]:
        splitter, found = FrameSplitter(), []
        try:
            for piece in pieces:
                found += splitter.feed(piece)
        except FrameError as error:
            return [*found, *error.frames], "error"
        return found, ""

    size = 1 + (data[0] if data else 0)
    whole = cut([data])
    assert whole == cut([data[at : at + size] for at in range(0, len(data), size)])
    for frame in whole[0]:
        with contextlib.suppress(HeaderError):
            _same(decode(frame.header_type, frame.header, frame.body))


def headers(data: bytes) -> None:
    """A header of either type, selected by the first byte: what is read can be written, and read again."""
    with contextlib.suppress(HeaderError):
        _same(decode(data[0] & 1 if data else 0, data[1:], b""))


def _same(command: Command) -> None:
    splitter = FrameSplitter()
    try:
        written = encode(command)
    except ValueError:
        return  # too large, or a text that the binary header cannot have
    (frame,) = splitter.feed(written)
    again = decode(frame.header_type, frame.header, frame.body)
    assert (again.code, again.flag, again.opaque) == (command.code, command.flag, command.opaque)
    assert (again.ext or {}) == (command.ext or {}), (again.ext, command.ext)


@functools.cache
def _log() -> Log:
    log = Log(
        Door(),
        tempfile.mkdtemp(prefix="tally-fuzz-"),
        segment_bytes=1 << 22,
        max_message_bytes=1 << 16,
        store_host=b"\x7f\0\0\1\0\0\x2a\x9f",
        suffix=b"CLUSTER\x01c\x02",
        region="DefaultRegion",
    )
    log.start(0, 0)
    log.set_hot(True)
    log.set_topic(b"T", 4)
    log.check_access()
    return log


def _frames(data: bytes) -> list[tuple[int, bytes, bytes]]:
    """Frames by their lengths alone: the kernel leaves unknown types of headers to Python."""
    found, at = [], 0
    while len(data) - at >= 8:
        total, mark = struct.unpack_from(">II", data, at)
        header_end, end = at + 8 + (mark & 0xFFFFFF), at + 4 + total
        if header_end > end or end > len(data):
            break
        found.append((mark >> 24, data[at + 8 : header_end], data[header_end:end]))
        at = end
    return found


def _is_signed(header_type: int, header: bytes, body: bytes) -> bool:
    try:
        command = decode(header_type, header, body)
    except HeaderError:
        return False
    return is_signed(_SECRET, command.ext or {}, command.body)


def feed(data: bytes) -> None:
    """The kernel's own reading of a stream, with access control: nothing is stored without a signature."""
    log = _log()
    connection = log.connect(b"\x7f\0\0\1\0\0\0\1")
    log.grant(connection, b"T", b"producer", _SECRET.encode())
    served, _, _ = log.feed(connection, data, 1_700_000_000_000)
    if served:
        assert sum(_is_signed(*frame) for frame in _frames(data)) >= served
    log.disconnect(connection)


@functools.cache
def _rules() -> Accounts:
    return Accounts.of(parse(_ACCOUNTS.encode()))


def signatures(data: bytes) -> None:
    """A request that a stranger made: it is refused, unless it has a right signature or is open to all."""
    try:
        command = decode(data[0] & 1 if data else 0, data[1:], data[-3:])
    except HeaderError:
        return
    rule = BROKER.get(command.code, UNKNOWN)
    if rule.is_open:
        return
    with contextlib.suppress(DeniedError):
        judge(_rules(), rule, "10.0.0.2", command, lambda _: "T")
        assert is_signed(_SECRET, command.ext or {}, command.body)
    if command.ext is None or "AccessKey" not in command.ext:
        sign(command, "administrator", _SECRET)
        judge(_rules(), rule, "10.0.0.2", command, lambda _: "T")


def accounts(data: bytes) -> None:
    """An account file: what is accepted means the same after it was written."""
    try:
        found = parse(data)
    except AclError as error:
        elsewhere = _AS_SECRET.sub(b"", data)  # a name that is the same text may be in the error
        assert _SECRET.encode() in elsewhere or _SECRET not in str(error)
        return
    assert parse(dump(found)).accounts == found.accounts
    Accounts.of(found)


def users(data: bytes) -> None:
    """The JSON of a user with policies."""
    try:
        fields = fastjson.loads(data)
    except fastjson.FastjsonError:
        return
    if not isinstance(fields, dict):
        return
    with contextlib.suppress(AclError):
        user = AclUser.read(fields)
        assert AclUser.read(user.fields()) == user
        user.user()


def addresses(data: bytes) -> None:
    """A pattern of addresses, and a network."""
    text = data.decode("utf-8", "replace")
    for read in (AddressPattern.parse, AddressPattern.parse_network):
        with contextlib.suppress(AddressError):
            for address in ("10.0.0.1", "::1", text):
                read(text).matches(address)


def filters(data: bytes) -> None:
    """A SQL92 filter and properties, separated by a zero byte."""
    text, _, rest = data.decode("utf-8", "replace").partition("\0")
    with contextlib.suppress(Sql92Error):
        compile_sql(text).matches(properties.decode(rest))


def http(data: bytes) -> None:
    """The headers that decide whether a page of another site sent a request: one in each line, Host first."""
    lines = data.decode("latin-1").replace("\r", "").split("\n")
    named = dict(zip(("Host", "Origin", "Sec-Fetch-Site"), lines, strict=False))
    request = make_mocked_request("POST", "/topics", headers=CIMultiDict(named))
    refused = foreign(request, frozenset({"node-1"}))
    name = host_name(lines[0])
    if "." in name and name.rpartition(".")[2].isalpha() and name.endswith((".example", ".com")):
        assert refused, named


TARGETS: dict[str, Target] = {
    target.__name__: target
    for target in (frames, headers, feed, signatures, accounts, users, addresses, filters, http, tls)
}
CORPUS = Path(__file__).with_name("corpus")
