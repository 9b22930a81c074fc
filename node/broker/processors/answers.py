"""What several processors answer with: JSON objects in the dialect of RocketMQ's clients, errors, and whether a record
may be shown."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tallystick.node.remoting.codes import ResponseCode
from tallystick.node.remoting.command import Command, ResponseError
from tallystick.store import fastjson
from tallystick.store.fastjson import FastjsonError
from tallystick.store.formats.record import Record

if TYPE_CHECKING:
    from tallystick.node.broker.context import BrokerContext


def read_body(command: Command) -> dict[Any, Any]:
    """Returns the JSON object in the request's body. ResponseError 1: the body is not a JSON object."""
    try:
        value = fastjson.loads_request(command.body)
    except FastjsonError as error:
        raise ResponseError(ResponseCode.SYSTEM_ERROR, f"the body of request {command.code}: {error}") from error
    if not isinstance(value, dict):
        raise ResponseError(ResponseCode.SYSTEM_ERROR, f"the body of request {command.code} is not a JSON object")
    return value


def objects(value: Any, what: str) -> list[dict[Any, Any]]:
    """Returns `value` if it is a list of objects, an empty list for None. ResponseError 1: it is something else."""
    if value is None:
        return []
    if not isinstance(value, list) or not all(isinstance(item, dict) for item in value):
        raise ResponseError(ResponseCode.SYSTEM_ERROR, f"{what} is not a list of objects")
    return value


def text(value: Any, what: str) -> str:
    """Returns `value` if it is a string that is not empty. ResponseError 1: it is something else."""
    if not isinstance(value, str) or not value:
        raise ResponseError(ResponseCode.SYSTEM_ERROR, f"{what} is missing")
    return value


def json_answer(command: Command, value: Any) -> Command:
    """Returns an answer with code 0 and a body as fastjson writes it: keys may be numbers without quotes, or
    objects."""
    return command.reply(body=fastjson.dumps(value))


def refused(code: int, remark: str) -> ResponseError:
    """Returns an error to raise: the server answers with this code and remark."""
    return ResponseError(code, remark)


def has_expired(broker: BrokerContext, data: bytes) -> bool:
    """Whether a record has expired by the retention of its topic: it is not found, as if its segment were deleted."""
    expired = broker.expiry.offsets
    if not expired.row_names():
        return False
    record = Record.decode(data, check_crc=False)
    return expired.has_expired(record.topic, record.queue_id, record.queue_offset, record.pos)
