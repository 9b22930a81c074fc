"""Bodies of requests and answers as JSON objects, in the dialect of RocketMQ's clients."""

from __future__ import annotations

from typing import Any

from tallystick.node.remoting.codes import ResponseCode
from tallystick.node.remoting.command import Command, ResponseError
from tallystick.store import fastjson
from tallystick.store.fastjson import FastjsonError


def read_body(command: Command) -> dict[Any, Any]:
    """The object in the request's body. ResponseError 1: there is none."""
    try:
        value = fastjson.loads(command.body)
    except FastjsonError as error:
        raise ResponseError(ResponseCode.SYSTEM_ERROR, f"the body of request {command.code}: {error}") from error
    if not isinstance(value, dict):
        raise ResponseError(ResponseCode.SYSTEM_ERROR, f"the body of request {command.code} is no JSON object")
    return value


def objects(value: Any, what: str) -> list[dict[Any, Any]]:
    """`value` as a list of objects; None is an empty one. ResponseError 1: it is something else."""
    if value is None:
        return []
    if not isinstance(value, list) or not all(isinstance(item, dict) for item in value):
        raise ResponseError(ResponseCode.SYSTEM_ERROR, f"{what} is no list of objects")
    return value


def text(value: Any, what: str) -> str:
    """`value` as text that is not empty. ResponseError 1: it is something else."""
    if not isinstance(value, str) or not value:
        raise ResponseError(ResponseCode.SYSTEM_ERROR, f"{what} is missing")
    return value


def json_answer(command: Command, value: Any) -> Command:
    """Success, with a body as fastjson writes it: number keys bare, object keys in the key's place."""
    return command.reply(body=fastjson.dumps(value))


def refused(code: int, remark: str) -> ResponseError:
    """To be raised: the server answers with it."""
    return ResponseError(code, remark)
