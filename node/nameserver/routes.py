"""The name server's tables: clusters, brokers, their addresses and topics. No I/O and no clock here.

A *broker name* is a group of addresses by broker id: 0 is the master, others are slaves. It lives as long as one of its
addresses does. An address lives as long as its broker registers (or asks for its data version) often enough, and the
connection that it registered over stays.

Topics come from masters only. A registration adds topics and replaces those of that broker. It removes none, as a
broker of RocketMQ's tells of one changed topic by registering that one alone; unless it says that it has them all, as
ours do. Else they go when the broker name goes, or by `delete_topic`. A master that registers again with an unchanged
data version is not compared topic by topic, so `wipe` lasts until the broker changes something. Source: apache/rocketmq
4.8.0, namesrv/routeinfo/RouteInfoManager.java.

The tables show what *holders* registered (`claims`). A registration of an address, or of a name and id, that another
live connection registered waits behind it (`HeldError`), whatever term it names: a leader that was deposed withdraws or
registers as a slave as soon as it knows, and its successor is promoted at that moment. The owner of the tables asks
the holder whether it still lives, and calls `displace` if it does not answer. When a claim ends, the next one takes its
place with its own topics, so what a connection changed ends with it.

For `TERM_MEMORY_MS` after a leader was lost no leader of a lower term takes its place (B6): it is one that was deposed
and does not know it yet.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable
from dataclasses import dataclass, replace

from tallystick.node.nameserver.answers import Broker, RouteAnswers
from tallystick.node.nameserver.claims import Claim, Key
from tallystick.node.nameserver.limits import BoundsError, check_body
from tallystick.node.nameserver.registration import MAX_TOPICS, QueueData, RegisterBody
from tallystick.store.tables import DataVersion

MASTER_ID = 0
TERM_MEMORY_MS = 5_000
_PERM_WRITE = 2


class StaleTermError(ValueError):
    """A registration of a term that is over; the text says which one holds. It changed nothing."""


class HeldError(ValueError):
    """Another connection holds the address, or the name and id. `claim` waits behind `holders`; None: it was a
    farewell, which changed nothing."""

    def __init__(self, claim: Claim | None, holders: list[Claim]) -> None:
        self.claim, self.holders = claim, holders
        held = ", ".join(f"{each.name} id {each.broker_id} at {each.address} (term {each.term})" for each in holders)
        super().__init__(f"another live connection holds {held}")


@dataclass(frozen=True, slots=True)
class MasterAddress:
    """What a slave is told at its registration; both None if no master is live."""

    ha_address: str | None = None
    address: str | None = None


class RouteTable(RouteAnswers):
    """All tables of one name server. `now_ms` is any clock that only goes forward."""

    def __init__(self) -> None:
        super().__init__()
        self.on_held: list[Callable[[Claim], None]] = []
        """Called for each claim that waited and holds now."""
        self._topics_of: dict[str, set[str]] = {}  # broker name -> its topics in `_topics`
        self._ended_terms: dict[str, tuple[int, int]] = {}  # broker name -> term of the lost leader, until when

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
        source: str = "",
    ) -> MasterAddress:
        """Registers a broker. Its id or its address may have changed since the last time.

        `term`: of a replicated group's member; 0: it does not say. `source`: the IP that the connection comes from.
        `external`: where clients outside of the brokers' network reach it; empty: nowhere.
        `whole`: topics that are not in `body` are not on this broker any more.
        HeldError: the claim waits behind another connection's. StaleTermError, BoundsError: nothing was changed.
        """
        check_body(body)
        claim = self.claims.of(owner, address)
        self._refuse_stale(claim, name, broker_id, address, term, now_ms)
        if claim is None:
            claim = self.claims.enter(owner, address)
        moved = claim.keys != (address, (name, broker_id))
        changed = moved or body.data_version != claim.data_version
        try:
            self._keep_topics(claim, body, broker_id, whole=whole or moved, changed=changed)
        except BoundsError:
            if not claim.name:  # it was entered just now
                self.claims.remove(claim)
            raise
        known, place = self.claims.has_any(claim), (claim.name, claim.broker_id)
        if moved:
            self._vacate(claim)
            self.claims.leave(claim)
        claim.source, claim.cluster, claim.name, claim.broker_id = source, cluster, name, broker_id
        claim.ha_address, claim.external, claim.term = ha_address, external, term
        claim.data_version, claim.seen_ms = body.data_version, now_ms
        if body.filter_servers is not None:
            claim.filter_servers = body.filter_servers
        blockers = self.claims.blockers(claim)
        if claim.displaced and all(_yields(holder, claim) for holder in blockers):
            self._displace(blockers)
            blockers, whole = [], True
        if blockers:
            self.claims.wait(claim, keep_address=known)
        else:
            self._hold(claim, body.topics if changed else None, whole=whole)
        if known and moved:
            self._promote(place)
        if blockers:
            raise HeldError(claim, blockers)
        return self.master_of(claim)

    def _keep_topics(self, claim: Claim, body: RegisterBody, broker_id: int, *, whole: bool, changed: bool) -> None:
        if broker_id != MASTER_ID:
            self.claims.set_topics(claim, {})
        elif changed:
            merged = body.topics if whole else claim.topics | body.topics
            # A broker that registers its topics one by one: past the limit only what it said last is kept.
            self.claims.set_topics(claim, merged if len(merged) <= MAX_TOPICS else body.topics)

    def master_of(self, claim: Claim) -> MasterAddress:
        """What the broker of this claim is told of its master."""
        master = self.claims.holder((claim.name, MASTER_ID))
        if claim.broker_id == MASTER_ID or master is None:
            return MasterAddress()
        return MasterAddress(master.ha_address, master.address)

    def _refuse_stale(
        self, claim: Claim | None, name: str, broker_id: int, address: str, term: int, now_ms: int
    ) -> None:
        if not term:
            return
        if claim is not None and term < claim.term:
            raise StaleTermError(f"{address} spoke in term {claim.term}, this is of term {term}")
        ended, until_ms = self._ended_terms.get(name, (0, 0))
        if now_ms >= until_ms:
            self._ended_terms.pop(name, None)
        elif broker_id == MASTER_ID and term < ended and (claim is None or not claim.holds):
            raise StaleTermError(f"{name} has had a master of term {ended}, this is of term {term}")

    def displace(self, holder: Claim, claim: Claim) -> None:
        """`holder` does not answer: `claim`, which waits behind it, takes its keys if nobody else has them."""
        if claim.holds or holder not in self.claims.blockers(claim):
            return
        self._displace([holder])
        if not self.claims.blockers(claim):
            self._hold(claim, claim.topics)
            self._tell_held(claim)
        self._promote(*holder.keys)

    def _displace(self, holders: Iterable[Claim]) -> None:
        for holder in holders:
            self._vacate(holder)
            self.claims.wait(holder)
            holder.displaced = True

    def unregister(self, address: str, *, owner: object = None, now_ms: int | None = None) -> None:
        """A broker says goodbye. One that is not known is fine, and so is one whose place another has taken.

        Whatever name and id it told last: by its address. HeldError: another connection registered the address, and
        nothing was changed.
        """
        claim = self.claims.of(owner, address)
        if claim is not None:
            self.remove(claim, now_ms)
        elif (holder := self.claims.holder(address)) is not None:
            raise HeldError(None, [holder])

    def expire(self, now_ms: int, silent_ms: int) -> list[object]:
        """Forget addresses that were not heard of for more than `silent_ms`; returns the owners of those."""
        expired = [claim for claim in self.claims if now_ms - claim.seen_ms > silent_ms]
        for claim in expired:
            self.remove(claim, now_ms)
        return [claim.owner for claim in expired]

    def owner_lost(self, owner: object, now_ms: int | None = None) -> list[str]:
        """Forget what was registered over this connection; returns the addresses that it held."""
        claims = self.claims.all_of(owner)
        held = [claim.address for claim in claims if claim.holds]
        for claim in claims:
            self.remove(claim, now_ms)
        return held

    def remove(self, claim: Claim, now_ms: int | None = None) -> None:
        """A claim is over; those that wait for its keys are promoted."""
        had_any = self.claims.has_any(claim)
        self._vacate(claim)
        self.claims.remove(claim)
        if not had_any:
            return
        self._promote(*claim.keys)
        vacant = self.claims.holder((claim.name, MASTER_ID)) is None
        if vacant and claim.broker_id == MASTER_ID and claim.term and claim.name in self._brokers:
            since_ms = claim.seen_ms if now_ms is None else now_ms
            self._ended_terms[claim.name] = claim.term, since_ms + TERM_MEMORY_MS

    # --- what holders registered, as it is shown ---

    def _hold(self, claim: Claim, news: dict[str, QueueData] | None, *, whole: bool = False) -> None:
        """The claim has its keys: show it. Claims of the same connection give way to their newest one.

        `news`: topics that changed since it was shown; None: none did. `whole`: the name has no topics but the claim's.
        """
        for key in claim.keys:
            older = self.claims.holder(key)
            if older is not None and older is not claim:
                self._vacate(older)
                self.claims.remove(older)
        broker = self._brokers.setdefault(claim.name, Broker(claim.cluster, claim.name))
        if claim.broker_id == MASTER_ID:
            broker.cluster = claim.cluster
        # Another master has something to tell, though its version is that of its time as a slave, whose topics we left.
        first = broker.addresses.get(claim.broker_id) != claim.address
        broker.addresses[claim.broker_id] = claim.address
        self.claims.hold(claim)
        if claim.broker_id == MASTER_ID and (first or news is not None):
            self._show_topics(claim, claim.topics if first or news is None else news, whole)

    def _show_topics(self, claim: Claim, news: dict[str, QueueData], whole: bool) -> None:
        known = self._topics_of.setdefault(claim.name, set())
        if whole or len(known) + len(news) > MAX_TOPICS:
            self._forget_topics(claim.name, claim.topics)
        for topic, queues in news.items():
            self._topics.setdefault(topic, {})[claim.name] = queues
        known.update(news)

    def _forget_topics(self, name: str, kept: Container[str] = ()) -> None:
        known = self._topics_of.get(name, set())
        for topic in [topic for topic in known if topic not in kept]:
            known.discard(topic)
            brokers = self._topics.get(topic, {})
            brokers.pop(name, None)
            if not brokers:
                self._topics.pop(topic, None)

    def _vacate(self, claim: Claim) -> None:
        """Show it no more. Its name goes by `_promote`, if nobody takes its place."""
        broker = self._brokers.get(claim.name)
        if claim.holds and broker is not None and broker.addresses.get(claim.broker_id) == claim.address:
            del broker.addresses[claim.broker_id]

    def _promote(self, *keys: Key) -> None:
        """Keys are free: claims that wait for them get them, the earliest first; a name without addresses goes."""
        for waiting in self.claims.waiting_for(keys):
            if not self.claims.blockers(waiting):
                # What the one before it registered goes with it.
                self._hold(waiting, waiting.topics, whole=True)
                self._tell_held(waiting)
        for key in keys:
            if not isinstance(key, str):
                self._forget_if_empty(key[0])

    def _tell_held(self, claim: Claim) -> None:
        for callback in self.on_held:
            callback(claim)

    def _forget_if_empty(self, name: str) -> None:
        broker = self._brokers.get(name)
        if broker is None or broker.addresses:
            return
        del self._brokers[name]
        self._ended_terms.pop(name, None)
        self._forget_topics(name)
        self._topics_of.pop(name, None)

    # --- data versions ---

    def data_version(self, address: str, owner: object = None) -> DataVersion | None:
        """The version of the last registration over this connection, or else of who holds the address; None: none."""
        claim = self.claims.of(owner, address) or self.claims.holder(address)
        return claim.data_version if claim is not None else None

    def is_changed(self, address: str, version: DataVersion, owner: object = None) -> bool:
        """A broker with this version has something to tell."""
        return self.data_version(address, owner) != version

    def touch(self, address: str, now_ms: int, owner: object = None) -> None:
        """A sign of life without a registration, over the connection that registered."""
        if (claim := self.claims.of(owner, address)) is not None:
            claim.seen_ms = now_ms

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
        for name in self._topics.pop(topic, {}):
            self._topics_of.get(name, set()).discard(topic)
            self.claims.forget_topic(topic, name)


def _yields(holder: Claim, displaced: Claim) -> bool:
    """A claim that took another one's place gives it back when that one speaks again, unless its term is higher: then
    it leads a group, and the other one was deposed while it stood still."""
    return holder.order > displaced.order and holder.term <= displaced.term
