"""The table of request codes: what each request of broker and name server needs.

RocketMQ 4.8 checks the codes of `CHECKED_BY_ROCKETMQ` and `ADMINISTRATION_OF_ROCKETMQ`; any account may send all other
requests to its broker, and its name server checks nothing. Here each code has a rule. A code without one is for super
users, so a new code is closed until it has one.

Source: PlainAccessValidator and Permission of RocketMQ 4.8.0.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from tallystick.node.access.needs import (
    AUTHENTICATED,
    OPEN,
    Need,
    Rule,
    administrative,
    body,
    both,
    cluster,
    group,
    message_at,
    objects,
    on_group,
    on_topic,
    topic,
)
from tallystick.node.access.policies import Action
from tallystick.node.remoting.codes import RequestCode as Code

CHECKED_BY_ROCKETMQ = frozenset(
    {
        Code.SEND_MESSAGE,
        Code.SEND_MESSAGE_V2,
        Code.CONSUMER_SEND_MSG_BACK,
        Code.PULL_MESSAGE,
        Code.QUERY_MESSAGE,
        Code.HEART_BEAT,
        Code.UNREGISTER_CLIENT,
        Code.GET_CONSUMER_LIST_BY_GROUP,
        Code.UPDATE_CONSUMER_OFFSET,
    }
)
ADMINISTRATION_OF_ROCKETMQ = frozenset(
    {
        Code.UPDATE_AND_CREATE_TOPIC,
        Code.UPDATE_BROKER_CONFIG,
        Code.DELETE_TOPIC_IN_BROKER,
        Code.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP,
        Code.DELETE_SUBSCRIPTIONGROUP,
    }
)


def _heartbeat(data: Mapping[Any, Any]) -> Iterable[Need]:
    for consumer in objects(data.get("consumerDataSet"), "consumerDataSet"):
        yield on_group(consumer.get("groupName"), Action.SUB)
        for subscription in objects(consumer.get("subscriptionDataSet"), "subscriptionDataSet"):
            yield on_topic(subscription.get("topic"), Action.SUB)


def _locks(data: Mapping[Any, Any]) -> Iterable[Need]:
    yield on_group(data.get("consumerGroup"), Action.SUB)
    for queue in objects(data.get("mqSet"), "mqSet"):
        yield on_topic(queue.get("topic"), Action.SUB)


def _client_config(data: Mapping[Any, Any]) -> Iterable[Need]:
    yield on_group(data.get("group"), Action.SUB)
    subscription = data.get("subscriptionData")
    if isinstance(subscription, dict):
        yield on_topic(subscription.get("topic"), Action.SUB)


_PULL = both(topic(Action.SUB), group(Action.SUB))
_LOCKS = body("Sub on the group; Sub on the topic of each queue (body)", _locks)
_CHANGE, _READ = administrative(cluster(Action.UPDATE)), cluster(Action.GET)

BROKER: dict[int, Rule] = {
    # producers
    Code.SEND_MESSAGE: topic(Action.PUB),
    Code.SEND_MESSAGE_V2: topic(Action.PUB, "b"),
    Code.SEND_BATCH_MESSAGE: topic(Action.PUB, "b"),
    Code.RECALL_MESSAGE: topic(Action.PUB),
    Code.END_TRANSACTION: message_at(Action.PUB, "commitLogOffset"),
    # Replies go to a topic of the cluster that no account names: who receives a request may answer it.
    Code.SEND_REPLY_MESSAGE: AUTHENTICATED,
    Code.SEND_REPLY_MESSAGE_V2: AUTHENTICATED,
    # consumers
    Code.PULL_MESSAGE: _PULL,
    Code.LITE_PULL_MESSAGE: _PULL,
    Code.CONSUMER_SEND_MSG_BACK: both(
        topic(Action.RESEND, "originTopic"), group(Action.SUB, "group"), message_at(Action.SUB, "offset")
    ),
    Code.QUERY_CONSUMER_OFFSET: both(
        topic(Action.SUB, alternative=Action.GET), group(Action.SUB, alternative=Action.GET)
    ),
    Code.UPDATE_CONSUMER_OFFSET: both(
        topic(Action.SUB, alternative=Action.UPDATE), group(Action.SUB, alternative=Action.UPDATE)
    ),
    Code.GET_CONSUMER_LIST_BY_GROUP: group(Action.SUB, alternative=Action.GET),
    Code.LOCK_BATCH_MQ: _LOCKS,
    Code.UNLOCK_BATCH_MQ: _LOCKS,
    Code.QUERY_MESSAGE: topic(Action.SUB, alternative=Action.GET),
    Code.VIEW_MESSAGE_BY_ID: message_at(Action.SUB, "offset"),
    # both
    Code.HEART_BEAT: body("Sub on each group and on the topic of each subscription (body)", _heartbeat),
    Code.UNREGISTER_CLIENT: group(Action.SUB),
    Code.CHECK_CLIENT_CONFIG: body("Sub on the group and on the topic of the subscription (body)", _client_config),
    Code.SEARCH_OFFSET_BY_TIMESTAMP: topic(Action.GET),
    Code.GET_MAX_OFFSET: topic(Action.GET),
    Code.GET_MIN_OFFSET: topic(Action.GET),
    Code.GET_EARLIEST_MSG_STORETIME: topic(Action.GET),
    # questions about one topic or group
    Code.GET_TOPIC_STATS_INFO: topic(Action.GET),
    Code.GET_TOPIC_CONFIG: topic(Action.GET),
    Code.QUERY_TOPIC_CONSUME_BY_WHO: topic(Action.GET),
    Code.QUERY_CORRECTION_OFFSET: topic(Action.GET),
    Code.QUERY_CONSUME_QUEUE: topic(Action.SUB),
    Code.QUERY_CONSUME_TIME_SPAN: both(topic(Action.GET), group(Action.GET, "group")),
    Code.QUERY_SUBSCRIPTION_BY_CONSUMER: both(topic(Action.GET), group(Action.GET, "group")),
    Code.INVOKE_BROKER_TO_GET_CONSUMER_STATUS: both(topic(Action.GET), group(Action.GET, "group")),
    Code.QUERY_TOPICS_BY_CONSUMER: group(Action.GET, "group"),
    Code.GET_SUBSCRIPTIONGROUP_CONFIG: group(Action.GET, "group"),
    Code.GET_CONSUME_STATS: group(Action.GET),
    Code.GET_CONSUMER_CONNECTION_LIST: group(Action.GET),
    Code.GET_CONSUMER_RUNNING_INFO: group(Action.GET),
    # administration of topics and groups
    Code.UPDATE_AND_CREATE_TOPIC: administrative(topic(Action.CREATE)),
    Code.DELETE_TOPIC_IN_BROKER: administrative(topic(Action.DELETE)),
    Code.DELETE_SUBSCRIPTIONGROUP: administrative(group(Action.DELETE, "groupName")),
    Code.INVOKE_BROKER_TO_RESET_OFFSET: administrative(both(topic(Action.UPDATE), group(Action.UPDATE, "group"))),
    Code.CLONE_GROUP_OFFSET: administrative(
        both(group(Action.UPDATE, "srcGroup"), group(Action.UPDATE, "destGroup"), cluster(Action.UPDATE))
    ),
    Code.CONSUME_MESSAGE_DIRECTLY: administrative(both(group(Action.UPDATE), cluster(Action.UPDATE))),
    Code.UPDATE_AND_CREATE_TOPIC_LIST: _CHANGE,
    Code.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP: _CHANGE,
    Code.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST: _CHANGE,
    # administration of the broker
    Code.UPDATE_BROKER_CONFIG: _CHANGE,
    Code.CLEAN_EXPIRED_CONSUMEQUEUE: _CHANGE,
    Code.CLEAN_UNUSED_TOPIC: _CHANGE,
    Code.DELETE_EXPIRED_COMMITLOG: _CHANGE,
    Code.RESUME_CHECK_HALF_MESSAGE: _CHANGE,
    Code.UPDATE_AND_CREATE_ACL_CONFIG: _CHANGE,
    Code.DELETE_ACL_CONFIG: _CHANGE,
    Code.UPDATE_GLOBAL_WHITE_ADDRS_CONFIG: _CHANGE,
    Code.GET_BROKER_CLUSTER_ACL_INFO: _READ,
    Code.GET_BROKER_CLUSTER_ACL_CONFIG: administrative(_READ),
    Code.AUTH_CREATE_USER: _CHANGE,
    Code.AUTH_UPDATE_USER: _CHANGE,
    Code.AUTH_DELETE_USER: _CHANGE,
    Code.AUTH_GET_USER: administrative(_READ),
    Code.AUTH_LIST_USER: administrative(_READ),
    Code.AUTH_CREATE_ACL: _CHANGE,
    Code.AUTH_UPDATE_ACL: _CHANGE,
    Code.AUTH_DELETE_ACL: _CHANGE,
    Code.AUTH_GET_ACL: administrative(_READ),
    Code.AUTH_LIST_ACL: administrative(_READ),
    Code.GET_ALL_TOPIC_CONFIG: _READ,
    Code.GET_ALL_CONSUMER_OFFSET: _READ,
    Code.GET_ALL_DELAY_OFFSET: _READ,
    Code.GET_ALL_SUBSCRIPTIONGROUP_CONFIG: _READ,
    Code.GET_BROKER_CONFIG: _READ,
    Code.GET_BROKER_HA_STATUS: _READ,
    Code.GET_BROKER_RUNTIME_INFO: _READ,
    Code.GET_SYSTEM_TOPIC_LIST_FROM_BROKER: _READ,
    Code.GET_ALL_PRODUCER_INFO: _READ,
    Code.GET_PRODUCER_CONNECTION_LIST: _READ,
    Code.GET_BROKER_CONSUME_STATS: _READ,
    Code.VIEW_BROKER_STATS_DATA: _READ,
    Code.DESCRIBE_NODE: _READ,
    Code.CHANGE_GROUP: _CHANGE,
    # between members of a group: the envelope has the key of the leadership, which its processor checks
    Code.FORWARDED_REQUEST: OPEN,
    Code.CLIENT_LEFT: OPEN,
}

NAME_SERVER: dict[int, Rule] = {
    # clients
    Code.GET_ROUTEINFO_BY_TOPIC: AUTHENTICATED,
    Code.GET_BROKER_CLUSTER_INFO: AUTHENTICATED,
    Code.GET_KV_CONFIG: AUTHENTICATED,
    Code.GET_KVLIST_BY_NAMESPACE: AUTHENTICATED,
    Code.GET_ALL_TOPIC_LIST_FROM_NAMESERVER: AUTHENTICATED,
    Code.GET_TOPICS_BY_CLUSTER: AUTHENTICATED,
    Code.GET_SYSTEM_TOPIC_LIST_FROM_NS: AUTHENTICATED,
    Code.GET_UNIT_TOPIC_LIST: AUTHENTICATED,
    Code.GET_HAS_UNIT_SUB_TOPIC_LIST: AUTHENTICATED,
    Code.GET_HAS_UNIT_SUB_UNUNIT_TOPIC_LIST: AUTHENTICATED,
    # brokers, each period
    Code.REGISTER_BROKER: cluster(Action.UPDATE),
    Code.QUERY_DATA_VERSION: cluster(Action.UPDATE),
    Code.UNREGISTER_BROKER: _CHANGE,
    # administration
    Code.PUT_KV_CONFIG: _CHANGE,
    Code.DELETE_KV_CONFIG: _CHANGE,
    Code.WIPE_WRITE_PERM_OF_BROKER: _CHANGE,
    Code.ADD_WRITE_PERM_OF_BROKER: _CHANGE,
    Code.DELETE_TOPIC_IN_NAMESRV: _CHANGE,
    Code.UPDATE_NAMESRV_CONFIG: _CHANGE,
    Code.GET_NAMESRV_CONFIG: _READ,
}
UNKNOWN = administrative(cluster(Action.UPDATE))
"""The rule of a code that is in neither table."""


def administrative_codes(table: Mapping[int, Rule]) -> dict[int, bool]:
    """For each code: whether its requests are recorded in any case. Of other codes they are."""
    return {int(code): rule.is_administrative for code, rule in table.items()}
