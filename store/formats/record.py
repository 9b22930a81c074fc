"""One record of the commit log: a stored message. All integers are big-endian and signed.

 size  field
    4  TOTALSIZE                    bytes of the whole record
    4  MAGICCODE                    DAA320A7, or DAA320AB: as below with two bytes of topic length (RocketMQ 5, topics
                                    above 127 bytes)
    4  BODYCRC                      CRC-32 of the body as stored, without its highest bit
    4  QUEUEID
    4  FLAG                         of the producer, not interpreted
    8  QUEUEOFFSET                  the message's number in its queue; 0 for prepared and rolled-back ones
    8  PHYSICALOFFSET               position of this record in the log
    4  SYSFLAG                      bits 4 and 5 give the sizes of the hosts
    8  BORNTIMESTAMP
 8/20  BORNHOST                     address, then port as an int
    8  STORETIMESTAMP
 8/20  STOREHOST
    4  RECONSUMETIMES
    8  PREPAREDTRANSACTIONOFFSET    of a committed transaction: position of its half message
  4+n  BODY
  1+n  TOPIC                        (2+n with the second magic)
  2+n  PROPERTIES

A segment ends with a filler: 4 bytes TOTALSIZE (the rest of the segment, including the filler), 4 bytes CBD43194, and
then the old bytes of the file.

This module is the Python twin of the kernel's encoder and scanner. Tools and tests use it, and the broker for the few
messages that it reads from the log and stores again. Texts that are not UTF-8 keep their bytes (`surrogateescape`), so
decoding and encoding a record gives the same bytes.

Source: CommitLog.checkMessageAndReturnSize and DefaultAppendMessageCallback of RocketMQ 4.8.0, MessageVersion of 5.x.
"""

from __future__ import annotations

import struct
import zlib
from typing import NamedTuple

from tallystick.store.formats import properties as property_text
from tallystick.store.formats.message import TRANSACTION_COMMIT, Host, SysFlag
from tallystick.store.formats.message_id import encode_message_id

# Fixed: they are on disks.
MESSAGE_MAGIC = 0xDAA320A7 - (1 << 32)
MESSAGE_MAGIC_V2 = 0xDAA320AB - (1 << 32)
SMALLEST_RECORD_BYTES = 91  # all fixed fields, both hosts IPv4, and the three length fields
BLANK_MAGIC = 0xCBD43194 - (1 << 32)
BLANK_BYTES = 8

_HEAD = struct.Struct(">iiiiiqqiq")  # up to BORNTIMESTAMP
_MIDDLE = struct.Struct(">iq")  # RECONSUMETIMES, PREPAREDTRANSACTIONOFFSET
_INT = struct.Struct(">i")
_LONG = struct.Struct(">q")
_SHORT = struct.Struct(">h")
_BYTE = struct.Struct(">b")
_BLANK = struct.Struct(">ii")
assert _HEAD.size == 48, "fixed by every record already on disk"


class RecordError(ValueError):
    """The bytes are not a record. `offset`: where, in bytes from the start of the buffer; `reason`: why."""

    def __init__(self, reason: str, offset: int) -> None:
        super().__init__(f"{reason} at byte {offset}")
        self.reason = reason
        self.offset = offset


