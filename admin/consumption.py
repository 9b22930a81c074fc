"""What groups have consumed, and who their members are, as the brokers' answers say.

Source: ConsumeStats, QueueTimeSpan, ConsumerConnection, ConsumerRunningInfo of RocketMQ 4.8.0.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from tallystick.admin.models import Connection, Disagreement, Subscription
from tallystick.admin.servers import Place, Question
from tallystick.client import ProtocolError
from tallystick.client.core.errors import refused
from tallystick.client.transport.routes import Queue
from tallystick.client.wire import fastjson
from tallystick.client.wire.codes import RequestCode, ResponseCode

_VERSIONS = {
    **{213: "4.0.0", 317: "4.5.2", 333: "4.6.0", 353: "4.7.0", 373: "4.8.0", 393: "4.9.0", 401: "4.9.4"},
    **{413: "5.0.0", 433: "5.1.0", 453: "5.2.0", 473: "5.3.0", 479: "5.3.3"},
}
"""Releases of RocketMQ by the version of their protocol."""


def version_name(number: int) -> str:
    """Returns the release of RocketMQ with a version of the protocol, or the newest one before it."""
    known = [each for each in _VERSIONS if each <= number]
    if not known:
        return str(number)
    newest = max(known)
    return _VERSIONS[newest] + ("" if newest == number else "+")


def queue_table(table: Mapping[Any, Any]) -> dict[Queue, Any]:
    """Returns a table by queue. ProtocolError: a key is not a queue."""
    try:
        return {
            Queue(str(key["topic"]), str(key["brokerName"]), int(key["queueId"])): value
            for key, value in ((_fields(key), value) for key, value in table.items())
        }
    except (ValueError, KeyError, TypeError) as error:
        raise ProtocolError(f"a table of queues cannot be read: {type(error).__name__}: {error}") from error


def _fields(key: Any) -> Mapping[str, Any]:
    return fastjson.loads(key) if isinstance(key, str) else key  # type: ignore[no-any-return]


# --- progress ---


class Progress(NamedTuple):
    """How far a group is in one queue. `last_ms`: when the message before its offset was stored; 0: unknown."""

    broker_offset: int
    consumer_offset: int
    last_ms: int

    @property
    def lag(self) -> int:
        """Messages that are not consumed."""
        return max(0, self.broker_offset - self.consumer_offset)


@dataclass(slots=True)
class GroupProgress:
    """How far a group is at one broker, and its messages per second, by topic; "": those of several topics."""

    queues: dict[Queue, Progress] = field(default_factory=dict)
    rates: dict[str, float] = field(default_factory=dict)

    @property
    def rate(self) -> float:
        """Messages per second of all topics."""
        return sum(self.rates.values())

    @property
    def lag(self) -> int:
        """Messages that are not consumed."""
        return sum(each.lag for each in self.queues.values())

    def add(self, other: GroupProgress) -> None:
        """Adds what another broker says."""
        self.queues |= other.queues
        for topic, rate in other.rates.items():
            self.rates[topic] = self.rates.get(topic, 0.0) + rate


async def progress_of_groups(question: Question, place: Place) -> dict[str, GroupProgress]:
    """Returns the progress of all groups at a broker: one request. ClientError."""
    body = await question.table(place, RequestCode.GET_BROKER_CONSUME_STATS, {"isOrder": "false"})
    found: dict[str, GroupProgress] = defaultdict(GroupProgress)
    try:
        for groups in body.get("consumeStatsList") or ():
            for name, rows in groups.items():
                for row in rows or ():
                    found[name].add(_progress(row))
    except (AttributeError, TypeError) as error:
        raise ProtocolError(f"the progress of groups at {place} cannot be read: {error}") from error
    return found


async def progress_of_group(question: Question, place: Place, group: str, topic: str = "") -> GroupProgress:
    """Returns the progress of one group at a broker, in one topic or in all. ClientError."""
    ext = {"consumerGroup": group, **({"topic": topic} if topic else {})}
    return _progress(await question.table(place, RequestCode.GET_CONSUME_STATS, ext))


def _progress(row: Mapping[Any, Any]) -> GroupProgress:
    queues = queue_table(row.get("offsetTable") or {})
    found = GroupProgress(
        {
            queue: Progress(int(value["brokerOffset"]), int(value["consumerOffset"]), int(value["lastTimestamp"]))
            for queue, value in queues.items()
        }
    )
    topics = {queue.topic for queue in queues}
    found.rates[topics.pop() if len(topics) == 1 else ""] = float(row.get("consumeTps") or 0.0)
    return found


async def ages_of_lag(question: Question, place: Place, group: str, topic: str) -> dict[Queue, float]:
    """Returns for each queue of a topic how old the first message is that a group has not consumed, in seconds. Queues
    without one are not there. ClientError."""
    body = await question.table(place, RequestCode.QUERY_CONSUME_TIME_SPAN, {"topic": topic, "group": group})
    found = {}
    for row in body.get("consumeTimeSpanSet") or ():
        if (delay_ms := int(row.get("delayTime") or 0)) > 0:
            (queue,) = queue_table({fastjson.JsonObjectKey(row["messageQueue"]): None})
            found[queue] = delay_ms / 1000
    return found


# --- members ---


@dataclass(slots=True)
class Online:
    """The members of a group that are connected, by client id, and what the group subscribes to."""

    connections: dict[str, Connection] = field(default_factory=dict)
    topics: dict[str, Subscription] = field(default_factory=dict)
    of_member: dict[str, list[Subscription]] = field(default_factory=dict)
    """The subscriptions of each member, if the brokers know them: those of tallystick do."""
    mode: str | None = None
    is_pull: bool = False

    def add(self, other: Online) -> None:
        """Adds what another broker says."""
        for client_id, connection in other.connections.items():
            known = self.connections.get(client_id)
            self.connections[client_id] = connection if known is None else _joined(known, connection)
        self.topics |= other.topics
        self.of_member |= other.of_member
        self.mode, self.is_pull = self.mode or other.mode, self.is_pull or other.is_pull


def _joined(known: Connection, other: Connection) -> Connection:
    brokers = list(dict.fromkeys((*known.brokers, *other.brokers)))
    return Connection(known.client_id, known.address, known.language, known.version, brokers)


async def online_at(question: Question, place: Place, group: str) -> Online | None:
    """Returns the members of a group that are connected to a broker; None: there are none. ClientError."""
    answer = await question.call(place, RequestCode.GET_CONSUMER_CONNECTION_LIST, {"consumerGroup": group})
    if answer.code == ResponseCode.CONSUMER_NOT_ONLINE:
        return None
    if answer.code != ResponseCode.SUCCESS:
        raise refused(place.address, answer.code, answer.remark)
    body = fastjson.loads_tables(answer.body)
    members = {each.client_id: each for each in connections_of(body, place)}
    table = {topic: subscription_of(row) for topic, row in (body.get("subscriptionTable") or {}).items()}
    of_member = {
        client_id: [subscription_of(row) for row in rows]
        for client_id, rows in (body.get("subscriptionsOfClients") or {}).items()
    }
    mode = str(body.get("messageModel") or "").lower() or None
    return Online(members, table, of_member, mode, body.get("consumeType") == "CONSUME_ACTIVELY")


async def online(question: Question, places: Iterable[Place], group: str) -> Online:
    """Returns the members of a group that are connected to any of these brokers. Failures become problems."""
    found = Online()
    for each in (await question.each(places, lambda place: online_at(question, place, group))).values():
        if each is not None:
            found.add(each)
    return found


def connections_of(body: Mapping[str, Any], place: Place) -> list[Connection]:
    """Returns the clients in an answer about connections."""
    return [
        Connection(
            str(row.get("clientId", "")),
            str(row.get("clientAddr", "")),
            str(row.get("language") or "unknown"),
            version_name(int(row.get("version") or 0)),
            [place.name],
        )
        for row in body.get("connectionSet") or ()
    ]


def subscription_of(row: Mapping[str, Any]) -> Subscription:
    """Returns a subscription from RocketMQ's form."""
    kind = str(row.get("expressionType") or "TAG")
    return Subscription(str(row.get("topic", "")), str(row.get("subString") or "*"), kind)


