"""The answers of a name server to clients and tools: routes and lists, made from the tables. Without I/O and clock.

The answers have the form in which clients get them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from typing import Any

from tallystick.node.nameserver.claims import ClaimBook
from tallystick.node.nameserver.registration import QueueData

_UNIT, _UNIT_SUB = 1, 2


@dataclass(slots=True)
class Broker:
    """One broker name: its cluster, and its addresses by broker id."""

    cluster: str
    name: str
    addresses: dict[int, str] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        return {"brokerAddrs": dict(self.addresses), "brokerName": self.name, "cluster": self.cluster}


class RouteAnswers:
    """The tables, for reading. `RouteTable` changes them."""

    def __init__(self) -> None:
        self.claims = ClaimBook()
        self._brokers: dict[str, Broker] = {}  # by name
        self._topics: dict[str, dict[str, QueueData]] = {}  # topic -> broker name -> queues

    def route(self, topic: str) -> dict[str, Any] | None:
        """Returns TopicRouteData: the queues of a topic and their brokers. None: no broker has the topic."""
        queues = self._topics.get(topic)
        brokers = [self._brokers[name] for name in sorted(queues or {}) if name in self._brokers]
        if not queues or not brokers:
            return None
        addresses = [address for broker in brokers for address in broker.addresses.values()]
        return {
            "brokerDatas": [broker.to_json() for broker in brokers],
            "filterServerTable": {
                address: claim.filter_servers
                for address in addresses
                if (claim := self.claims.holder(address)) is not None and claim.filter_servers
            },
            "queueDatas": [data.to_json(name) for name, data in queues.items()],
        }

    def cluster_info(self) -> dict[str, Any]:
        """Returns ClusterInfo: all broker names, and the broker names of each cluster."""
        return {
            "brokerAddrTable": {name: broker.to_json() for name, broker in self._brokers.items()},
            "clusterAddrTable": {cluster: sorted(names) for cluster, names in self._clusters().items()},
        }

    def external_route(self, topic: str) -> dict[str, Any] | None:
        """Returns the same as `route` for external clients, without the brokers that they cannot reach."""
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
        """Returns the same as `cluster_info` for external clients."""
        brokers = self._external(self._brokers.values())
        clusters = {cluster: sorted(names & brokers.keys()) for cluster, names in self._clusters().items()}
        return {
            "brokerAddrTable": {name: broker.to_json() for name, broker in brokers.items()},
            "clusterAddrTable": {cluster: names for cluster, names in clusters.items() if names},
        }

    def _external(self, brokers: Iterable[Broker]) -> dict[str, Broker]:
        """Returns brokers by name, with their external addresses; without brokers that have no such address."""
        found = {}
        for broker in brokers:
            known = ((key, self.claims.holder(address)) for key, address in broker.addresses.items())
            addresses = {key: claim.external for key, claim in known if claim is not None and claim.external}
            if addresses:
                found[broker.name] = replace(broker, addresses=addresses)
        return found

    def _clusters(self) -> dict[str, set[str]]:
        """Returns broker names by cluster. A name may be in several, because each of its addresses names a cluster."""
        found: dict[str, set[str]] = {}
        for broker in self._brokers.values():
            for address in broker.addresses.values():
                claim = self.claims.holder(address)
                found.setdefault(broker.cluster if claim is None else claim.cluster, set()).add(broker.name)
        return found

    @property
    def address_count(self) -> int:
        """Number of broker addresses with a registration that is in effect."""
        return self.claims.holding_count

    @property
    def waiting_count(self) -> int:
        """Number of registrations that wait for the end of another connection's."""
        return sum(not claim.holds for claim in self.claims)

    def topics(self) -> list[str]:
        """Returns all topics."""
        return sorted(self._topics)

    def topics_of_cluster(self, cluster: str) -> list[str]:
        """Returns the topics of a cluster's brokers."""
        names = self._clusters().get(cluster, set())
        return sorted(topic for topic, queues in self._topics.items() if not names.isdisjoint(queues))

    def system_names(self) -> list[str]:
        """Returns the names of clusters and brokers. Each is also a topic, with which tools test one broker."""
        return sorted({*self._clusters(), *self._brokers})

    def any_address(self) -> str | None:
        """Returns the address of any broker, which clients ask for its system topics."""
        return next((address for broker in self._brokers.values() for address in broker.addresses.values()), None)

    def unit_topics(self) -> list[str]:
        """Returns the topics with the unit flag."""
        return self._by_flag(lambda flag: flag & _UNIT != 0)

    def unit_sub_topics(self) -> list[str]:
        """Returns the topics with the unit-sub flag."""
        return self._by_flag(lambda flag: flag & _UNIT_SUB != 0)

    def unit_sub_only_topics(self) -> list[str]:
        """Returns the topics with the unit-sub flag and without the unit flag."""
        return self._by_flag(lambda flag: flag & (_UNIT | _UNIT_SUB) == _UNIT_SUB)

    def _by_flag(self, accept: Callable[[int], bool]) -> list[str]:
        return sorted(topic for topic, queues in self._topics.items() if accept(_first(queues.values()).sys_flag))


def _first(queues: Iterable[QueueData]) -> QueueData:
    return next(iter(queues))  # a topic without queues is not kept