class Record(NamedTuple):
    """One stored message. `pos`: its position in the log; `queue_offset`: its number in the queue."""

    topic: str
    queue_id: int
    body: bytes
    properties: str = ""
    flag: int = 0
    sys_flag: int = 0
    queue_offset: int = 0
    pos: int = 0
    born_timestamp_ms: int = 0
    born_host: Host = Host("127.0.0.1", 0)
    store_timestamp_ms: int = 0
    store_host: Host = Host("127.0.0.1", 0)
    reconsume_times: int = 0
    prepared_transaction_offset: int = 0
    magic: int = MESSAGE_MAGIC

    def encode(self) -> bytes:
        """The record's bytes. The bits of sysFlag for the sizes of the hosts are set from the hosts.

        Raises RecordError (offset 0) if topic, properties or a number do not fit their field.
        """
        topic = self.topic.encode("utf-8", "surrogateescape")
        properties = self.properties.encode("utf-8", "surrogateescape")
        born_host, store_host = self.born_host.encode(), self.store_host.encode()
        sys_flag = self.sys_flag & ~(SysFlag.BORN_HOST_V6 | SysFlag.STORE_HOST_V6)
        sys_flag |= SysFlag.BORN_HOST_V6 if len(born_host) == 20 else 0
        sys_flag |= SysFlag.STORE_HOST_V6 if len(store_host) == 20 else 0
        topic_length = _topic_length(self.magic, 0)
        tail = (len(born_host), len(store_host), len(self.body), topic_length.size, len(topic), len(properties))
        size = _HEAD.size + _LONG.size + _MIDDLE.size + _INT.size + _SHORT.size + sum(tail)
        crc = body_crc(self.body)
        try:
            return b"".join(
                (
                    _HEAD.pack(
                        size,
                        self.magic,
                        crc,
                        self.queue_id,
                        self.flag,
                        self.queue_offset,
                        self.pos,
                        sys_flag,
                        self.born_timestamp_ms,
                    ),
                    born_host,
                    _LONG.pack(self.store_timestamp_ms),
                    store_host,
                    _MIDDLE.pack(self.reconsume_times, self.prepared_transaction_offset),
                    _INT.pack(len(self.body)),
                    self.body,
                    topic_length.pack(len(topic)),
                    topic,
                    _SHORT.pack(len(properties)),
                    properties,
                )
            )
        except struct.error as error:
            raise RecordError(f"a field does not fit: {error}", 0) from error

    @classmethod
    def decode(cls, buffer: bytes | bytearray | memoryview, offset: int = 0, *, check_crc: bool = True) -> Record:
        """The record at `offset` of `buffer`. The next record begins `size` bytes later; nothing behind it is read.

        Raises RecordError if the magic is unknown (as that of a filler, see `filler_bytes`), the record is torn, its
        lengths do not add up to TOTALSIZE, or (with `check_crc`) the CRC of the body does not match.
        """
        if len(buffer) - offset < _HEAD.size:
            raise RecordError("torn record", offset)
        size, magic, crc, queue_id, flag, queue_offset, pos, sys_flag, born_ms = _HEAD.unpack_from(buffer, offset)
        topic_length = _topic_length(magic, offset + 4)
        if size < _HEAD.size or size > len(buffer) - offset:
            raise RecordError(f"a record of {size} bytes where {len(buffer) - offset} are left", offset)
        reader = _Reader(memoryview(buffer)[: offset + size], offset + _HEAD.size)
        born_host = reader.host(bool(sys_flag & SysFlag.BORN_HOST_V6))
        (store_ms,) = reader.unpack(_LONG)
        store_host = reader.host(bool(sys_flag & SysFlag.STORE_HOST_V6))
        reconsume_times, prepared = reader.unpack(_MIDDLE)
        body_at = reader.at + _INT.size
        body = reader.counted(_INT)
        topic = reader.counted(topic_length)
        properties = reader.counted(_SHORT)
        if reader.at != offset + size:
            raise RecordError(f"the record's fields take {reader.at - offset} bytes, its size says {size}", offset)
        # RocketMQ does not check the CRC of an empty body.
        if check_crc and body and body_crc(body) != crc:
            raise RecordError(f"the body's CRC is {body_crc(body):#x}, the record says {crc:#x}", body_at)
        return cls(
            topic.decode("utf-8", "surrogateescape"),
            queue_id,
            body,
            properties.decode("utf-8", "surrogateescape"),
            flag,
            sys_flag,
            queue_offset,
            pos,
            born_ms,
            born_host,
            store_ms,
            store_host,
            reconsume_times,
            prepared,
            magic,
        )

    @property
    def size(self) -> int:
        """Bytes of the encoded record."""
        return (
            _HEAD.size
            + (20 if ":" in self.born_host.ip else 8)
            + _LONG.size
            + (20 if ":" in self.store_host.ip else 8)
            + _MIDDLE.size
            + _INT.size
            + len(self.body)
            + _topic_length(self.magic, 0).size
            + len(self.topic.encode("utf-8", "surrogateescape"))
            + _SHORT.size
            + len(self.properties.encode("utf-8", "surrogateescape"))
        )

    @property
    def message_id(self) -> str:
        """The offset message id: store host and position."""
        return encode_message_id(self.store_host, self.pos)

    def property_table(self) -> dict[str, str]:
        """The properties, decoded."""
        return property_text.decode(self.properties)


