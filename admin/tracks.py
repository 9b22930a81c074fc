"""What became of a message: which groups consumed it, and the steps that clients recorded in the trace topic.

Source of the records: TraceDataEncoder of RocketMQ 4.8.0 and 5.5.0. Of the consumption: DefaultMQAdminExtImpl,
messageTrackDetail.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from tallystick.admin.consumption import Online, online, progress_of_group
from tallystick.admin.models import Consumption, Message, MessageSummary, Subscription, TraceStep, Track
from tallystick.admin.names import DEAD_LETTER_PREFIX, RETRY_PREFIX
from tallystick.admin.servers import Place, Question
from tallystick.admin.topic_tables import consumer_groups_of
from tallystick.client import Stored
from tallystick.client.transport.routes import Queue
from tallystick.client.wire import properties as names

_RECORD, _FIELD = "\x02", "\x01"


async def tracks_of(question: Question, places: Mapping[str, Place], message: Message) -> list[Track]:
    """Returns what each group that reads the topic did with a message. `places`: brokers by name. ClientError."""
    summary = message.summary
    place = places[summary.broker]
    groups = sorted(await consumer_groups_of(question, place, summary.topic))
    states = await question.each(groups, lambda group: _track(question, places, place, summary, group))
    return [states.get(group) or Track(group, Consumption.UNKNOWN, "it cannot be read") for group in groups]


async def _track(
    question: Question, places: Mapping[str, Place], place: Place, summary: MessageSummary, group: str
) -> Track:
    members = await online(question, places.values(), group)
    progress = await progress_of_group(question, place, group, summary.topic)
    queue = Queue(summary.topic, summary.broker, summary.queue)
    known = progress.queues.get(queue)
    offset = None if known is None else known.consumer_offset
    return judge(group, summary, members, offset)


def judge(group: str, summary: MessageSummary, members: Online, offset: int | None) -> Track:
    """Returns what a group did with a message. `offset`: the group's in the message's queue; None: it has none."""
    subscription = members.topics.get(summary.topic)
    if members.mode == "broadcasting":
        return Track(group, Consumption.UNKNOWN, "each member of a broadcast keeps its own offsets")
    if offset is not None and offset > summary.offset:
        if subscription is not None and not _matches(subscription, summary.tag):
            return Track(group, Consumption.FILTERED, f"the group subscribes to {subscription.expression}")
        return Track(group, Consumption.CONSUMED, f"the group's offset is {offset}")
    if not members.connections:
        return Track(group, Consumption.OFFLINE, f"no member is connected, and the group's offset is {offset or 0}")
    if members.is_pull:
        return Track(group, Consumption.PULLED, "the group's members keep their offsets themselves")
    return Track(group, Consumption.NOT_CONSUMED, f"the group's offset is {offset or 0}")


def _matches(subscription: Subscription, tag: str) -> bool:
    if subscription.kind != "TAG":
        return True  # only a broker evaluates SQL
    tags = {each.strip() for each in subscription.expression.split("||")}
    return bool(tags & {"*", ""}) or tag in tags


# --- the trace ---


def stored_steps(message: Message) -> list[TraceStep]:
    """Returns the steps that the message itself shows."""
    summary, properties = message.summary, message.properties
    steps = [TraceStep("stored", summary.stored_ms, None, summary.born_host, "", True, f"in {summary.topic}")]
    if properties.get(names.ORIGIN_MESSAGE_ID):
        kind = "deadLetter" if summary.topic.startswith(DEAD_LETTER_PREFIX) else "sentBack"
        group = summary.topic.removeprefix(DEAD_LETTER_PREFIX).removeprefix(RETRY_PREFIX)
        origin = properties[names.ORIGIN_MESSAGE_ID]
        steps.append(TraceStep(kind, summary.stored_ms, None, summary.born_host, group, None, f"copy of {origin}"))
    return steps


def trace_steps(record: Stored, unique_key: str) -> Iterator[TraceStep]:
    """Returns the steps of one message in a message of the trace topic, which has those of many. Lines that cannot be
    read are left out."""
    client = str(record.born_host)
    begun: dict[str, TraceStep] = {}
    for line in record.body.decode("utf-8", "replace").split(_RECORD):
        fields = line.split(_FIELD)
        step = _step(fields, unique_key, client, begun)
        if step is not None:
            yield step


def _step(fields: list[str], key: str, client: str, begun: dict[str, TraceStep]) -> TraceStep | None:
    """`begun`: the deliveries that this message of the trace topic had so far, by request."""
    kind = fields[0]
    try:
        if kind == "Pub" and fields[5] == key:
            success = fields[{13: 12, 14: 13}.get(len(fields), 13)] == "true"
            if len(fields) > 14 and fields[14]:
                client = fields[14]
            return TraceStep("sent", int(fields[1]), int(fields[10]), client, fields[3], success, f"to {fields[8]}")
        if kind == "SubBefore" and fields[5] == key:
            client = fields[8] if len(fields) > 8 and fields[8] else client
            detail = f"attempt {int(fields[6]) + 1}"
            begun[fields[4]] = TraceStep("delivered", int(fields[1]), None, client, fields[3], None, detail)
            return begun[fields[4]]
        if kind == "SubAfter" and fields[2] == key:
            success = fields[4] == "true"
            began = begun.get(fields[1])
            at_ms = int(fields[7]) if len(fields) > 7 and fields[7].isdecimal() else began.at_ms if began else 0
            group = fields[8] if len(fields) > 8 else began.group if began else ""
            cost_ms = int(fields[3])
            if began and not (len(fields) > 7 and fields[7].isdecimal()):
                at_ms += cost_ms
            name = "consumed" if success else "failed"
            return TraceStep(name, at_ms, cost_ms, began.client if began else client, group, success)
        if kind == "EndTransaction" and fields[5] == key:
            detail = fields[12] if len(fields) > 12 else ""
            return TraceStep("transactionEnded", int(fields[1]), None, client, fields[3], None, detail)
    except (IndexError, ValueError):
        return None
    return None
