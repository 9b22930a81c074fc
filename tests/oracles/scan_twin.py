"""The slow twin of `MessageScan`: the whole stretch as bytes, a plain loop, a dict for each message.

Written from the layouts of RocketMQ 4.8.0 and dledger 0.2.2, not from the kernel. Host texts and ids come from the
store's own Python values.
"""

from __future__ import annotations

import struct
import zlib
from dataclasses import dataclass, field
from typing import Any

from tallystick.store.formats.message import Host
from tallystick.store.formats.message_id import encode_message_id
from tallystick.store.formats.record import Record, RecordError

MAGICS = (0xDAA320A7, 0xDAA320AB)
BLANK = 0xCBD43194
FILLER = 0xFFFFFFFF


@dataclass
class Scanned:
    rows: list[dict[str, Any]] = field(default_factory=list)
    records: int = 0
    damage: list[tuple[int, int]] = field(default_factory=list)
    """Position and size; the reasons are the kernel's own words."""


class Bad(Exception):  # noqa: N818
    """No sound item; `step`: where the next one is if its size is right."""

    def __init__(self, step: int | None = None) -> None:
        super().__init__()
        self.step = step


def scan(
    data: bytes,
    *,
    file_start: int,
    file_end: int,
    begin: int,
    header: int = 0,
    check_crc: bool = False,
    source: str = "",
) -> Scanned:
    """`data`: bytes [begin, begin + len(data)) of the log."""
    found = Scanned()
    at = 0
    while at < len(data):
        try:
            size, record = _item(data, at, begin, file_end, header, check_crc)
        except Bad as bad:
            end = _behind(data, at, begin, header, bad.step)
            found.damage.append((begin + at, end - at))
            at = end
            continue
        if record is not None:
            found.records += 1
            found.rows.append(row(record, source))
        at += size
    return found


def _item(data: bytes, at: int, begin: int, file_end: int, header: int, check_crc: bool) -> tuple[int, Record | None]:
    if len(data) - at < 8:
        raise Bad
    first, second = struct.unpack_from(">II", data, at)
    if (first, second) == (0, 0):
        raise Bad
    if second == BLANK or (header and second not in MAGICS and first == FILLER):
        size = first if second == BLANK else second
        if size != file_end - begin - at or size != len(data) - at:
            raise Bad
        return size, None
    if header == 0 or second in MAGICS:
        if second not in MAGICS or not 91 <= first <= len(data) - at:
            raise Bad
        if header == 0 and _is_torn(_record(data[at : at + first], begin + at, False), data[at + first :]):
            raise Bad
        return first, _record(data[at : at + first], begin + at, check_crc)
    if first != 1 or len(data) - at < header or not 0 <= second <= len(data) - at:
        raise Bad
    (pos,), (body_bytes,) = struct.unpack_from(">q", data, at + 24), struct.unpack_from(">i", data, at + 44)
    if pos != begin + at or second != body_bytes + header:
        raise Bad
    if body_bytes == 0:
        return second, None
    body = data[at + header : at + second]
    try:
        if len(body) < 91 or struct.unpack_from(">I", body, 4)[0] not in MAGICS:
            raise Bad
        if struct.unpack_from(">i", body)[0] != len(body):
            raise Bad
        # An entry with a chain CRC has a CRC of its body, too, and one without has none.
        chain, crc = struct.unpack_from(">II", data, at + 36)
        if check_crc and crc != (zlib.crc32(body) if chain else 0):
            raise Bad
        return second, _record(body, begin + at + header, check_crc and not chain)
    except Bad:
        raise Bad(second) from None


def _record(data: bytes, pos: int, check_crc: bool) -> Record:
    try:
        record = Record.decode(data, check_crc=check_crc)
    except (RecordError, ValueError) as error:
        raise Bad(len(data)) from error
    if record.pos != pos:
        raise Bad(len(data))
    return record


def _is_torn(record: Record, behind: bytes) -> bool:
    """Whether the end of the record did not reach the disk: it ends in a zero, and nothing is written behind it."""
    ends_in_zero = record.topic.endswith("\0") or record.properties.endswith("\0")
    return ends_in_zero and bool(behind) and (len(behind) < 8 or not any(behind[:8]))


def _behind(data: bytes, at: int, begin: int, header: int, step: int | None) -> int:
    """Where a reader continues behind the bad bytes at `at`."""
    if step is not None:
        if at + step == len(data):
            return at + step
        if at + step + 8 <= len(data):
            first, second = struct.unpack_from(">II", data, at + step)
            if second in (*MAGICS, BLANK) or (header and first in (FILLER, 1)):
                return at + step
    for place in range(at + 1, len(data)):
        for before in sorted({header, 0}, reverse=True):
            magic = data[place + before + 4 : place + before + 8]
            if len(magic) == 4 and struct.unpack(">I", magic)[0] in MAGICS:
                try:
                    if _item(data, place, begin, -1, header, True)[1] is not None:
                        return place
                except Bad:
                    pass
    return len(data)


def pairs(text: bytes) -> list[tuple[bytes, bytes]]:
    """As String.split has them: empty parts at the end vanish."""
    found = []
    for piece in text.split(b"\2"):
        parts = piece.split(b"\1")
        while parts and not parts[-1]:
            parts.pop()
        if len(parts) == 2 and parts[0]:
            found.append((parts[0], parts[1]))
    return found


def readable(data: bytes) -> str:
    return data.decode("utf-8", "replace")


def row(record: Record, source: str = "") -> dict[str, Any]:
    text = record.properties.encode("utf-8", "surrogateescape")
    raw = dict(pairs(text))
    properties: dict[str, str] = {}
    for name, value in pairs(text):
        properties[readable(name)] = readable(value)
    return {
        "source": source,
        "topic": readable(record.topic.encode("utf-8", "surrogateescape")),
        "queue_id": record.queue_id,
        "queue_offset": record.queue_offset,
        "physical_offset": record.pos,
        "size": record.size,
        "message_id": encode_message_id(record.store_host, record.pos),
        "unique_key": readable(raw[b"UNIQ_KEY"]) if b"UNIQ_KEY" in raw else None,
        "tags": readable(raw[b"TAGS"]) if b"TAGS" in raw else None,
        "keys": [readable(key) for key in raw.get(b"KEYS", b"").split(b" ") if key],
        "properties": list(properties.items()),
        "flag": record.flag,
        "sys_flag": record.sys_flag,
        "born_timestamp_ms": record.born_timestamp_ms,
        "born_host": _host(record.born_host),
        "store_timestamp_ms": record.store_timestamp_ms,
        "store_host": _host(record.store_host),
        "reconsume_times": record.reconsume_times,
        "prepared_transaction_offset": record.prepared_transaction_offset,
        "body_bytes": len(record.body),
        "body": record.body,
    }


def _host(host: Host) -> str:
    return str(host)