def body_crc(body: bytes | memoryview) -> int:
    """BODYCRC of a body: its CRC-32 (zlib's) without the sign bit."""
    return zlib.crc32(body) & 0x7FFFFFFF


def store_timestamp(record: bytes) -> int:
    """Store time (ms) of a complete record, without decoding the rest."""
    # It follows the born host, whose size is given by a bit of sysFlag (its last byte is at 39).
    at = 68 if record[39] & SysFlag.BORN_HOST_V6 else 56
    return int.from_bytes(record[at : at + 8], "big")


def without_positions(record: bytes) -> bytes:
    """The bytes of a complete record with zeros in place of PHYSICALOFFSET, and of PREPAREDTRANSACTIONOFFSET if it ends
    a transaction. Apart from these, a record is the same in two logs."""
    masked = bytearray(record)
    masked[28:36] = bytes(8)
    flag = int.from_bytes(record[36:40], "big")
    if flag & TRANSACTION_COMMIT:  # of TRANSACTION_ROLLBACK as well
        hosts = sum(20 if flag & bit else 8 for bit in (SysFlag.BORN_HOST_V6, SysFlag.STORE_HOST_V6))
        prepared_at = _HEAD.size + hosts + _LONG.size + _INT.size
        masked[prepared_at : prepared_at + 8] = bytes(8)
    return bytes(masked)


def filler_bytes(buffer: bytes | bytearray | memoryview, offset: int = 0) -> int | None:
    """The size of the filler at `offset`, up to the segment's end; None if there is no filler."""
    if len(buffer) - offset < BLANK_BYTES:
        return None
    size, magic = _BLANK.unpack_from(buffer, offset)
    return size if magic == BLANK_MAGIC else None


def encode_filler(size: int) -> bytes:
    """The 8 bytes of a filler in a segment with `size` bytes left."""
    return _BLANK.pack(size, BLANK_MAGIC)


class _Reader:
    """Reads the fields in order, never behind the record's end."""

    def __init__(self, data: memoryview, at: int) -> None:
        self.data = data
        self.at = at

    def take(self, size: int) -> memoryview:
        if size < 0 or size > len(self.data) - self.at:
            raise RecordError(f"a field of {size} bytes where {len(self.data) - self.at} are left", self.at)
        part = self.data[self.at : self.at + size]
        self.at += size
        return part

    def unpack(self, layout: struct.Struct) -> tuple[int, ...]:
        return layout.unpack(self.take(layout.size))

    def counted(self, length: struct.Struct) -> bytes:
        (size,) = self.unpack(length)
        return bytes(self.take(size))

    def host(self, v6: bool) -> Host:
        return Host.decode(bytes(self.take(20 if v6 else 8)))


def _topic_length(magic: int, offset: int) -> struct.Struct:
    if magic == MESSAGE_MAGIC:
        return _BYTE
    if magic == MESSAGE_MAGIC_V2:
        return _SHORT
    raise RecordError(f"no record has the magic {magic & 0xFFFFFFFF:08x}", offset)
