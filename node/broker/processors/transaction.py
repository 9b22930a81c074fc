"""END_TRANSACTION (37): a producer commits or rolls back, at once or when it was asked.

Clients send it one way: an error is of use only to somebody who tries it by hand. "Unknown" (0) changes nothing; the
transaction is asked about again.

Source: EndTransactionProcessor of RocketMQ 4.8.0.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tallystick.node.broker.topics import HALF_TOPIC
from tallystick.node.broker.transaction_check import read_record
from tallystick.node.remoting.codes import RequestCode, ResponseCode
from tallystick.node.remoting.command import Command, ResponseError, need_int, need_long, need_str
from tallystick.store import properties
from tallystick.store.message import TRANSACTION_COMMIT, TRANSACTION_ROLLBACK
from tallystick.store.record import Record

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
        """One end. ResponseError: there is no such half message, or it is another producer's."""
        if self._broker.settings.brokerId != 0:
            raise ResponseError(ResponseCode.SLAVE_NOT_AVAILABLE, "a slave ends no transactions")
        decision = need_int(command.ext, "commitOrRollback")
        if decision in (TRANSACTION_COMMIT, TRANSACTION_ROLLBACK):
            await self._broker.transactions.end(self._half(command), commit=decision == TRANSACTION_COMMIT)
        return None if command.is_oneway else command.reply()

    def _half(self, command: Command) -> Record:
        """The half message that the request names in three ways, which must agree."""
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
