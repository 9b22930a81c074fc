"""What brokers say about topics: their tables of topics, queues, rates and clients."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import asdict, replace
from typing import Any

from tallystick.admin.brokers import is_tallystick
from tallystick.admin.consumption import GroupProgress, connections_of, progress_of_groups, queue_table
from tallystick.admin.models import Connection, QueueRange, Rates, Topic, TopicConfig
from tallystick.admin.names import topic_kind
from tallystick.admin.paging import etag_of
from tallystick.admin.servers import Place, Question, Topology
from tallystick.client import AccessDenied, NotSupported
from tallystick.client.core.errors import refused
from tallystick.client.wire.codes import RequestCode, ResponseCode

TOPIC_PUT_NUMS, GROUP_GET_NUMS = "TOPIC_PUT_NUMS", "GROUP_GET_NUMS"
_VERSION_WITH_PRODUCERS = 393
"""The protocol version of RocketMQ 4.9.0: from then on brokers list their producers."""
Tables = dict[Place, dict[str, dict[str, Any]]]
"""The topics of brokers by name, in RocketMQ's form."""


async def read_topics(question: Question, topology: Topology) -> dict[str, Topic]:
    """Returns all topics by name, without their traffic: one request to each broker. ClientError: none answers."""
    return await topics_of(question, topology, await read_rows(question, topology))


async def read_rows(question: Question, topology: Topology) -> Tables:
    """Returns the topics of each broker that answers, in RocketMQ's form."""
    return await question.each(topology.readers(), lambda place: topic_rows(question, place))


async def topics_of(question: Question, topology: Topology, tables: Tables) -> dict[str, Topic]:
    """Returns the topics of these tables by name. ClientError: no broker answered."""
    names = {*topology.clusters(), *(place.name for place in topology.readers())}
    if not tables and isinstance(question.first_error, AccessDenied):
        return await _names_alone(question, names)
    question.need_some(tables)
    ordered = await question.ordered_topics()
    found: dict[str, dict[Place, TopicConfig]] = {}
    for place, table in tables.items():
        for name, row in table.items():
            found.setdefault(name, {})[place] = config_of(row)
    return {name: _topic(name, configs, name in ordered, names) for name, configs in found.items()}


async def _names_alone(question: Question, system_names: set[str]) -> dict[str, Topic]:
    """What an account without permission for the cluster may know: the name servers' list of names."""
    answer = await question.nameserver(RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER)
    names = question.json(answer, "the list of topics").get("topicList") or ()
    return {name: Topic(name, topic_kind(name, TopicConfig(), system_names), [], {}, True) for name in names}


def _topic(name: str, configs: Mapping[Place, TopicConfig], ordered: bool, system_names: set[str]) -> Topic:
    of_broker = {place.name: replace(config, order=True) if ordered else config for place, config in configs.items()}
    first, *others = of_broker.values()
    return Topic(
        name,
        topic_kind(name, first, system_names),
        list(dict.fromkeys(place.cluster for place in configs)),
        of_broker,
        all(each == first for each in others),
        etag=etag_of({broker: asdict(config) for broker, config in of_broker.items()}),
    )


async def topic_rows(question: Question, place: Place) -> dict[str, dict[str, Any]]:
    """Returns the topics of a broker in RocketMQ's form: one request. ClientError."""
    table = (await question.table(place, RequestCode.GET_ALL_TOPIC_CONFIG)).get("topicConfigTable") or {}
    return {str(name): row for name, row in table.items()}


def config_of(row: Mapping[str, Any]) -> TopicConfig:
    """Returns the configuration of a topic from RocketMQ's form."""
    return TopicConfig(
        int(row.get("readQueueNums", 16)),
        int(row.get("writeQueueNums", 16)),
        int(row.get("perm", 6)),
        bool(row.get("order", False)),
        {str(key): str(value) for key, value in (row.get("attributes") or {}).items()},
    )


async def queues_of(question: Question, place: Place, topic: str) -> list[QueueRange]:
    """Returns the offsets of a topic's queues at a broker. NotFound, ClientError."""
    body = await question.table(place, RequestCode.GET_TOPIC_STATS_INFO, {"topic": topic})
    table = queue_table(body.get("offsetTable") or {})
    return [
        QueueRange(
            queue.broker,
            queue.id,
            max(0, int(row["minOffset"])),
            max(0, int(row["maxOffset"])),
            int(row.get("lastUpdateTimestamp") or 0) or None,
        )
        for queue, row in sorted(table.items())
    ]


