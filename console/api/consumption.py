"""Handlers: consumption as a member of a group, and the offsets of groups."""

from __future__ import annotations

import time
from typing import Any

from tallystick.admin.models import OffsetKind, OffsetTarget, json_of
from tallystick.admin.records import message_of
from tallystick.client import Start
from tallystick.console.api.changes import done
from tallystick.console.api.interface import Call, Handler
from tallystick.console.api.receiving import Held

_STARTS = {"earliest": Start.FIRST, "latest": Start.LAST}


async def receive_messages(call: Call) -> Any:
    assert call.backend is not None, "the operation needs a role"
    body = call.body
    receiver = await call.backend.receivers.get(call["group"], body["topic"], _STARTS[body.get("start", "earliest")])
    with call.services.polls.take():
        held = await receiver.receive(
            body.get("max", 1),
            float(body.get("waitSeconds", 0)),
            float(body.get("invisibleSeconds", 60)),
            call.services.stopping,
            call.is_there,
        )
    return [_shown(each) for each in held]


async def acknowledge_messages(call: Call) -> Any:
    assert call.backend is not None, "the operation needs a role"
    receiver = call.backend.receivers.find(call["group"])
    receipts = list(dict.fromkeys(call.body["receipts"]))
    settled = {} if receiver is None else await receiver.settle(receipts, call.body.get("result", "consumed"))
    return [
        {"receipt": receipt, "state": "done" if receipt in settled else "unknown", "error": None}
        for receipt in receipts
    ]


async def reset_offsets(call: Call) -> Any:
    body = call.body
    ((kind, value),) = body["to"].items()
    target = OffsetTarget(OffsetKind(kind), 0 if value is True else value)
    rows = body.get("queues")
    queues = None if rows is None else [(row["broker"], row["queue"]) for row in rows]
    change = await call.admin.offsets.reset(call["group"], body["topic"], target, queues=queues, dry_run=call.dry_run)
    return done(change)


async def clone_offsets(call: Call) -> Any:
    body = call.body
    return done(await call.admin.offsets.clone(call["group"], body["target"], body["topic"], dry_run=call.dry_run))


def _shown(held: Held) -> dict[str, Any]:
    left_s = held.deadline_s - time.monotonic()
    return {
        "receipt": held.receipt,
        "deadlineMs": time.time_ns() // 1_000_000 + int(left_s * 1000),
        "attempts": held.delivery.attempts,
        "message": json_of(message_of(held.delivery)),
    }


HANDLERS: dict[str, Handler] = {
    "receiveMessages": receive_messages,
    "acknowledgeMessages": acknowledge_messages,
    "resetOffsets": reset_offsets,
    "cloneOffsets": clone_offsets,
}
