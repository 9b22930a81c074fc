"""Handler: sends messages, and reports what became of each."""

from __future__ import annotations

import asyncio
import base64
import binascii
from datetime import timedelta
from typing import Any

from tallystick.client import ClientError, ConfigurationError, Message, Producer, SendResult, Unknown
from tallystick.console.api.interface import Answer, Call, Handler
from tallystick.console.api.problems import ProblemError, problem_of

_PARTS = {
    "tag": "tag",
    "keys": "keys",
    "properties": "properties",
    "delayLevel": "delay_level",
    "orderKey": "order_key",
    "queue": "queue",
    "uniqueKey": "unique_key",
}
_NOTHING: dict[str, Any] = {
    "uniqueKey": None,
    "messageId": None,
    "broker": None,
    "queue": None,
    "offset": None,
    "status": None,
    "maybeTwice": False,
    "error": None,
}


async def send_messages(call: Call) -> Any:
    rows = call.body.get("messages")
    messages = [_message(call["topic"], row) for row in ([call.body] if rows is None else rows)]
    if call.dry_run:
        await call.admin.client.route(call["topic"])
        return {"results": [{**_NOTHING, "state": "planned"} for _ in messages]}
    assert call.backend is not None, "the operation needs a role"
    producer = call.backend.producer
    # They begin in their order: the producer keeps it for messages with one order key.
    outcomes = await asyncio.gather(*(_sent(producer, message) for message in messages))
    results = [_stored(each) if isinstance(each, SendResult) else _failed(each) for each in outcomes]
    errors = [each for each in outcomes if not isinstance(each, SendResult)]
    if len(errors) == len(messages):
        problem = problem_of(next((each for each in errors if isinstance(each, Unknown)), errors[0]))
        problem.body["results"] = results
        raise problem
    return Answer({"results": results}, status=207 if errors else 201)


async def _sent(producer: Producer, message: Message) -> SendResult | ClientError:
    try:
        return await producer.send(message)
    except ClientError as error:
        return error


def _message(topic: str, row: dict[str, Any]) -> Message:
    body = row["text"].encode("utf-8", "surrogatepass") if "text" in row else _decoded(row.get("body", ""))
    fields = {python: row[name] for name, python in _PARTS.items() if name in row}
    if "delaySeconds" in row:
        if "delayLevel" in row:
            raise ProblemError("invalid-request", "a message has delayLevel or delaySeconds, not both")
        fields["delay"] = timedelta(seconds=row["delaySeconds"])
    return Message(topic, body, **fields)


def _decoded(text: str) -> bytes:
    try:
        return base64.b64decode(text, validate=True)
    except binascii.Error as error:
        raise ProblemError("invalid-request", f"body is not base64: {error}") from error


def _stored(result: SendResult) -> dict[str, Any]:
    return {
        "state": "stored",
        "uniqueKey": result.unique_key,
        "messageId": result.message_id,
        "broker": result.queue.broker,
        "queue": result.queue.id,
        "offset": result.offset,
        "status": result.status.name.lower(),
        "maybeTwice": result.maybe_twice,
        "error": None,
    }


def _failed(error: ClientError) -> dict[str, Any]:
    is_unknown = isinstance(error, Unknown) and not isinstance(error, ConfigurationError)
    unique_key = error.unique_key if isinstance(error, Unknown) else None
    return {
        **_NOTHING,
        "state": "unknown" if is_unknown else "notStored",
        "uniqueKey": unique_key,
        "error": str(error),
    }


HANDLERS: dict[str, Handler] = {"sendMessages": send_messages}
