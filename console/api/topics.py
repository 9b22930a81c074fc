"""Handlers: topics and consumer groups."""

from __future__ import annotations

from typing import Any

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


def _changes(body: dict[str, Any]) -> dict[str, Any]:
    return {_PYTHON.get(name, name): value for name, value in body.items()}


def _page(call: Call) -> dict[str, Any]:
    return {name: call[name] for name in ("system", "search", "cursor", "limit")}


async def list_topics(call: Call) -> Any:
    return await call.admin.topics.list(**_page(call))


async def get_topic(call: Call) -> Any:
    found = await call.admin.topics.get(call["topic"])
    return with_etag(found, found.topic.etag)


async def put_topic(call: Call) -> Any:
    change = await call.admin.topics.put(
        call["topic"],
        _changes(call.body),
        cluster=call["cluster"],
        dry_run=call.dry_run,
        if_match=condition(call),
    )
    return done(change)


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
    change = await call.admin.groups.put(
        call["group"],
        _changes(call.body),
        cluster=call["cluster"],
        dry_run=call.dry_run,
        if_match=condition(call),
    )
    return done(change)


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
