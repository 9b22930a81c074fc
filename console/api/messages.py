"""Handlers: messages that are stored, how they are sent again, dead letters, and offsets."""

from __future__ import annotations

from typing import Any

from tallystick.admin.models import Page
from tallystick.console.api.interface import Call, Handler
from tallystick.console.api.problems import ProblemError


async def search_messages(call: Call) -> Any:
    messages, topic = call.admin.messages, call["topic"]
    given = [name for name in ("key", "uniqueKey", "begin", "end") if call[name] is not None]
    if given == ["key"]:
        return Page(await messages.by_key(topic, call["key"], call["limit"]))
    if given == ["uniqueKey"]:
        return Page(await messages.by_unique_key(topic, call["uniqueKey"]))
    if given != ["begin", "end"]:
        raise ProblemError("invalid-request", "give begin and end, or key, or uniqueKey")
    return await messages.search(topic, call["begin"], call["end"], cursor=call["cursor"], limit=call["limit"])


async def get_message(call: Call) -> Any:
    return await call.admin.messages.get(call["id"])


async def get_trace(call: Call) -> Any:
    return await call.admin.messages.trace(await call.admin.messages.get(call["id"]))


async def list_tracks(call: Call) -> Any:
    return await call.admin.messages.tracks(await call.admin.messages.get(call["id"]))


async def resend_message(call: Call) -> Any:
    messages = call.admin.messages
    message = await messages.get(call["id"])
    return await messages.resend(message, call.body["group"], call.body.get("clientId"), dry_run=call.dry_run)


async def list_dead_letter_groups(call: Call) -> Any:
    return [each._asdict() for each in await call.admin.dead_letters.groups()]


async def list_dead_letters(call: Call) -> Any:
    return await call.admin.dead_letters.list(call["group"], cursor=call["cursor"], limit=call["limit"])


async def resend_dead_letters(call: Call) -> Any:
    return await call.admin.dead_letters.resend(call["group"], call.body["ids"], dry_run=call.dry_run)


HANDLERS: dict[str, Handler] = {
    "searchMessages": search_messages,
    "getMessage": get_message,
    "getTrace": get_trace,
    "listTracks": list_tracks,
    "resendMessage": resend_message,
    "listDeadLetterGroups": list_dead_letter_groups,
    "listDeadLetters": list_dead_letters,
    "resendDeadLetters": resend_dead_letters,
}
