"""QUERY_MESSAGE (12) by key and VIEW_MESSAGE_BY_ID (33) by position, for mqadmin, consoles and clients' `viewMessage`.

The index finds messages by the hash of a key; the client compares the keys. A message id contains the position in the
log at which the record begins. At a position where no record begins, the broker finds no message, whatever the bytes.
A message that has expired by the retention of its topic is not found either.

Source: QueryMessageProcessor of RocketMQ 4.8.0.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tallystick.node.broker.processors.answers import has_expired
from tallystick.node.remoting.codes import RequestCode, ResponseCode
from tallystick.node.remoting.command import Command, need_int, need_long, need_str

if TYPE_CHECKING:
    from tallystick.node.broker.context import BrokerContext
    from tallystick.node.remoting.server import Connection, Handler

UNIQUE_KEY_QUERY = "_UNIQUE_KEY_QUERY"
MAX_BODY = 15 * 1024 * 1024
"""Largest number of bytes of records in one answer, which must fit into a frame. Older records are left out."""


class QueryProcessor:
    """Answers queries from the index and the log."""

    def __init__(self, broker: BrokerContext) -> None:
        self._broker = broker

    def routes(self) -> dict[int, Handler]:
        return {RequestCode.QUERY_MESSAGE: self.query, RequestCode.VIEW_MESSAGE_BY_ID: self.view}

    def query(self, connection: Connection, command: Command) -> Command:
        """Returns the records that have a key with the hash of the given key. Code 22: there is no such record."""
        ext = command.ext
        topic, key, max_count = need_str(ext, "topic"), need_str(ext, "key"), need_int(ext, "maxNum")
        begin_ms, end_ms = need_long(ext, "beginTimestamp"), need_long(ext, "endTimestamp")
        if ext and ext.get(UNIQUE_KEY_QUERY) == "true":
            max_count = self._broker.store.settings.defaultQueryMaxNum
        found = self._broker.store.reads.query(topic, key, max_count, begin_ms, end_ms)
        records = [record for record in found.records if not has_expired(self._broker, record)]
        fields = {
            "indexLastUpdatePhyoffset": str(found.index_last_update_pos),
            "indexLastUpdateTimestamp": str(found.index_last_update_timestamp_ms),
        }
        if not records:
            remark = "can not find message, maybe time range not correct"
            return command.reply(ResponseCode.QUERY_NOT_FOUND, ext=fields, remark=remark)
        return command.reply(ext=fields, body=_joined(records))

    def view(self, connection: Connection, command: Command) -> Command:
        """Returns the record that begins at a position. Code 1: no record begins there."""
        pos = need_long(command.ext, "offset")
        record = self._broker.store.reads.message_at(pos)
        if record is None or has_expired(self._broker, record):
            remark = f"can not find message by the offset, {pos}"
            return command.reply(ResponseCode.SYSTEM_ERROR, remark=remark)
        return command.reply(body=record)


def _joined(records: list[bytes]) -> bytes:
    """Joins as many records as fit into an answer, at least the first."""
    size, taken = 0, 0
    for record in records:
        size += len(record)
        if taken and size > MAX_BODY:
            break
        taken += 1
    return b"".join(records[:taken])
