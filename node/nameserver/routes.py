"""The name server's tables: clusters, brokers, their addresses and topics. No I/O and no clock here.

A *broker name* is a group of addresses by broker id: 0 is the master, others are slaves. It lives as long as one of its
addresses does. An address lives as long as its broker registers (or asks for its data version) often enough, and the
connection that it registered over stays.

Topics come from masters only. A registration adds topics and replaces those of that broker. It removes none, as a
broker of RocketMQ's tells of one changed topic by registering that one alone; unless it says that it has them all, as
ours do. Else they go when the broker name goes, or by `delete_topic`. A master that registers again with an unchanged
data version is not compared topic by topic, so `wipe` lasts until the broker changes something. Source: apache/rocketmq
4.8.0, namesrv/routeinfo/RouteInfoManager.java.

Members of a replicated group say in which term they speak. Registrations may overtake each other on their way, so one
of a lower term never takes the place of one of a higher term (B6): a leader that was deposed and does not know it yet
cannot take the route from its successor, nor can an old farewell end it.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable
from dataclasses import dataclass, field, replace
from typing import Any

from tallystick.node.nameserver.registration import QueueData, RegisterBody
from tallystick.store.tables import DataVersion

MASTER_ID = 0
_PERM_WRITE = 2
_UNIT, _UNIT_SUB = 1, 2


@dataclass(slots=True)
class Broker:
    """One broker name: its cluster, and its addresses by broker id. `master_term`: in which its master was elected."""

    cluster: str
    name: str
    addresses: dict[int, str] = field(default_factory=dict)
    master_term: int = 0

    def to_json(self) -> dict[str, Any]:
        return {"brokerAddrs": dict(self.addresses), "brokerName": self.name, "cluster": self.cluster}


@dataclass(slots=True)
class Live:
    """One address that registered. `owner` is the connection it came over, `term` the one it spoke in (0: none),
    `external` the address for clients outside of the brokers' network (empty: there is none)."""

    seen_ms: int
    data_version: DataVersion
    owner: object
    ha_address: str
    term: int = 0
    external: str = ""


class StaleTermError(ValueError):
    """A registration of a term that is over; the text says which one holds."""


@dataclass(frozen=True, slots=True)
class MasterAddress:
    """What a slave is told at its registration; both None if no master is live."""

    ha_address: str | None = None
    address: str | None = None


