"""Locks of queues: an ordered consumer locks its queues (41) every 20 s, and unlocks them (42) when it stops.

Source: AdminBrokerProcessor of RocketMQ 4.8.0.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tallystick.node.broker.processors.answers import json_answer, objects, read_body, refused, text
from tallystick.node.broker.tables.message_queue import MessageQueue
from tallystick.node.remoting.codes import RequestCode, ResponseCode
from tallystick.node.remoting.command import Command

if TYPE_CHECKING:
    from tallystick.node.broker.context import BrokerContext
    from tallystick.node.broker.tables.clients import Channel
    from tallystick.node.remoting.endpoint import Handler

MAX_QUEUES = 65536  # in one request; RocketMQ has no limit


class LockProcessor:
    """Locks and unlocks queues."""

    def __init__(self, broker: BrokerContext) -> None:
        self._broker = broker

    def routes(self) -> dict[int, Handler]:
        return {RequestCode.LOCK_BATCH_MQ: self.lock, RequestCode.UNLOCK_BATCH_MQ: self.unlock}

    def lock(self, channel: Channel, command: Command) -> Command:
        """41: locks queues for a client for 60 s. Returns those that it locked."""
        group, client_id, queues = _request(command)
        locked = self._broker.locks.try_lock_batch(group, queues, client_id, self._broker.steady_ms())
        return json_answer(command, {"lockOKMQSet": [queue.to_json() for queue in locked]})

    def unlock(self, channel: Channel, command: Command) -> Command | None:
        """42: unlocks the client's queues."""
        group, client_id, queues = _request(command)
        self._broker.locks.unlock_batch(group, queues, client_id)
        return None if command.is_oneway else command.reply()


def _request(command: Command) -> tuple[str, str, list[MessageQueue]]:
    body = read_body(command)
    values = objects(body.get("mqSet"), "mqSet")
    if len(values) > MAX_QUEUES:
        raise refused(ResponseCode.SYSTEM_ERROR, f"mqSet has more than {MAX_QUEUES} queues")
    try:
        queues = [MessageQueue.from_json(value) for value in values]
    except ValueError as error:
        raise refused(ResponseCode.SYSTEM_ERROR, f"mqSet: {error}") from error
    return text(body.get("consumerGroup"), "consumerGroup"), text(body.get("clientId"), "clientId"), queues
