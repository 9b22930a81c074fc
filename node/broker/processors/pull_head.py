"""The head of the answer to a pull: frame lengths and header, made from a template.

Every answer to a pull has the same four fields. So this module formats a template instead of using the general
encoder, which needs a dict, its JSON and two copies. The result is byte for byte that of `codec.encode_head`.

Source: PullMessageResponseHeader of RocketMQ 4.8.0.
"""

from __future__ import annotations

import struct

from tallystick.node.remoting.command import FLAG_RESPONSE, VERSION, HeaderType
from tallystick.store.formats.message import GetStatus

_JSON = (
    b'{"code":%%d,"extFields":{"suggestWhichBrokerId":"%%d","nextBeginOffset":"%%d","minOffset":"%%d","maxOffset":"%%d"},'
    b'"flag":%d,"language":"JAVA","opaque":%%d,"remark":"%%s","serializeTypeCurrentRPC":"JSON","version":%d}'
) % (FLAG_RESPONSE, VERSION)
_MARKS = struct.Struct(">II")
_BINARY = struct.Struct(">hBhiii")
_INT = struct.Struct(">i")
_REMARKS = {status: status.name.encode() for status in GetStatus}
_FIELDS = tuple(
    len(name).to_bytes(2, "big") + name
    for name in (b"suggestWhichBrokerId", b"nextBeginOffset", b"minOffset", b"maxOffset")
)
_ROCKETMQ_MARK = int(HeaderType.ROCKETMQ) << 24


def pull_head(
    header_type: HeaderType,
    code: int,
    opaque: int,
    status: GetStatus,
    suggested_broker_id: int,
    next_begin_offset: int,
    min_offset: int,
    max_offset: int,
    body_bytes: int,
) -> bytes:
    """Returns the frame before its body of `body_bytes`. The caller checks that the frame is within the limit."""
    if header_type == 0:
        header = _JSON % (
            code,
            suggested_broker_id,
            next_begin_offset,
            min_offset,
            max_offset,
            opaque,
            _REMARKS[status],
        )
        return _MARKS.pack(4 + len(header) + body_bytes, len(header)) + header
    fields: list[bytes] = []
    for name, number in zip(_FIELDS, (suggested_broker_id, next_begin_offset, min_offset, max_offset), strict=True):
        value = b"%d" % number
        fields += (name, _INT.pack(len(value)), value)
    ext, remark = b"".join(fields), _REMARKS[status]
    fixed = _BINARY.pack(code, 0, VERSION, opaque, FLAG_RESPONSE, len(remark))
    header = b"".join((fixed, remark, _INT.pack(len(ext)), ext))
    return _MARKS.pack(4 + len(header) + body_bytes, _ROCKETMQ_MARK | len(header)) + header
