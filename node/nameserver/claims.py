"""Who holds a broker's address and its place under a broker name, and who waits for them. No I/O and no clock here.

Each connection (the *owner*) that registers a broker makes a *claim*: one for each address that it registers. A claim
asks for two keys: its address, and its place, which is broker name and broker id. A key has one holder.

    register ──keys are free──▶ holds ──connection ends, expires, unregisters──▶ gone; who waits is promoted
        └──another connection holds one──▶ waits ──the holder does not answer──▶ holds, and the holder waits

So a registration never ends what another live connection registered: it waits behind it. What it changed ends with its
connection, and the claim behind it holds again. Claims that wait are promoted in the order in which they came.
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

    `source`: the IP that the connection comes from. `term`: the term of a replicated group (0: none is told).
    `external`: the address for clients outside of the brokers' network (empty: there is none). `topics`: all that a
    master registered over this connection. `displaced`: it held, and did not answer when another one asked for its key.
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
        """Both say the same of the same broker, from the same host: one broker that has two connections."""
        return (
            self.keys == other.keys
            and (self.source, self.cluster, self.term) == (other.source, other.cluster, other.term)
            and (self.external, self.ha_address) == (other.external, other.ha_address)
        )


class ClaimBook:
    """All claims of one name server, and who holds which key."""

    def __init__(self) -> None:
        self._owners: dict[object, dict[str, Claim]] = {}  # by owner and address
        self._holders: dict[Key, Claim] = {}
        self._waiting: dict[Key, dict[Claim, None]] = {}  # in the order in which they came
        self._numbers = itertools.count(1)
        self._count = 0
        self.topic_entries = 0
        """Topics of all claims together."""

    # --- questions ---

    def of(self, owner: object, address: str) -> Claim | None:
        """This connection's claim for an address."""
        return self._owners.get(owner, {}).get(address)

    def all_of(self, owner: object) -> list[Claim]:
        """All claims of a connection."""
        return list(self._owners.get(owner, {}).values())

    def holder(self, key: Key) -> Claim | None:
        """Who has this address or this place."""
        return self._holders.get(key)

    def has_any(self, claim: Claim) -> bool:
        """The claim holds, or at least keeps its address."""
        return any(self._holders.get(key) is claim for key in claim.keys)

    def blockers(self, claim: Claim) -> list[Claim]:
        """The claims of other connections that hold a key of this one."""
        found = {self._holders[key]: None for key in claim.keys if key in self._holders}
        return [holder for holder in found if holder is not claim and holder.owner != claim.owner]

    def waiting_for(self, keys: Iterable[Key]) -> list[Claim]:
        """The claims that wait for one of these keys, the earliest first."""
        found = {claim for key in keys for claim in self._waiting.get(key, ())}
        return sorted(found, key=lambda claim: claim.order)

    def __iter__(self) -> Iterator[Claim]:
        return iter([claim for claims in self._owners.values() for claim in claims.values()])

    def __len__(self) -> int:
        return self._count

    @property
    def holding_count(self) -> int:
        """Addresses that are held."""
        return sum(type(key) is str for key in self._holders)

    # --- changes ---

    def enter(self, owner: object, address: str) -> Claim:
        """A new claim, which is in no list yet. BoundsError: this connection or all together have too many."""
        if len(self._owners.get(owner, ())) >= MAX_CLAIMS_OF_OWNER:
            raise BoundsError(f"this connection registered {MAX_CLAIMS_OF_OWNER} addresses, no more are allowed")
        if self._count >= MAX_CLAIMS:
            raise BoundsError(f"{MAX_CLAIMS} broker addresses are registered, no more are allowed")
        claim = Claim(owner, address, order=next(self._numbers))
        self._owners.setdefault(owner, {})[address] = claim
        self._count += 1
        return claim

    def set_topics(self, claim: Claim, topics: dict[str, QueueData]) -> None:
        """Replace a claim's topics. BoundsError: all claims together would have too many; nothing was changed."""
        total = self.topic_entries - len(claim.topics) + len(topics)
        if total > MAX_TOPIC_ENTRIES:
            raise BoundsError(f"all brokers together would have {total} topics, {MAX_TOPIC_ENTRIES} are allowed")
        self.topic_entries, claim.topics = total, topics

    def forget_topic(self, topic: str, name: str) -> None:
        """The holder of this name's master place does not have the topic any more, until it registers it again."""
        holder = self._holders.get((name, 0))
        if holder is not None and holder.topics.pop(topic, None) is not None:
            self.topic_entries -= 1

    def hold(self, claim: Claim) -> None:
        """Give the claim its keys, which must be free or held by the same connection."""
        self._stop_waiting(claim)
        for key in claim.keys:
            self._holders[key] = claim
        claim.holds, claim.displaced = True, False

    def wait(self, claim: Claim, *, keep_address: bool = False) -> None:
        """Put the claim behind those that hold its keys. `keep_address`: a broker that waits for another id than it
        had; its address stays its own meanwhile."""
        self._let_go(claim)
        if keep_address:
            self._holders[claim.address] = claim
        for key in claim.keys:
            self._waiting.setdefault(key, {})[claim] = None

    def leave(self, claim: Claim) -> None:
        """The claim neither holds nor waits: its keys are about to change."""
        self._let_go(claim)
        self._stop_waiting(claim)

    def remove(self, claim: Claim) -> None:
        """The claim is over."""
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