async def put_rate(question: Question, place: Place, topic: str) -> float:
    """Returns the messages per second that a topic receives at a broker, over a minute. ClientError."""
    return await rate_of(question, place, TOPIC_PUT_NUMS, topic)


async def rate_of(question: Question, place: Place, what: str, key: str) -> float:
    """Returns a statistic of a broker per second, over a minute; 0: nothing was counted. ClientError."""
    answer = await question.call(place, RequestCode.VIEW_BROKER_STATS_DATA, {"statsName": what, "statsKey": key})
    if answer.code == ResponseCode.SYSTEM_ERROR and "not exist" in (answer.remark or ""):
        return 0.0
    if answer.code != ResponseCode.SUCCESS:
        raise refused(place.address, answer.code, answer.remark)
    return float((question.json(answer, "a statistic").get("statsMinute") or {}).get("tps") or 0.0)


async def get_rate(question: Question, places: list[Place], topic: str, group: str) -> float:
    """Returns the messages of a topic per second that a group receives, over a minute. Failures become problems."""
    key = f"{topic}@{group}"
    return sum((await question.each(places, lambda place: rate_of(question, place, GROUP_GET_NUMS, key))).values())


async def consumer_groups_of(question: Question, place: Place, topic: str) -> set[str]:
    """Returns the groups that subscribe to a topic at a broker, or have committed an offset there. ClientError."""
    body = await question.table(place, RequestCode.QUERY_TOPIC_CONSUME_BY_WHO, {"topic": topic})
    return {str(name) for name in body.get("groupList") or ()}


async def producers_at(question: Question, place: Place) -> dict[str, list[Connection]]:
    """Returns the clients of all producer groups at a broker. NotSupported: it is older than RocketMQ 4.9."""
    if question.versions.get(place.address, 0) < _VERSION_WITH_PRODUCERS and not await is_tallystick(question, place):
        raise NotSupported(place.address, ResponseCode.REQUEST_CODE_NOT_SUPPORTED, "it does not list its producers")
    data = (await question.table(place, RequestCode.GET_ALL_PRODUCER_INFO)).get("data") or {}
    found = {}
    for group, rows in data.items():
        clients = [{**row, "clientAddr": row.get("remoteIP", "")} for row in rows]
        found[str(group)] = connections_of({"connectionSet": clients}, place)
    return found


async def incoming_rates(question: Question, pairs: Iterable[tuple[str, Place]]) -> Counter[str]:
    """Returns the messages per second that topics receive, for pairs of a topic and a broker. Failures become
    problems."""
    rates = await question.each(pairs, lambda pair: put_rate(question, pair[1], pair[0]))
    found = Counter[str]()
    for (name, _), rate in rates.items():
        found[name] += rate  # type: ignore[assignment]  # a Counter adds any numbers
    return found


def outgoing_rates(progress: Iterable[GroupProgress]) -> Counter[str]:
    """Returns the messages per second that groups receive, by topic."""
    found = Counter[str]()
    for each in progress:
        found.update(each.rates)
    return found


async def read_traffic(question: Question, topology: Topology, topics: Mapping[str, Topic]) -> dict[str, Topic]:
    """Returns topics with their messages and rates."""
    places = {place.name: place for place in topology.readers()}
    pairs = [(name, places[broker]) for name, topic in topics.items() for broker in topic.configs]
    ranges = await question.each(pairs, lambda pair: queues_of(question, pair[1], pair[0]))
    incoming = await incoming_rates(question, pairs)
    tables = await question.each(places.values(), lambda place: progress_of_groups(question, place))
    out = outgoing_rates(progress for groups in tables.values() for progress in groups.values())
    messages = Counter[str]()
    for (name, _), part in ranges.items():
        messages[name] += sum(each.max - each.min for each in part)
    return {
        name: replace(topic, messages=messages.get(name), rates=Rates(float(incoming[name]), float(out[name])))
        for name, topic in topics.items()
    }
