"""Which requests only a group's leader can serve correctly, and what another member does with them.

    kind        what it needs                            at a member that does not lead
    changes     a leader that accepts entries            held until there is one, forwarded; else refused (14)
    questions   what is in a leader's memory first       forwarded; else answered from what is committed
    log         what any member acknowledged             answered here, once it is applied here (R2)
    heartbeats  clients that only this member knows      served here, and reported to the leader
    here        this member's own state                  served here: pulls, starts of queues

A group does not start if a request code is in none of these lists. Offsets of groups reach the log about a second late,
and locks never: both are correct only at the leader. The list of a group's clients is requested there because a
restarted member has not received all heartbeats yet, and would let one consumer take the queues of others.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any

from tallystick.node.broker.group.client_reports import ClientRelay
from tallystick.node.broker.group.forwarding import Forwarder
from tallystick.node.broker.group.remote_clients import ForwardedRequests, RemoteClient, is_of_member, only
from tallystick.node.remoting.client import RemotingClient
from tallystick.node.remoting.codes import RequestCode
from tallystick.node.remoting.endpoint import Handler

if TYPE_CHECKING:
    from tallystick.node.broker.context import BrokerContext
    from tallystick.node.broker.group.group_role import BrokerGroup
    from tallystick.node.remoting.connection import Connection

_logger = logging.getLogger("tallystick.broker.group")

CHANGES = frozenset(
    {
        RequestCode.SEND_MESSAGE,
        RequestCode.SEND_MESSAGE_V2,
        RequestCode.SEND_BATCH_MESSAGE,
        RequestCode.SEND_REPLY_MESSAGE,
        RequestCode.SEND_REPLY_MESSAGE_V2,
        RequestCode.CONSUMER_SEND_MSG_BACK,
        RequestCode.RECALL_MESSAGE,
        RequestCode.END_TRANSACTION,
        RequestCode.UPDATE_CONSUMER_OFFSET,
        RequestCode.CLONE_GROUP_OFFSET,
        RequestCode.INVOKE_BROKER_TO_RESET_OFFSET,
        RequestCode.UPDATE_AND_CREATE_TOPIC,
        RequestCode.DELETE_TOPIC_IN_BROKER,
        RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP,
        RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST,
        RequestCode.UPDATE_AND_CREATE_TOPIC_LIST,
        RequestCode.DELETE_SUBSCRIPTIONGROUP,
        RequestCode.RESUME_CHECK_HALF_MESSAGE,
        RequestCode.LOCK_BATCH_MQ,  # two members that grant locks would give one queue to two consumers
        RequestCode.UNLOCK_BATCH_MQ,
        RequestCode.UPDATE_AND_CREATE_ACL_CONFIG,
        RequestCode.DELETE_ACL_CONFIG,
        RequestCode.UPDATE_GLOBAL_WHITE_ADDRS_CONFIG,
        RequestCode.AUTH_CREATE_USER,
        RequestCode.AUTH_UPDATE_USER,
        RequestCode.AUTH_DELETE_USER,
        RequestCode.AUTH_CREATE_ACL,
        RequestCode.AUTH_UPDATE_ACL,
        RequestCode.AUTH_DELETE_ACL,
        RequestCode.AUDIT_LINES,
    }
)
QUESTIONS = frozenset(
    {
        RequestCode.QUERY_CONSUMER_OFFSET,
        RequestCode.GET_CONSUME_STATS,
        RequestCode.GET_BROKER_CONSUME_STATS,
        RequestCode.QUERY_CONSUME_TIME_SPAN,
        RequestCode.QUERY_CORRECTION_OFFSET,
        RequestCode.QUERY_TOPICS_BY_CONSUMER,
        RequestCode.GET_CONSUMER_LIST_BY_GROUP,
    }
)
LOG = frozenset(
    {
        RequestCode.GET_MAX_OFFSET,
        RequestCode.SEARCH_OFFSET_BY_TIMESTAMP,
        RequestCode.GET_TOPIC_STATS_INFO,
        RequestCode.QUERY_MESSAGE,
        RequestCode.VIEW_MESSAGE_BY_ID,
        RequestCode.QUERY_CONSUME_QUEUE,
        RequestCode.GET_ALL_TOPIC_CONFIG,
        RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG,
        RequestCode.GET_SUBSCRIPTIONGROUP_CONFIG,
        RequestCode.GET_TOPIC_CONFIG,
        RequestCode.QUERY_TOPIC_CONSUME_BY_WHO,
        RequestCode.GET_BROKER_CLUSTER_ACL_INFO,
        RequestCode.GET_BROKER_CLUSTER_ACL_CONFIG,
        RequestCode.AUTH_GET_USER,
        RequestCode.AUTH_LIST_USER,
        RequestCode.AUTH_GET_ACL,
        RequestCode.AUTH_LIST_ACL,
    }
)
HERE = frozenset(
    {
        RequestCode.CHANGE_GROUP,  # sent to the leader; another member says who that is
        RequestCode.CHECK_CLIENT_CONFIG,
        RequestCode.CLEAN_EXPIRED_CONSUMEQUEUE,
        RequestCode.CLEAN_UNUSED_TOPIC,
        RequestCode.CONSUME_MESSAGE_DIRECTLY,
        RequestCode.DELETE_EXPIRED_COMMITLOG,
        RequestCode.DESCRIBE_NODE,
        RequestCode.GET_ALL_CONSUMER_OFFSET,
        RequestCode.GET_ALL_DELAY_OFFSET,
        RequestCode.GET_BROKER_CONFIG,
        RequestCode.GET_BROKER_HA_STATUS,
        RequestCode.GET_BROKER_RUNTIME_INFO,
        RequestCode.GET_CONSUMER_CONNECTION_LIST,
        RequestCode.GET_CONSUMER_RUNNING_INFO,
        RequestCode.GET_EARLIEST_MSG_STORETIME,
        RequestCode.GET_MIN_OFFSET,
        RequestCode.GET_ALL_PRODUCER_INFO,
        RequestCode.GET_PRODUCER_CONNECTION_LIST,
        RequestCode.QUERY_SUBSCRIPTION_BY_CONSUMER,
        RequestCode.GET_SYSTEM_TOPIC_LIST_FROM_BROKER,
        RequestCode.INVOKE_BROKER_TO_GET_CONSUMER_STATUS,
        RequestCode.LITE_PULL_MESSAGE,
        RequestCode.PULL_MESSAGE,
        RequestCode.UPDATE_BROKER_CONFIG,
        RequestCode.VIEW_BROKER_STATS_DATA,
    }
)
"""Served by the member that gets the request: its own state, its log, and the clients that are connected to it."""
_HEARTBEATS = frozenset({RequestCode.RELAYED_HEART_BEAT, RequestCode.UNREGISTER_CLIENT})
_CONNECT_S = 1.0
_LOOK_S = 0.1


class LeaderOnly:
    """The `routes` of a broker that is a member of a group."""

    def __init__(self, routes: Mapping[int, Handler], broker: BrokerContext, group: BrokerGroup) -> None:
        """`routes`: those of a broker without a group."""
        unclassified = routes.keys() - CHANGES - QUESTIONS - LOG - HERE - _HEARTBEATS - {RequestCode.HEART_BEAT}
        assert not unclassified, f"request {min(unclassified)} is not classified for a member that does not lead"
        self._group = group
        self._relay = ClientRelay(broker, group, routes[RequestCode.RELAYED_HEART_BEAT])
        self._client = RemotingClient(
            self._relay.routes(), connect_timeout_s=_CONNECT_S, name="broker.forward", tls=broker.client_context
        )
        self.forwarder = self._relay.forwarder = Forwarder(broker, group, self._client)

        def forget(client: RemoteClient) -> None:
            broker.producers.close(client)
            broker.consumers.close(client)

        self._received = ForwardedRequests(
            group, only(routes, CHANGES), only(routes, QUESTIONS | _HEARTBEATS), self._client.log, forget
        )
        wrap: dict[int, Callable[[Handler], Handler]] = {
            **dict.fromkeys(CHANGES, self.forwarder.change),
            **dict.fromkeys(QUESTIONS, self.forwarder.ask),
            **dict.fromkeys(LOG, self.forwarder.catch_up),
            RequestCode.HEART_BEAT: self._relay.heartbeat,
            RequestCode.UNREGISTER_CLIENT: self._relay.unregister,
        }
        self.routes = {code: wrap[code](handler) if code in wrap else handler for code, handler in routes.items()}
        del self.routes[RequestCode.RELAYED_HEART_BEAT]  # only inside an envelope
        self.routes |= self._received.routes()

    def closed(self, connection: Any) -> None:
        """A connection to this member is closed: a client's, or another member's."""
        self._relay.closed(connection)
        self._received.link_lost(connection)

    async def linger(self, connections: Callable[[], Iterable[Connection]], limit_s: float) -> None:
        """Waits until no client is connected, for at most that time, and only while this member does not lead.

        A member that is about to stop forwards requests during this time: clients may consider it the master until they
        check their routes, and would find no process at its address.
        """
        clock = asyncio.get_running_loop().time
        deadline_s = clock() + limit_s
        told = False
        while not self._group.leads and clock() < deadline_s:
            clients = sum(not is_of_member(connection) for connection in connections())
            if not clients:
                return
            if not told:
                _logger.info("serving %d connections until clients use new routes, at most %g s", clients, limit_s)
                told = True
            await asyncio.sleep(_LOOK_S)

    async def stop(self) -> None:
        """Closes the links to leaders. Call it after the servers have stopped."""
        await self._relay.stop()
        await self._client.close()
