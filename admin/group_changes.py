"""How consumer groups are created, changed and deleted.

Source: what mqadmin of RocketMQ 4.8.0 and 5.5.0 sends for updateSubGroup and deleteSubGroup.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, replace
from functools import partial
from typing import Any

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
from tallystick.admin.consumption import online
from tallystick.admin.group_tables import group_config_of, group_rows
from tallystick.admin.models import GroupConfig
from tallystick.admin.names import DEAD_LETTER_PREFIX, RETRY_PREFIX
from tallystick.admin.paging import etag_of
from tallystick.admin.servers import Place, Question
from tallystick.admin.topic_changes import delete_plans
from tallystick.admin.topic_tables import read_topics
from tallystick.client import NotFound
from tallystick.client.wire import fastjson
from tallystick.client.wire.codes import RequestCode, ResponseCode


async def plan_put(
    question: Question, name: str, changes: Mapping[str, Any], cluster: str | None, if_match: str | None
) -> list[Planned]:
    """Plans to create a group, or to change it at the brokers that should have it. Errors as in `Groups.put`."""
    check_name(name, "group")
    wanted = checked_fields(GroupConfig, changes)
    topology = await question.topology()
    rows = await group_rows(question, topology.readers())
    known = {place: table[name] for place, table in rows.items() if name in table}
    check_etag(f"group {name}", group_etag(known), if_match)
    places = masters_of(topology, cluster, {place.cluster for place in known}, f"group {name}")
    base = group_config_of(next(iter(known.values()), {}))
    plans = []
    for place in places:
        if place not in rows:
            plans.append(unread(question, place, "create group"))
            continue
        row = known.get(place)
        before = None if row is None else group_config_of(row)
        after = replace(before or base, **wanted)
        work = None if before == after else partial(_write, question, place, {**(row or {}), "groupName": name}, after)
        action = "create group" if before is None else "change group"
        plans.append(Planned(place.address, action, shown(before), shown(after), work))
    return plans + without_master(topology, "change group", cluster)


async def _write(question: Question, place: Place, row: Mapping[str, Any], config: GroupConfig) -> None:
    """Fields that this module does not know stay as they are."""
    body = dict(row) | {
        "consumeEnable": config.consume_enable,
        "consumeFromMinEnable": config.consume_from_min_enable,
        "consumeBroadcastEnable": config.consume_broadcast_enable,
        "retryQueueNums": config.retry_queues,
        "retryMaxTimes": config.max_retries,
    }
    await question.ask(place, RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, {}, fastjson.dumps(body))


async def plan_delete(question: Question, name: str, with_topics: bool, if_match: str | None) -> list[Planned]:
    """Plans to delete a group. Errors as in `Groups.delete`."""
    topology = await question.topology()
    rows = await group_rows(question, topology.readers())
    known = {place: table[name] for place, table in rows.items() if name in table}
    if not known:
        reason = f"no broker has the group {name}"
        raise NotFound("name server", ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST, reason)
    check_etag(f"group {name}", group_etag(known), if_match)
    members = await online(question, topology.readers(), name)
    count = len(members.connections)
    problem = f"the group has {count} connected members, which would create it again: stop them" if count else None
    ext = {"groupName": name, "cleanOffset": "true"}
    plans = [
        Planned(
            place.address,
            "delete group",
            shown(group_config_of(row)),
            None,
            only(partial(question.ask, place, RequestCode.DELETE_SUBSCRIPTIONGROUP, ext)),
            problem,
        )
        for place, row in known.items()
        if place.id == 0
    ]
    plans += without_master(topology, "delete group")
    if with_topics and problem is None:
        topics = await read_topics(question, topology)
        for prefix in (RETRY_PREFIX, DEAD_LETTER_PREFIX):
            if (topic := topics.get(prefix + name)) is not None:
                plans += delete_plans(question, topology, topic)
    return plans


def group_etag(rows: Mapping[Place, Mapping[str, Any]]) -> str:
    """Returns the `etag` of a group from the rows of brokers; empty: no broker has it."""
    if not rows:
        return ""
    return etag_of({place.name: asdict(group_config_of(row)) for place, row in rows.items()})
