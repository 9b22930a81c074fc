"""Claims: which connection holds a broker's address and its broker name and id, and which wait. Without I/O and clock.

Each connection (the *owner*) that registers a broker makes one *claim* for each address that it registers. A claim
needs two keys: its address, and its place, which is broker name and broker id. A key has one holder.

    register ──keys are free──▶ holds ──connection ends, expires, unregisters──▶ gone; who waits is promoted
        └──another connection holds one──▶ waits ──the holder does not answer──▶ holds, and the holder waits

So a registration never ends that of another live connection: it waits behind it. A registration ends with its
connection; then the next claim that waits for its keys holds. Claims are promoted in the order in which they arrived.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from tallystick.node.nameserver.limits import MAX_CLAIMS, MAX_CLAIMS_OF_OWNER, MAX_TOPIC_ENTRIES, BoundsError
from tallystick.node.nameserver.registration import QueueData
from tallystick.store.tables import DataVersion

Key = tuple[str, int] | str
"""A place (broker name and id) or an address."""


@dataclass(slots=True, eq=False)
class Claim:
    """What one connection registered for one address.

    `source`: the IP address of the connection's other end. `term`: the term of a replicated group (0: not sent).
    `external`: the address for clients outside the brokers' network (empty: not sent). `topics`: all topics that a
    master registered over this connection. `displaced`: it lost its keys because its broker did not answer an inquiry.
    """

    owner: object
    address: str
    source: str = ""
    cluster: str = ""
    name: str = ""
    broker_id: int = 0
    ha_address: str = ""
    term: int = 0
    external: str = ""
    data_version: DataVersion | None = None
    topics: dict[str, QueueData] = field(default_factory=dict)
    filter_servers: list[str] = field(default_factory=list)
    seen_ms: int = 0
    holds: bool = False
    displaced: bool = False
    order: int = 0

    @property
    def keys(self) -> tuple[Key, Key]:
        """Address and place."""
        return self.address, (self.name, self.broker_id)

    def says_as(self, other: Claim) -> bool:
        """Returns whether both claim the same from the same host: one broker that has two connections."""
        return (
            self.keys == other.keys
            and (self.source, self.cluster, self.term) == (other.source, other.cluster, other.term)
            and (self.external, self.ha_address) == (other.external, other.ha_address)
        )


class ClaimBook:
    """All claims of one name server, and the holder of each key."""

    def __init__(self) -> None:
        self._owners: dict[object, dict[str, Claim]] = {}  # by owner and address
        self._holders: dict[Key, Claim] = {}
        self._waiting: dict[Key, dict[Claim, None]] = {}  # in the order in which they came
        self._numbers = itertools.count(1)
        self._count = 0
        self.topic_entries = 0
        """Number of topics of all claims together."""

    # --- reading ---

    def of(self, owner: object, address: str) -> Claim | None:
        """Returns this connection's claim for an address."""
        return self._owners.get(owner, {}).get(address)

    def all_of(self, owner: object) -> list[Claim]:
        """Returns all claims of a connection."""
        return list(self._owners.get(owner, {}).values())

    def holder(self, key: Key) -> Claim | None:
        """Returns the claim that holds a key; None: the key is free."""
        return self._holders.get(key)

    def has_any(self, claim: Claim) -> bool:
        """Returns whether the claim holds at least one of its keys."""
        return any(self._holders.get(key) is claim for key in claim.keys)

    def blockers(self, claim: Claim) -> list[Claim]:
        """Returns the claims of other connections that hold a key of this one."""
        found = {self._holders[key]: None for key in claim.keys if key in self._holders}
        return [holder for holder in found if holder is not claim and holder.owner != claim.owner]

    def waiting_for(self, keys: Iterable[Key]) -> list[Claim]:
        """Returns the claims that wait for one of these keys, the earliest first."""
        found = {claim for key in keys for claim in self._waiting.get(key, ())}
        return sorted(found, key=lambda claim: claim.order)

    def __iter__(self) -> Iterator[Claim]:
        return iter([claim for claims in self._owners.values() for claim in claims.values()])

    def __len__(self) -> int:
        return self._count

    @property
    def holding_count(self) -> int:
        """Number of addresses that are held."""
        return sum(type(key) is str for key in self._holders)

    # --- changes ---

    def enter(self, owner: object, address: str) -> Claim:
        """Returns a new claim, which neither holds nor waits. BoundsError: this connection or all have too many."""
        if len(self._owners.get(owner, ())) >= MAX_CLAIMS_OF_OWNER:
            raise BoundsError(f"this connection registered {MAX_CLAIMS_OF_OWNER} addresses, which is the limit")
        if self._count >= MAX_CLAIMS:
            raise BoundsError(f"{MAX_CLAIMS} broker addresses are registered, which is the limit")
        claim = Claim(owner, address, order=next(self._numbers))
        self._owners.setdefault(owner, {})[address] = claim
        self._count += 1
        return claim

    def set_topics(self, claim: Claim, topics: dict[str, QueueData]) -> None:
        """Replaces a claim's topics. BoundsError: all claims together would have too many; nothing changed."""
        total = self.topic_entries - len(claim.topics) + len(topics)
        if total > MAX_TOPIC_ENTRIES:
            raise BoundsError(f"all brokers together would have {total} topics; the limit is {MAX_TOPIC_ENTRIES}")
        self.topic_entries, claim.topics = total, topics

    def forget_topic(self, topic: str, name: str) -> None:
        """Removes a topic from the master of a broker name, until that registers the topic again."""
        holder = self._holders.get((name, 0))
        if holder is not None and holder.topics.pop(topic, None) is not None:
            self.topic_entries -= 1

    def hold(self, claim: Claim) -> None:
        """Gives the claim its keys. They must be free, or held by the same connection."""
        self._stop_waiting(claim)
        for key in claim.keys:
            self._holders[key] = claim
        claim.holds, claim.displaced = True, False

    def wait(self, claim: Claim, *, keep_address: bool = False) -> None:
        """Lets the claim wait for its keys. `keep_address`: it keeps its address, because the broker only waits for a
        new broker id."""
        self._let_go(claim)
        if keep_address:
            self._holders[claim.address] = claim
        for key in claim.keys:
            self._waiting.setdefault(key, {})[claim] = None

    def leave(self, claim: Claim) -> None:
        """Takes the claim's keys and ends its waiting, before its keys change."""
        self._let_go(claim)
        self._stop_waiting(claim)

    def remove(self, claim: Claim) -> None:
        """Removes a claim."""
        self.leave(claim)
        claims = self._owners.get(claim.owner, {})
        if claims.pop(claim.address, None) is not None:
            self._count -= 1
            self.topic_entries -= len(claim.topics)
        if not claims:
            self._owners.pop(claim.owner, None)

    def _let_go(self, claim: Claim) -> None:
        claim.holds = False
        for key in claim.keys:
            if self._holders.get(key) is claim:
                del self._holders[key]

    def _stop_waiting(self, claim: Claim) -> None:
        for key in claim.keys:
            waiting = self._waiting.get(key)
            if waiting is not None:
                waiting.pop(claim, None)
                if not waiting:
                    del self._waiting[key]
