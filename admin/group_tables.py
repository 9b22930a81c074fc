"""What brokers say about consumer groups: their tables of groups, progress and offsets."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from typing import Any

from tallystick.admin.consumption import GroupProgress, progress_of_groups
from tallystick.admin.models import GroupConfig
from tallystick.admin.servers import Place, Question
from tallystick.client.core.queue import Queue
from tallystick.client.wire import fastjson
from tallystick.client.wire.codes import RequestCode


async def read_groups(question: Question, places: Iterable[Place]) -> dict[str, dict[str, GroupConfig]]:
    """Returns the configuration of all groups, by group and broker: one request to each broker. ClientError: none
    answers."""
    rows = await group_rows(question, places)
    found: dict[str, dict[str, GroupConfig]] = defaultdict(dict)
    for place, table in rows.items():
        for name, row in table.items():
            found[name][place.name] = group_config_of(row)
    return dict(found)


async def group_rows(question: Question, places: Iterable[Place]) -> dict[Place, dict[str, dict[str, Any]]]:
    """Returns the tables of groups in RocketMQ's form, by broker. ClientError: no broker answers."""

    async def rows(place: Place) -> dict[str, dict[str, Any]]:
        body = await question.table(place, RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG)
        return {str(name): row for name, row in (body.get("subscriptionGroupTable") or {}).items()}

    found = await question.each(places, rows)
    question.need_some(found)
    return found


def group_config_of(row: Mapping[str, Any]) -> GroupConfig:
    """Returns the configuration of a group from RocketMQ's form."""
    return GroupConfig(
        bool(row.get("consumeEnable", True)),
        bool(row.get("consumeFromMinEnable", True)),
        bool(row.get("consumeBroadcastEnable", True)),
        int(row.get("retryQueueNums", 1)),
        int(row.get("retryMaxTimes", 16)),
    )


async def read_progress(question: Question, places: Iterable[Place]) -> dict[str, GroupProgress]:
    """Returns the progress of all groups: one request to each broker."""
    found: dict[str, GroupProgress] = {}
    for table in (await question.each(places, lambda place: progress_of_groups(question, place))).values():
        for name, progress in table.items():
            found.setdefault(name, GroupProgress()).add(progress)
    return found


async def offsets_at(question: Question, place: Place, group: str) -> dict[Queue, int]:
    """Returns the offsets that a group has committed at a broker. ClientError."""
    table = (await question.table(place, RequestCode.GET_ALL_CONSUMER_OFFSET)).get("offsetTable") or {}
    found: dict[Queue, int] = {}
    for key, offsets in table.items():
        topic, _, name = key.partition("@")
        if name == group:
            found |= {
                Queue(topic, place.name, number): int(each) for number, each in fastjson.int_keys(offsets).items()
            }
    return found
