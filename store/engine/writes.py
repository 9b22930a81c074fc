"""The puts of a store: single messages and batches that do not come as plain sends of a connection."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from tallystick.store.clock import steady_ms, wall_ms
from tallystick.store.formats.message import Host, Message, MessageBatch, PutResult, PutStatus
from tallystick.store.formats.message_id import encode_message_id

if TYPE_CHECKING:
    from tallystick.store._kernel import Log
    from tallystick.store.engine.admission import Admission
    from tallystick.store.engine.appender import Appender
    from tallystick.store.engine.durability import Durability


class Writes:
    """Appends messages through the appender. Owns the host that records of this store name."""

    def __init__(
        self,
        log: Log,
        admission: Admission,
        appender: Appender,
        durability: Durability,
        store_host: Host,
        *,
        took: Callable[[int, PutStatus], None],
    ) -> None:
        """`took(ms, status)` gets how long each put took, and how it ended."""
        self._log = log
        self._admission = admission
        self._appender = appender
        self._durability = durability
        self._store_host = store_host
        self._took = took

    async def put(self, message: Message) -> PutResult:
        """Appends one message. Returns when it is as durable as the settings and its WAIT property require."""
        begin_ms = steady_ms()
        appended = self._admission.refused() or self._append(message)
        if isinstance(appended, PutResult):
            return appended
        self._appender.kick()
        pos, size, *_ = appended
        status = await self._durability.stored(pos + size, waits=_waits(message.properties))
        self._took(steady_ms() - begin_ms, status)
        return self._appended(status, message, appended)

    async def put_all(self, messages: Sequence[Message], *, makes_room: bool = False) -> list[PutResult]:
        """Appends messages in order, each by itself. Returns when all of them are durable.

        They wait together: if the last one cannot be stored, all have its result, although the first ones may be in the
        log. `makes_room`: see `Admission.refused`.
        """
        refused = self._admission.refused(makes_room=makes_room)
        if refused is not None:
            return [refused] * len(messages)
        appended = [self._append(message) for message in messages]
        self._appender.kick()
        ends = [each[0] + each[1] for each in appended if not isinstance(each, PutResult)]
        status = await self._durability.stored(max(ends), waits=True) if ends else PutStatus.UNKNOWN_ERROR
        return [
            each if isinstance(each, PutResult) else self._appended(status, message, each)
            for message, each in zip(messages, appended, strict=True)
        ]

    def _append(self, message: Message) -> PutResult | tuple[int, int, int, int]:
        """Stages one message: position, size, queue offset, store time."""
        try:
            return self._log.append(
                message.topic.encode(errors="surrogateescape"),
                message.queue_id,
                message.body,
                message.properties.encode(errors="surrogateescape"),
                now_ms=wall_ms(),
                born_timestamp=message.born_timestamp_ms,
                born_host=message.born_host.encode(),
                flag=message.flag,
                sys_flag=message.sys_flag,
                reconsume_times=message.reconsume_times,
                prepared_offset=message.prepared_transaction_offset,
                store_host=None if message.store_host is None else message.store_host.encode(),
            )
        except (ValueError, OSError) as error:
            return self._error(error)

    def _appended(self, status: PutStatus, message: Message, appended: tuple[int, int, int, int]) -> PutResult:
        pos, size, queue_offset, stored_ms = appended
        message_id = encode_message_id(message.store_host or self._store_host, pos)
        return self._result(status, pos, size, queue_offset, message_id, stored_ms)

    async def put_batch(self, batch: MessageBatch) -> PutResult:
        """Appends all messages of a batch, or no message."""
        refused = self._admission.refused()
        if refused is not None:
            return refused
        begin_ms = steady_ms()
        try:
            positions, size, queue_offset, stored_ms = self._log.append_batch(
                batch.topic.encode(errors="surrogateescape"),
                batch.queue_id,
                batch.body,
                batch.properties.encode(errors="surrogateescape"),
                now_ms=wall_ms(),
                born_timestamp=batch.born_timestamp_ms,
                born_host=batch.born_host.encode(),
                sys_flag=batch.sys_flag,
                reconsume_times=batch.reconsume_times,
            )
            end = self._log.staged
        except (ValueError, OSError) as error:
            return self._error(error)
        self._appender.kick()
        status = await self._durability.stored(end, waits=_waits(batch.properties))
        self._took(steady_ms() - begin_ms, status)
        ids = ",".join(encode_message_id(self._store_host, pos) for pos in positions)
        return self._result(status, positions[0], size, queue_offset, ids, stored_ms, len(positions))

    def _result(
        self,
        status: PutStatus,
        pos: int,
        size: int,
        queue_offset: int,
        message_id: str,
        stored_ms: int,
        count: int = 1,
    ) -> PutResult:
        if not status.stored:
            return PutResult(status, detail=self._admission.trouble() or "the log could not be written")
        return PutResult(status, pos, size, queue_offset, message_id, stored_ms, count)

    def _error(self, error: ValueError | OSError) -> PutResult:
        if isinstance(error, OSError):
            return self._admission.no_segment(error)
        return PutResult(PutStatus.MESSAGE_ILLEGAL, detail=str(error))


def _waits(properties: str) -> bool:
    """Whether the sender of a message waits for the disk (`waitStoreMsgOK`, property WAIT)."""
    return not properties.startswith("WAIT\x01false") and "\x02WAIT\x01false" not in properties
