"""How topics are created, changed and deleted.

Source: what mqadmin of RocketMQ 4.8.0 and 5.5.0 sends for updateTopic and deleteTopic.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, replace
from functools import partial
from typing import Any

from tallystick.admin.brokers import is_tallystick
from tallystick.admin.changing import (
    Planned,
    check_etag,
    check_name,
    checked_fields,
    masters_of,
    only,
    shown,
    unread,
    without_master,
)
from tallystick.admin.models import Topic, TopicConfig
from tallystick.admin.servers import ORDER_NAMESPACE, Place, Question, Topology
from tallystick.admin.topic_tables import read_rows, read_topics, topics_of
from tallystick.client import ConfigurationError, NotFound
from tallystick.client.wire.codes import RequestCode, ResponseCode

_VERSION_WITH_ATTRIBUTES = 413
"""The protocol version of RocketMQ 5.0.0."""
_NO_NOTE = "not set any response code"
"""What RocketMQ answers to each such request."""
_PERMISSIONS = (0, 2, 4, 6)
_MOST_QUEUES = 65_535


async def plan_put(
    question: Question, name: str, changes: Mapping[str, Any], cluster: str | None, if_match: str | None
) -> list[Planned]:
    """Plans to create a topic, or to change it at the brokers that should have it. Errors as in `Topics.put`."""
    check_name(name, "topic")
    wanted = checked_fields(TopicConfig, changes)
    _check_numbers(wanted)
    topology = await question.topology()
    rows = await read_rows(question, topology)
    known = (await topics_of(question, topology, rows)).get(name)
    check_etag(f"topic {name}", known.etag if known else "", if_match)
    places = masters_of(topology, cluster, known.clusters if known else (), f"topic {name}")
    question.need_some([place for place in places if place in rows])
    base = next(iter(known.configs.values())) if known else TopicConfig()
    plans = []
    for place in places:
        if place not in rows:
            plans.append(unread(question, place, "create topic"))
            continue
        row = rows[place].get(name)
        before = known.configs.get(place.name) if known and row is not None else None
        after = _after(before or base, wanted)
        problem = await _attributes_problem(question, place, wanted)
        work = None if before == after else partial(_write, question, place, name, after, row or {}, wanted)
        action = "create topic" if before is None else "change topic"
        plans.append(Planned(place.address, action, shown(before), shown(after), work, problem))
    plans += without_master(topology, "change topic", cluster)
    return plans + _order_plans(question, name, known, [plan for plan in plans if plan.after], places)


def _check_numbers(wanted: Mapping[str, Any]) -> None:
    if wanted.get("perm", 6) not in _PERMISSIONS:
        raise ConfigurationError(f"perm is a sum of 4 (read) and 2 (write), not {wanted['perm']}")
    for field in ("read_queues", "write_queues"):
        if wanted.get(field, 1) > _MOST_QUEUES:
            raise ConfigurationError(f"{field} is a number up to {_MOST_QUEUES}, not {wanted[field]}")


def _after(before: TopicConfig, wanted: Mapping[str, Any]) -> TopicConfig:
    """The configuration after the changes. An attribute that becomes None is removed."""
    changes = dict(wanted)
    if "attributes" in changes:
        merged = before.attributes | {str(key): value for key, value in changes["attributes"].items()}
        changes["attributes"] = {key: str(value) for key, value in merged.items() if value is not None}
    return replace(before, **changes)


async def _attributes_problem(question: Question, place: Place, wanted: Mapping[str, Any]) -> str | None:
    """RocketMQ 4 accepts attributes and ignores them."""
    if not wanted.get("attributes") or question.versions.get(place.address, 0) >= _VERSION_WITH_ATTRIBUTES:
        return None
    return None if await is_tallystick(question, place) else "topics of RocketMQ 4 have no attributes"


async def _write(
    question: Question,
    place: Place,
    name: str,
    config: TopicConfig,
    row: Mapping[str, Any],
    wanted: Mapping[str, Any],
) -> dict[str, Any] | None:
    """Writes the configuration. Returns it with the broker's note, if it has one."""
    ext = {
        "topic": name,
        "defaultTopic": "TBW102",
        "readQueueNums": str(config.read_queues),
        "writeQueueNums": str(config.write_queues),
        "perm": str(config.perm),
        "topicFilterType": str(row.get("topicFilterType") or "SINGLE_TAG"),
        "topicSysFlag": str(row.get("topicSysFlag") or 0),
        "order": str(config.order).lower(),
    }
    if attributes := wanted.get("attributes"):
        parts = [f"-{key}" if value is None else f"+{key}={value}" for key, value in attributes.items()]
        ext["attributes"] = ",".join(parts)
    note = (await question.ask(place, RequestCode.UPDATE_AND_CREATE_TOPIC, ext)).remark
    return asdict(config) | {"note": note} if note and note != _NO_NOTE else None


def _order_plans(
    question: Question, name: str, known: Topic | None, plans: list[Planned], places: list[Place]
) -> list[Planned]:
    """The order of queues is fixed by a table of the name servers: a broker that is away keeps its queues."""
    before = known is not None and any(config.order for config in known.configs.values())
    after = any(plan.after["order"] for plan in plans)
    if not after and not before:
        return []
    names = {place.address: place.name for place in places}
    queues = {names[plan.target]: plan.after["write_queues"] for plan in plans if plan.target in names}
    value = ";".join(f"{broker}:{count}" for broker, count in sorted(queues.items())) if after else None
    key = {"namespace": ORDER_NAMESPACE, "key": name}
    found = []
    for address in question.servers.nameservers:
        if value is None:
            work = partial(question.ask, address, RequestCode.DELETE_KV_CONFIG, key)
        else:
            work = partial(question.ask, address, RequestCode.PUT_KV_CONFIG, {**key, "value": value})
        found.append(Planned(address, "fix order of queues", None, value, only(work)))
    return found


async def plan_delete(question: Question, name: str, if_match: str | None) -> list[Planned]:
    """Plans to delete a topic at all brokers and name servers. Errors as in `Topics.delete`."""
    topology = await question.topology()
    known = (await read_topics(question, topology)).get(name)
    if known is None:
        raise NotFound("name server", ResponseCode.TOPIC_NOT_EXIST, f"no broker has the topic {name}")
    check_etag(f"topic {name}", known.etag, if_match)
    return [*delete_plans(question, topology, known), *without_master(topology, "delete topic")]


def delete_plans(question: Question, topology: Topology, topic: Topic) -> list[Planned]:
    """Returns the steps that delete a topic which exists."""
    ext, action = {"topic": topic.name}, "delete topic"
    plans = [
        Planned(
            place.address,
            action,
            shown(topic.configs[place.name]),
            None,
            only(partial(question.ask, place, RequestCode.DELETE_TOPIC_IN_BROKER, ext)),
        )
        for place in topology.masters()
        if place.name in topic.configs
    ]
    for address in question.servers.nameservers:
        work = partial(question.ask, address, RequestCode.DELETE_TOPIC_IN_NAMESRV, ext)
        plans.append(Planned(address, "delete route", None, None, only(work), is_last=True))
        if any(config.order for config in topic.configs.values()):
            key = {"namespace": ORDER_NAMESPACE, "key": topic.name}
            work = partial(question.ask, address, RequestCode.DELETE_KV_CONFIG, key)
            plans.append(Planned(address, "delete order of queues", None, None, only(work), is_last=True))
    return plans
