"""Names the fields of a log record, of an entry in dledger's layout, and where each of them is.

For tools that tell a user which field of a record has wrong bytes. The names are RocketMQ's.
"""

from __future__ import annotations

from typing import NamedTuple

from tallystick.store.formats.message import SysFlag
from tallystick.store.formats.record import MESSAGE_MAGIC_V2

_ENTRY = (
    *(("entry magic", 4), ("entry size", 4), ("entry index", 8), ("entry term", 8), ("entry pos", 8)),
    *(("entry channel", 4), ("entry chainCrc", 4), ("entry bodyCrc", 4), ("entry bodySize", 4)),
)
_HEAD = (
    *(("totalSize", 4), ("magicCode", 4), ("bodyCrc", 4), ("queueId", 4), ("flag", 4), ("queueOffset", 8)),
    *(("physicalOffset", 8), ("sysFlag", 4), ("bornTimestamp", 8)),
)
_SYS_FLAG_AT = 36


class Field(NamedTuple):
    """A field of a record: its name, and its bytes [begin, end) from the record's (or entry's) first byte on."""

    name: str
    begin: int
    end: int


def fields_of(data: bytes, entry_header_bytes: int = 0) -> list[Field]:
    """The fields of the record that `data` begins with, after the header of its entry. Bytes that no field explains,
    because lengths are damaged, are one last field, "rest"."""
    fields: list[Field] = []

    def add(name: str, size: int) -> int:
        """Returns the value of the field, as a number."""
        begin = fields[-1].end if fields else 0
        end = min(len(data), begin + max(size, 0))
        if end > begin:
            fields.append(Field(name, begin, end))
        return int.from_bytes(data[begin:end], "big")

    for name, size in _ENTRY if entry_header_bytes else ():
        add(name, size)
    magic = int.from_bytes(data[entry_header_bytes + 4 : entry_header_bytes + 8], "big", signed=True)
    for name, size in _HEAD:
        add(name, size)
    at = entry_header_bytes + _SYS_FLAG_AT
    sys_flag = int.from_bytes(data[at : at + 4], "big")
    add("bornHost", 20 if sys_flag & SysFlag.BORN_HOST_V6 else 8)
    add("storeTimestamp", 8)
    add("storeHost", 20 if sys_flag & SysFlag.STORE_HOST_V6 else 8)
    add("reconsumeTimes", 4)
    add("preparedTransactionOffset", 8)
    add("body", add("bodyLength", 4))
    add("topic", add("topicLength", 2 if magic == MESSAGE_MAGIC_V2 else 1))
    add("properties", add("propertiesLength", 2))
    add("rest", len(data))
    return fields


def field_at(data: bytes, offset: int, entry_header_bytes: int = 0) -> Field | None:
    """The field with byte `offset` of a record, or of its entry; None: `data` ends before."""
    found = (field for field in fields_of(data, entry_header_bytes) if field.begin <= offset < field.end)
    return next(found, None)
