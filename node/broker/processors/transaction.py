"""END_TRANSACTION (37): a producer commits a transaction or rolls it back, at once or after a check.

Clients send it as a one-way request, so only manual requests see an error. "Unknown" (0) changes nothing; the broker
checks the transaction again later.

Source: EndTransactionProcessor of RocketMQ 4.8.0.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tallystick.node.broker.services.transaction_check import read_record
from tallystick.node.broker.tables.topics import HALF_TOPIC
from tallystick.node.remoting.codes import RequestCode, ResponseCode
from tallystick.node.remoting.command import Command, ResponseError, need_int, need_long, need_str
from tallystick.store.formats import properties
from tallystick.store.formats.message import TRANSACTION_COMMIT, TRANSACTION_ROLLBACK
from tallystick.store.formats.record import Record

if TYPE_CHECKING:
    from tallystick.node.broker.context import BrokerContext
    from tallystick.node.remoting.server import Connection, Handler


class TransactionProcessor:
    """Ends transactions."""

    def __init__(self, broker: BrokerContext) -> None:
        self._broker = broker

    def routes(self) -> dict[int, Handler]:
        return {RequestCode.END_TRANSACTION: self.end}

    async def end(self, connection: Connection, command: Command) -> Command | None:
        """Ends one transaction. ResponseError: the half message does not exist, or belongs to another producer
        group."""
        if self._broker.settings.brokerId != 0:
            raise ResponseError(ResponseCode.SLAVE_NOT_AVAILABLE, "a slave does not end transactions")
        decision = need_int(command.ext, "commitOrRollback")
        if decision in (TRANSACTION_COMMIT, TRANSACTION_ROLLBACK):
            await self._broker.transactions.end(self._half(command), commit=decision == TRANSACTION_COMMIT)
        return None if command.is_oneway else command.reply()

    def _half(self, command: Command) -> Record:
        """Returns the half message of the request. Its position, queue offset and producer group must match."""
        ext = command.ext
        pos, offset = need_long(ext, "commitLogOffset"), need_long(ext, "tranStateTableOffset")
        group = need_str(ext, "producerGroup")
        half = read_record(self._broker.store, pos)
        if half is None or half.topic != HALF_TOPIC:
            raise ResponseError(ResponseCode.SYSTEM_ERROR, "find prepared transaction message failed")
        if half.property_table().get(properties.PGROUP) != group:
            raise ResponseError(ResponseCode.SYSTEM_ERROR, "The producer group wrong")
        if half.queue_offset != offset:
            raise ResponseError(ResponseCode.SYSTEM_ERROR, "The transaction state table offset wrong")
        if half.pos != pos:
            raise ResponseError(ResponseCode.SYSTEM_ERROR, "The commit log offset wrong")
        return half
