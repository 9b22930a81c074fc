"""Handlers: topics and consumer groups."""

from __future__ import annotations

from typing import Any

from tallystick.admin.groups import Groups
from tallystick.admin.topics import Topics
from tallystick.console.api.changes import condition, done, with_etag
from tallystick.console.api.interface import Call, Handler

_PYTHON = {
    "readQueues": "read_queues",
    "writeQueues": "write_queues",
    "consumeEnable": "consume_enable",
    "consumeFromMinEnable": "consume_from_min_enable",
    "consumeBroadcastEnable": "consume_broadcast_enable",
    "retryQueues": "retry_queues",
    "maxRetries": "max_retries",
}
"""The fields of the models whose names differ in JSON."""


async def _put(call: Call, objects: Topics | Groups, name: str) -> Any:
    changes = {_PYTHON.get(field, field): value for field, value in call.body.items()}
    change = await objects.put(name, changes, cluster=call["cluster"], dry_run=call.dry_run, if_match=condition(call))
    return done(change)


def _page(call: Call) -> dict[str, Any]:
    return {name: call[name] for name in ("system", "search", "cursor", "limit")}


async def list_topics(call: Call) -> Any:
    return await call.admin.topics.list(**_page(call))


async def get_topic(call: Call) -> Any:
    found = await call.admin.topics.get(call["topic"])
    return with_etag(found, found.topic.etag)


async def put_topic(call: Call) -> Any:
    return await _put(call, call.admin.topics, call["topic"])


async def delete_topic(call: Call) -> Any:
    return done(await call.admin.topics.delete(call["topic"], dry_run=call.dry_run, if_match=condition(call)))


async def list_producers(call: Call) -> Any:
    return (await call.admin.topics.get(call["topic"])).producers


async def list_groups(call: Call) -> Any:
    return await call.admin.groups.list(**_page(call))


async def get_group(call: Call) -> Any:
    found = await call.admin.groups.get(call["group"])
    return with_etag(found, found.group.etag)


async def put_group(call: Call) -> Any:
    return await _put(call, call.admin.groups, call["group"])


async def delete_group(call: Call) -> Any:
    change = await call.admin.groups.delete(
        call["group"], topics=call["topics"], dry_run=call.dry_run, if_match=condition(call)
    )
    return done(change)


HANDLERS: dict[str, Handler] = {
    "listTopics": list_topics,
    "getTopic": get_topic,
    "putTopic": put_topic,
    "deleteTopic": delete_topic,
    "listProducers": list_producers,
    "listConsumerGroups": list_groups,
    "getConsumerGroup": get_group,
    "putConsumerGroup": put_group,
    "deleteConsumerGroup": delete_group,
}
