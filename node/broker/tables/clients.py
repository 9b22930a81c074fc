"""The connected clients: the members of each producer and consumer group, according to their heartbeats.

A client sends a heartbeat every 30 s over each of its connections. After 120 s without one it is dropped, and its
connection is closed. When a connection closes, its client leaves every group at once.

A consumer group has one set of subscriptions for all members: the topics of the newest heartbeat, each with its newest
version. When a member joins or leaves, or the set of topics changes, the others are informed (`on_members_changed`), so
that they rebalance the queues without waiting for their own timer of 20 s.

Pure: the time is an argument, and a connection is only an identity (`Channel`). Source: ConsumerManager,
ConsumerGroupInfo, ProducerManager of RocketMQ 4.8.0.
"""

from __future__ import annotations

import itertools
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

from tallystick.node.broker.tables.subscriptions import SubscriptionData

if TYPE_CHECKING:
    from tallystick.node.remoting.command import Command
    from tallystick.store.formats.message import Host

CHANNEL_EXPIRY_MS = 120_000

PUSH, PULL = "CONSUME_PASSIVELY", "CONSUME_ACTIVELY"
CLUSTERING, BROADCASTING = "CLUSTERING", "BROADCASTING"
FROM_LAST, FROM_FIRST, FROM_TIMESTAMP = (
    "CONSUME_FROM_LAST_OFFSET",
    "CONSUME_FROM_FIRST_OFFSET",
    "CONSUME_FROM_TIMESTAMP",
)


class Channel(Protocol):
    """What the tables and relays need from a connection. Compared by identity."""

    @property
    def remote(self) -> Host: ...

    @property
    def closed(self) -> bool: ...

    def oneway(self, command: Command) -> None: ...

    async def call(self, command: Command, timeout_s: float = ...) -> Command: ...

    def close(self) -> None: ...


@dataclass(slots=True)
class Client:
    """One client on one connection. `version` is the version of its protocol (373 is 4.8.0)."""

    channel: Channel
    client_id: str
    language: str | None
    version: int
    last_update_ms: int

    def to_json(self) -> dict[str, Any]:
        """A `Connection` of the answers to 203 and 204."""
        return {
            "clientAddr": str(self.channel.remote),
            "clientId": self.client_id,
            "language": self.language,
            "version": self.version,
        }


class _Membership:
    """Which clients are in which group, and which groups a channel is in (so that closing it affects no other)."""

    def __init__(self) -> None:
        self.groups: dict[str, dict[Channel, Client]] = {}
        self.of_channel: dict[Channel, set[str]] = {}

    def add(self, group: str, client: Client) -> bool:
        """True if the channel is new in the group, or belongs to another client than before."""
        members = self.groups.setdefault(group, {})
        known = members.get(client.channel)
        members[client.channel] = client
        self.of_channel.setdefault(client.channel, set()).add(group)
        return known is None or known.client_id != client.client_id

    def remove(self, group: str, channel: Channel) -> Client | None:
        members = self.groups.get(group)
        client = members.pop(channel, None) if members else None
        if client is None or members is None:
            return None
        if not members:
            del self.groups[group]
        groups = self.of_channel[channel]
        groups.discard(group)
        if not groups:
            del self.of_channel[channel]
        return client

    def silent(self, now_ms: int) -> list[tuple[str, Channel]]:
        """Members whose last heartbeat is too old."""
        limit = now_ms - CHANNEL_EXPIRY_MS
        return [
            (group, channel)
            for group, members in self.groups.items()
            for channel, client in members.items()
            if client.last_update_ms < limit
        ]

    def left(self, members: list[tuple[str, Channel]]) -> list[Channel]:
        """The channels of these former members that are no longer in any group, each once."""
        return [
            channel for channel in dict.fromkeys(channel for _, channel in members) if channel not in self.of_channel
        ]


class _ClientTable(ABC):
    """What the tables of producers and consumers share."""

    def __init__(self) -> None:
        self._members = _Membership()

    @abstractmethod
    def unregister(self, group: str, channel: Channel) -> object:
        """A member leaves."""

    def close(self, channel: Channel) -> None:
        """The connection is closed."""
        for group in tuple(self._members.of_channel.get(channel, ())):
            self.unregister(group, channel)

    def expire(self, now_ms: int) -> list[Channel]:
        """Drops silent members; returns the connections that are no longer in any group, which should be closed."""
        silent = self._members.silent(now_ms)
        for group, channel in silent:
            self.unregister(group, channel)
        return self._members.left(silent)

    def members(self, group: str) -> list[Client]:
        """The members of a group; empty if no member is connected."""
        return list(self._members.groups.get(group, {}).values())