class RouteTable:
    """All tables of one name server. `now_ms` is any clock that only goes forward."""

    def __init__(self) -> None:
        self._clusters: dict[str, set[str]] = {}  # -> broker names
        self._brokers: dict[str, Broker] = {}  # by name
        self._topics: dict[str, dict[str, QueueData]] = {}  # topic -> broker name -> queues
        self._live: dict[str, Live] = {}  # by address
        self._filter_servers: dict[str, list[str]] = {}  # by broker address

    # --- brokers come and go ---

    def register(
        self,
        cluster: str,
        name: str,
        broker_id: int,
        address: str,
        ha_address: str,
        body: RegisterBody,
        *,
        owner: object,
        now_ms: int,
        term: int = 0,
        external: str = "",
        whole: bool = False,
    ) -> MasterAddress:
        """A broker tells of itself. It may have changed its id or its address since the last time.

        `term`: of a replicated group's member; 0: it does not say. StaleTermError: a higher one was here.
        `external`: where clients outside of the brokers' network reach it; empty: nowhere.
        `whole`: topics that are not in `body` are not on this broker any more.
        """
        self._refuse_stale(name, broker_id, address, term)
        self._clusters.setdefault(cluster, set()).add(name)
        broker = self._brokers.setdefault(name, Broker(cluster, name))
        for other_id, other_address in list(broker.addresses.items()):
            if other_address == address and other_id != broker_id:
                del broker.addresses[other_id]  # a slave became master, or the other way round
        # Another master has something to tell, though its version is that of its time as a slave, whose topics we left.
        first = broker.addresses.get(broker_id) != address
        broker.addresses[broker_id] = address
        if broker_id == MASTER_ID:
            broker.master_term = term
        if broker_id == MASTER_ID and (first or self.is_changed(address, body.data_version)):
            for topic, queues in body.topics.items():
                self._topics.setdefault(topic, {})[name] = queues
            if whole:
                self._forget_all_but(name, body.topics)
        self._live[address] = Live(now_ms, body.data_version, owner, ha_address, term, external)
        if body.filter_servers:
            self._filter_servers[address] = body.filter_servers
        elif body.filter_servers is not None:
            self._filter_servers.pop(address, None)
        master = broker.addresses.get(MASTER_ID)
        if broker_id == MASTER_ID or master is None or master not in self._live:
            return MasterAddress()
        return MasterAddress(self._live[master].ha_address, master)

    def _forget_all_but(self, name: str, kept: Container[str]) -> None:
        for topic in [topic for topic, brokers in self._topics.items() if name in brokers and topic not in kept]:
            del self._topics[topic][name]
            if not self._topics[topic]:
                del self._topics[topic]

    def _refuse_stale(self, name: str, broker_id: int, address: str, term: int) -> None:
        if not term:
            return
        live = self._live.get(address)
        if live is not None and term < live.term:
            raise StaleTermError(f"{address} spoke in term {live.term}, this is of term {term}")
        broker = self._brokers.get(name)
        if broker is not None and broker_id == MASTER_ID and term < broker.master_term:
            raise StaleTermError(f"{name} has had a master of term {broker.master_term}, this is of term {term}")

    def unregister(self, name: str, broker_id: int, address: str) -> None:
        """A broker says goodbye. One that is not known is fine, and so is one whose place another has taken."""
        self._live.pop(address, None)
        self._filter_servers.pop(address, None)
        broker = self._brokers.get(name)
        if broker is not None:
            # By address: it may have told of its last id on a way that ended here, and nobody would end the other one.
            broker.addresses = {key: value for key, value in broker.addresses.items() if value != address}
            self._forget_if_empty(broker)

    def expire(self, now_ms: int, silent_ms: int) -> list[object]:
        """Forget addresses that were not heard of for more than `silent_ms`; returns the owners of those."""
        expired = [address for address, live in self._live.items() if now_ms - live.seen_ms > silent_ms]
        return [self._lose(address).owner for address in expired]

    def owner_lost(self, owner: object) -> list[str]:
        """Forget the addresses whose last registration came over this connection; returns them."""
        addresses = [address for address, live in self._live.items() if live.owner is owner]
        for address in addresses:
            self._lose(address)
        return addresses

    def _lose(self, address: str) -> Live:
        live = self._live.pop(address)
        self._filter_servers.pop(address, None)
        for broker in list(self._brokers.values()):
            if address in broker.addresses.values():
                broker.addresses = {key: value for key, value in broker.addresses.items() if value != address}
                self._forget_if_empty(broker)
        return live

    def _forget_if_empty(self, broker: Broker) -> None:
        if broker.addresses:
            return
        del self._brokers[broker.name]
        for cluster, names in list(self._clusters.items()):
            names.discard(broker.name)
            if not names:
                del self._clusters[cluster]
        for topic, queues in list(self._topics.items()):
            queues.pop(broker.name, None)
            if not queues:
                del self._topics[topic]

    # --- data versions ---

    def data_version(self, address: str) -> DataVersion | None:
        """The version of the last registration; None: there is none."""
        live = self._live.get(address)
        return live.data_version if live is not None else None

    def is_changed(self, address: str, version: DataVersion) -> bool:
        """A broker with this version has something to tell."""
        return self.data_version(address) != version

    def touch(self, address: str, now_ms: int) -> None:
        """A sign of life without a registration."""
        if (live := self._live.get(address)) is not None:
            live.seen_ms = now_ms

    # --- changes by hand ---

    def wipe(self, broker_name: str) -> int:
        """Take the write permission from all topics of a broker name; how many topics it has."""
        count = 0
        for queues in self._topics.values():
            if (data := queues.get(broker_name)) is not None:
                queues[broker_name] = replace(data, perm=data.perm & ~_PERM_WRITE)
                count += 1
        return count

    def delete_topic(self, topic: str) -> None:
        """Forget a topic until a master tells of it again."""
        self._topics.pop(topic, None)

    # --- questions; the answers are in the form that goes to clients ---

    def route(self, topic: str) -> dict[str, Any] | None:
        """TopicRouteData: the topic's queues and the brokers that hold them. None: no broker has it."""
        queues = self._topics.get(topic)
        brokers = [self._brokers[name] for name in sorted(queues or {}) if name in self._brokers]
        if not queues or not brokers:
            return None
        addresses = [address for broker in brokers for address in broker.addresses.values()]
        return {
            "brokerDatas": [broker.to_json() for broker in brokers],
            "filterServerTable": {
                address: self._filter_servers[address] for address in addresses if address in self._filter_servers
            },
            "queueDatas": [data.to_json(name) for name, data in queues.items()],
        }

    def cluster_info(self) -> dict[str, Any]:
        """ClusterInfo: every broker name, and which cluster has which."""
        return {
            "brokerAddrTable": {name: broker.to_json() for name, broker in self._brokers.items()},
            "clusterAddrTable": {cluster: sorted(names) for cluster, names in self._clusters.items()},
        }

    def external_route(self, topic: str) -> dict[str, Any] | None:
        """The same as `route` for clients outside: brokers that they cannot reach are left out, with their queues."""
        route = self.route(topic)
        if route is None:
            return None
        brokers = self._external([self._brokers[broker["brokerName"]] for broker in route["brokerDatas"]])
        if not brokers:
            return None
        return {
            "brokerDatas": [broker.to_json() for broker in brokers.values()],
            "filterServerTable": {},  # they are in the brokers' network
            "queueDatas": [queues for queues in route["queueDatas"] if queues["brokerName"] in brokers],
        }

    def external_cluster_info(self) -> dict[str, Any]:
        """The same as `cluster_info` for clients outside."""
        brokers = self._external(self._brokers.values())
        clusters = {cluster: sorted(names & brokers.keys()) for cluster, names in self._clusters.items()}
        return {
            "brokerAddrTable": {name: broker.to_json() for name, broker in brokers.items()},
            "clusterAddrTable": {cluster: names for cluster, names in clusters.items() if names},
        }

    def _external(self, brokers: Iterable[Broker]) -> dict[str, Broker]:
        """By name, with external addresses only; without those that have none."""
        found = {}
        for broker in brokers:
            known = ((key, self._live.get(address)) for key, address in broker.addresses.items())
            addresses = {key: live.external for key, live in known if live is not None and live.external}
            if addresses:
                found[broker.name] = replace(broker, addresses=addresses)
        return found

    @property
    def address_count(self) -> int:
        """Addresses of brokers that registered and were heard of lately."""
        return len(self._live)

    def topics(self) -> list[str]:
        """Every topic."""
        return sorted(self._topics)

    def topics_of_cluster(self, cluster: str) -> list[str]:
        """Topics that a broker of this cluster has."""
        names = self._clusters.get(cluster, set())
        return sorted(topic for topic, queues in self._topics.items() if not names.isdisjoint(queues))

    def system_names(self) -> list[str]:
        """Names of clusters and brokers: each is a topic too, for tools that try one broker."""
        return sorted({*self._clusters, *(name for names in self._clusters.values() for name in names)})

    def any_address(self) -> str | None:
        """An address of some broker, to ask it for its system topics."""
        return next((address for broker in self._brokers.values() for address in broker.addresses.values()), None)

    def unit_topics(self) -> list[str]:
        """Topics with the unit flag."""
        return self._by_flag(lambda flag: flag & _UNIT != 0)

    def unit_sub_topics(self) -> list[str]:
        """Topics with the unit-sub flag."""
        return self._by_flag(lambda flag: flag & _UNIT_SUB != 0)

    def unit_sub_only_topics(self) -> list[str]:
        """Topics with the unit-sub flag but not the unit flag."""
        return self._by_flag(lambda flag: flag & (_UNIT | _UNIT_SUB) == _UNIT_SUB)

    def _by_flag(self, accept: Callable[[int], bool]) -> list[str]:
        return sorted(topic for topic, queues in self._topics.items() if accept(_first(queues.values()).sys_flag))


def _first(queues: Iterable[QueueData]) -> QueueData:
    return next(iter(queues))  # a topic without queues is not kept