class MemberState(NamedTuple):
    """What a consumer says about itself."""

    subscriptions: list[Subscription]
    queues: list[Queue]


async def member_state(question: Question, place: Place, group: str, client_id: str) -> MemberState:
    """Asks a consumer, through a broker to which it is connected. ClientError."""
    ext = {"consumerGroup": group, "clientId": client_id, "jstackEnable": "false"}
    body = await question.table(place, RequestCode.GET_CONSUMER_RUNNING_INFO, ext)
    subscriptions = [subscription_of(row) for row in body.get("subscriptionSet") or ()]
    return MemberState(subscriptions, list(queue_table(body.get("mqTable") or {})))


def disagreements(members: Mapping[str, Iterable[Subscription]]) -> list[Disagreement]:
    """Returns the topics for which members, by client id, have different subscriptions. A member that does not
    subscribe to a topic has the expression "" for it."""
    expressions: dict[str, dict[str, str]] = defaultdict(dict)
    for client_id, subscriptions in members.items():
        for each in subscriptions:
            expressions[each.topic][client_id] = _normal(each)
    found = []
    for topic, of_member in sorted(expressions.items()):
        by_expression: dict[str, list[str]] = defaultdict(list)
        for client_id in sorted(members):
            by_expression[of_member.get(client_id, "")].append(client_id)
        if len(by_expression) > 1:
            found.append(Disagreement(topic, dict(by_expression)))
    return found


def _normal(subscription: Subscription) -> str:
    """The expression, with tags in one order: `A||B` and `B || A` mean the same."""
    if subscription.kind != "TAG":
        return subscription.expression
    tags = sorted({tag.strip() for tag in subscription.expression.split("||")})
    return "*" if "*" in tags or tags == [""] else " || ".join(tags)