class ProducerTable(_ClientTable):
    """Producers by group, and the connection of each client id (replies to requests go there)."""

    def __init__(self) -> None:
        super().__init__()
        self._by_client: dict[str, Channel] = {}
        self._turns = itertools.count()

    def register(self, group: str, client: Client) -> None:
        """Handles a heartbeat of a member."""
        self._members.add(group, client)
        self._by_client[client.client_id] = client.channel

    def unregister(self, group: str, channel: Channel) -> None:
        """A member leaves."""
        client = self._members.remove(group, channel)
        if client is not None and channel not in self._members.of_channel:
            self._forget(client.client_id, channel)

    def _forget(self, client_id: str, channel: Channel) -> None:
        if self._by_client.get(client_id) is channel:  # it may have returned on another connection
            del self._by_client[client_id]

    def groups(self) -> list[str]:
        return list(self._members.groups)

    def pick(self, group: str) -> Channel | None:
        """Returns the group's live connections in turn, one per call; None if no connection is live."""
        channels = [channel for channel in self._members.groups.get(group, {}) if not channel.closed]
        return channels[next(self._turns) % len(channels)] if channels else None

    def find(self, client_id: str) -> Channel | None:
        """The connection of a client; None if it is not connected, or not a producer."""
        return self._by_client.get(client_id)


@dataclass(slots=True)
class ConsumerGroup:
    """What the members of one group share."""

    name: str
    consume_type: str = PUSH
    message_model: str = CLUSTERING
    consume_from_where: str = FROM_LAST
    subscriptions: dict[str, SubscriptionData] = field(default_factory=dict)
    of_channel: dict[Channel, list[SubscriptionData]] = field(default_factory=dict)
    """What each member subscribes to. They should agree: `subscriptions` has the newest ones."""


class ConsumerTable(_ClientTable):
    """Consumers by group, and the subscriptions of each group.

    `on_members_changed(group, channels)`: the remaining members should rebalance the queues.
    `on_subscribed(group, subscriptions)`: after each heartbeat; `on_gone(group)`: the last member left.
    """

    def __init__(self) -> None:
        super().__init__()
        self._groups: dict[str, ConsumerGroup] = {}
        self.on_members_changed: list[Callable[[str, list[Channel]], None]] = []
        self.on_subscribed: list[Callable[[str, Iterable[SubscriptionData]], None]] = []
        self.on_gone: list[Callable[[str], None]] = []

    def register(
        self,
        group: str,
        client: Client,
        *,
        consume_type: str = PUSH,
        message_model: str = CLUSTERING,
        consume_from_where: str = FROM_LAST,
        subscriptions: Iterable[SubscriptionData] = (),
        notify: bool = True,
    ) -> bool:
        """Handles a heartbeat. True if a member or a topic is new or removed (with `notify`, all members are
        informed)."""
        subscriptions = list(subscriptions)
        info = self._groups.setdefault(group, ConsumerGroup(group))
        info.consume_type, info.message_model = consume_type, message_model
        info.consume_from_where = consume_from_where
        joined = self._members.add(group, client)
        info.of_channel[client.channel] = subscriptions
        resubscribed = self._subscribe(info, subscriptions)
        changed = joined or resubscribed
        if changed and notify:
            self._tell(group)
        for listener in self.on_subscribed:
            listener(group, subscriptions)
        return changed

    @staticmethod
    def _subscribe(info: ConsumerGroup, subscriptions: list[SubscriptionData]) -> bool:
        """True if the set of topics changed. A newer version of a known topic is stored, but is not a change."""
        changed = False
        for new in subscriptions:
            old = info.subscriptions.get(new.topic)
            if old is None or new.sub_version > old.sub_version:
                info.subscriptions[new.topic] = new
            changed = changed or old is None
        for topic in info.subscriptions.keys() - {new.topic for new in subscriptions}:
            del info.subscriptions[topic]
            changed = True
        return changed

    def unregister(self, group: str, channel: Channel, *, notify: bool = True) -> bool:
        """A member leaves. False if it was not a member."""
        if self._members.remove(group, channel) is None:
            return False
        self._groups[group].of_channel.pop(channel, None)
        if group not in self._members.groups:
            del self._groups[group]
            for listener in self.on_gone:
                listener(group)
        elif notify:
            self._tell(group)
        return True

    def _tell(self, group: str) -> None:
        channels = list(self._members.groups.get(group, ()))
        for listener in self.on_members_changed:
            listener(group, channels)

    def __iter__(self) -> Iterator[str]:
        return iter(list(self._groups))

    def get(self, group: str) -> ConsumerGroup | None:
        """What the group's members share; None if no member is connected."""
        return self._groups.get(group)

    def client_ids(self, group: str) -> list[str]:
        """The client ids, each once, also if a returning client has two connections for a short time."""
        return list(dict.fromkeys(client.client_id for client in self.members(group)))

    def find(self, group: str, client_id: str) -> Client | None:
        """The member's newest connection."""
        found = [client for client in self.members(group) if client.client_id == client_id]
        return max(found, key=lambda client: client.last_update_ms) if found else None

    def subscription(self, group: str, topic: str) -> SubscriptionData | None:
        """The group's subscription to the topic; None if it is not connected, or does not subscribe to it."""
        info = self._groups.get(group)
        return None if info is None else info.subscriptions.get(topic)

    def groups_of_topic(self, topic: str) -> set[str]:
        """Connected groups that subscribe to the topic."""
        return {name for name, info in self._groups.items() if topic in info.subscriptions}
