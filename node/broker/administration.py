"""Changes that administrators ask for, by whatever way: each is answered when it is kept.

Kept is: in the table's file, or, in a replicated group, committed. Whoever calls has looked at who may ask, and at
names that are not to be touched. Source: AdminBrokerProcessor of RocketMQ 4.8.0, requests 17, 215, 200 and 207.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tallystick.node.broker.context import BrokerContext
    from tallystick.node.broker.groups import SubscriptionGroup
    from tallystick.node.broker.topics import TopicConfig


async def update_topics(broker: BrokerContext, *configs: TopicConfig) -> None:
    """Make topics or change them: all of them, with one wait, or none.

    ValueError: one of them cannot be (FollowsError: none can, here). OSError: they are not in the file yet;
    NotReplicatedError: nobody knows whether they will be committed.
    """
    broker.topics.update(*configs)
    broker.register_soon()
    await broker.topics.saved()


async def delete_topic(broker: BrokerContext, name: str) -> bool:
    """Forget a topic, its queues and what groups committed there; False: there was none. Errors as above.

    Name servers are told, so that no route leads to it any more. Its messages stay in the log until that is cleaned.
    What is left of one that is not known goes too.
    """
    existed = broker.topics.delete(name)
    broker.register_soon()
    # In a group everything that came before is committed then, and dispatched before the queues go.
    await broker.topics.saved()
    broker.store.remove_topic(name)
    await broker.store.save_progress()
    broker.offsets.remove_topic(name)
    broker.stats.forget_topic(name)
    await broker.offsets.saved()
    return existed


async def update_groups(broker: BrokerContext, *groups: SubscriptionGroup) -> None:
    """Make groups of consumers or change them: all of them, with one wait, or none. Errors as of `update_topics`."""
    broker.groups.update(*groups)
    await broker.groups.saved()


async def delete_group(broker: BrokerContext, name: str, *, with_offsets: bool) -> bool:
    """Forget a group, and what it committed if that is asked for; False: there was none. Errors as above."""
    existed = broker.groups.delete(name)
    broker.stats.forget_group(name)
    if with_offsets:
        broker.offsets.remove_group(name)
        await broker.offsets.saved()
    await broker.groups.saved()
    return existed
