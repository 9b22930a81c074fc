"""The state of this node (31007), and changes of its group (31008): what HTTP has as well, for tools that speak only
remoting. So one address, one certificate and one account are enough for all of administration.

A change is sent to the leader. Answers have a JSON object as the body; errors are INVALID_PARAMETER, ILLEGAL_OPERATION
(the group cannot make the change, or not now) and SERVICE_NOT_AVAILABLE (the outcome is unknown).
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, cast

from tallystick.node.broker.processors.answers import refused
from tallystick.node.broker.services.group_changes import GroupChangeError, Outcome, change_group, group_json
from tallystick.node.remoting.codes import RequestCode, ResponseCode
from tallystick.node.remoting.command import Command, need_str

if TYPE_CHECKING:
    from tallystick.node.broker.context import BrokerContext
    from tallystick.node.broker.group.group_role import BrokerGroup
    from tallystick.node.broker.tables.clients import Channel
    from tallystick.node.remoting.endpoint import Handler

_CODES = {
    Outcome.INVALID: ResponseCode.INVALID_PARAMETER,
    Outcome.REFUSED: ResponseCode.ILLEGAL_OPERATION,
    Outcome.UNKNOWN: ResponseCode.SERVICE_NOT_AVAILABLE,
}
_FIELDS = ("target", "member", "role")


class DescribingProcessor:
    """Serves tallystick's own requests of administrators."""

    def __init__(self, broker: BrokerContext) -> None:
        self._broker = broker

    def routes(self) -> dict[int, Handler]:
        return {RequestCode.DESCRIBE_NODE: self.describe, RequestCode.CHANGE_GROUP: self.change}

    def describe(self, channel: Channel, command: Command) -> Command:
        """31007: returns `node`, the body of GET /node, and `group`, that of GET /group; null: there is none."""
        group = self._group()
        body = {"node": self._broker.describe(), "group": None if group is None else group_json(group)}
        return command.reply(body=json.dumps(body).encode())

    async def change(self, channel: Channel, command: Command) -> Command:
        """31008: changes the group. `action`: transfer, add or remove; `target`, `member`, `role`: see `changes`."""
        ext, group = command.ext or {}, self._group()
        action = need_str(ext, "action")
        if group is None:
            raise refused(ResponseCode.ILLEGAL_OPERATION, "this broker is not in a replicated group")
        try:
            answer = await change_group(group, action, {field: ext[field] for field in _FIELDS if field in ext})
        except GroupChangeError as error:
            raise refused(_CODES[error.outcome], str(error)) from error
        return command.reply(body=json.dumps(answer).encode())

    def _group(self) -> BrokerGroup | None:
        return cast("BrokerGroup | None", self._broker.group)
