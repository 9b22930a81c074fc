"""Requests that change something are for a group's leader: a follower refuses them before anything is read of them.

They are answered SERVICE_NOT_AVAILABLE (14), with which a producer of RocketMQ tries another broker, and asks the name
server before its next send. What comes one way is dropped: its client will say it again, to whom it finds then.

Source: the codes on which DefaultMQProducerImpl of RocketMQ 4.8.0 tries again (1, 14, 16, 17, 204, 205).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from tallystick.node.broker.processors.sending import region
from tallystick.node.remoting.codes import RequestCode, ResponseCode
from tallystick.node.remoting.command import Command

if TYPE_CHECKING:
    from tallystick.node.broker.context import BrokerContext
    from tallystick.node.remoting.endpoint import Handler

CHANGING = frozenset(
    {
        RequestCode.SEND_MESSAGE,
        RequestCode.SEND_MESSAGE_V2,
        RequestCode.SEND_BATCH_MESSAGE,
        RequestCode.SEND_REPLY_MESSAGE,
        RequestCode.SEND_REPLY_MESSAGE_V2,
        RequestCode.CONSUMER_SEND_MSG_BACK,
        RequestCode.END_TRANSACTION,
        RequestCode.UPDATE_CONSUMER_OFFSET,
        RequestCode.CLONE_GROUP_OFFSET,
        RequestCode.INVOKE_BROKER_TO_RESET_OFFSET,
        RequestCode.UPDATE_AND_CREATE_TOPIC,
        RequestCode.DELETE_TOPIC_IN_BROKER,
        RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP,
        RequestCode.DELETE_SUBSCRIPTIONGROUP,
        RequestCode.RESUME_CHECK_HALF_MESSAGE,
        RequestCode.LOCK_BATCH_MQ,  # two members that grant locks would give one queue to two consumers
    }
)


def leader_only(
    routes: dict[int, Handler], broker: BrokerContext, refusal: Callable[[], str | None]
) -> dict[int, Handler]:
    """`routes`, with a look at `refusal` before each request in `CHANGING`."""

    def guarded(handler: Handler) -> Handler:
        def handle(connection: Any, command: Command) -> Any:
            reason = refusal()
            if reason is None:
                return handler(connection, command)
            if command.is_oneway:
                return None
            # The fields of a send's answer: without any, a 4.8 client fails on a null map.
            return command.reply(ResponseCode.SERVICE_NOT_AVAILABLE, ext=region(broker), remark=reason)

        return handle

    return {code: guarded(handler) if code in CHANGING else handler for code, handler in routes.items()}
