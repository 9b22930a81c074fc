"""Changes that administrators request, through any interface: each is answered when it is durable.

Durable means: in the table's file or, in a replicated group, committed. The caller has checked who may make the change,
and which names are protected. Source: AdminBrokerProcessor of RocketMQ 4.8.0, requests 17, 215, 200 and 207.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tallystick.node.broker.context import BrokerContext
    from tallystick.node.broker.tables.consumer_groups import SubscriptionGroup
    from tallystick.node.broker.tables.topics import TopicConfig

_logger = logging.getLogger("tallystick.broker")


async def update_topics(broker: BrokerContext, *configs: TopicConfig) -> None:
    """Creates or changes topics: all of them, with one wait, or none.

    Raises ValueError if one of them is invalid (FollowsError if this broker accepts no changes), OSError if they could
    not be saved yet, NotReplicatedError if it is unknown whether they will be committed.
    """
    broker.topics.update(*configs)
    for config in configs:
        if note := retention_note(broker, config):
            _logger.warning("%s", note)
    broker.register_soon()
    await broker.topics.saved()


def retention_note(broker: BrokerContext, config: TopicConfig) -> str | None:
    """What an administrator should know about the retention of a topic; None: nothing."""
    log_hours = broker.store.settings.fileReservedTime
    if config.retention_hours < log_hours or not config.retention_hours:
        return None
    return (
        f"the retention of {config.topic_name}, {config.retention_hours} h, has no effect: segments of the log are"
        f" deleted after {log_hours} h (fileReservedTime)"
    )


async def delete_topic(broker: BrokerContext, name: str) -> bool:
    """Deletes a topic, its queues and the offsets that groups committed there. False if it does not exist.

    Name servers are informed, so that no route names it. Its messages stay in the log until the log is
    cleaned. Remains of a topic that is not in the table are deleted too. Raises the same errors as `update_topics`.
    """
    existed = broker.topics.delete(name)
    broker.register_soon()
    # In a group, everything before is then committed, and dispatched before the queues are deleted.
    await broker.topics.saved()
    broker.store.queues.remove_topic(name)
    await broker.store.queues.save_progress()
    broker.offsets.remove_topic(name)
    broker.expiry.offsets.remove(name)
    broker.stats.forget_topic(name)
    broker.pulled.remove_topic(name)
    broker.transactions.figures.remove_topic(name)
    await broker.offsets.saved()
    await broker.expiry.offsets.saved()
    return existed


async def update_groups(broker: BrokerContext, *groups: SubscriptionGroup) -> None:
    """Creates or changes consumer groups: all of them, with one wait, or none. Errors as in `update_topics`."""
    broker.groups.update(*groups)
    await broker.groups.saved()


async def delete_group(broker: BrokerContext, name: str, *, with_offsets: bool) -> bool:
    """Deletes a group, and its committed offsets if requested. False if it does not exist. Errors as above."""
    existed = broker.groups.delete(name)
    broker.stats.forget_group(name)
    broker.pulled.remove_group(name)
    if with_offsets:
        broker.offsets.remove_group(name)
        await broker.offsets.saved()
    await broker.groups.saved()
    return existed
