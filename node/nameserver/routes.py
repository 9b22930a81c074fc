"""The tables of a name server: clusters, brokers, their addresses and topics. Without I/O and clock.

A *broker name* has addresses by broker id: 0 is the master, others are slaves. It exists as long as it has an address.
An address exists as long as its broker registers (or asks for its data version) often enough, and the connection of
its registration is open.

Only masters register topics. A registration adds topics, and replaces topics of the same broker. It removes a topic
only if it says that it contains all topics, as tallystick's brokers do: a broker of RocketMQ also registers a single
topic after a change. Other topics are removed with their broker name, or by `delete_topic`. If a master registers with
an unchanged data version, its topics are not compared, so `wipe` lasts until the broker changes a topic. Source:
apache/rocketmq 4.8.0, namesrv/routeinfo/RouteInfoManager.java.

The tables show what *holders* registered (`claims`). A registration of an address, or of a name and id, that another
live connection holds waits behind that one (`HeldError`), whatever its term: a former leader withdraws or registers as
a slave as soon as it learns of its successor, which is then promoted. The owner of the tables asks the holder whether
it is alive, and calls `displace` if it does not answer. When a claim ends, the next one replaces it with its own
topics, so the changes of a connection end with it.

For `TERM_MEMORY_MS` after the end of a leader's claim, no leader of a lower term can replace it (B6): such a leader has
lost leadership and does not know it yet.
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
    """A registration of an earlier term. The text has the present term. Nothing changed."""


class HeldError(ValueError):
    """Another connection holds the address, or the name and id. `claim` waits behind `holders`; None: it was an
    unregistration, which changed nothing."""

    def __init__(self, claim: Claim | None, holders: list[Claim]) -> None:
        self.claim, self.holders = claim, holders
        held = ", ".join(f"{each.name} id {each.broker_id} at {each.address} (term {each.term})" for each in holders)
        super().__init__(f"another live connection holds {held}")


@dataclass(frozen=True, slots=True)
class MasterAddress:
    """The addresses of the master, for the answer to a slave's registration. None: no master is registered."""

    ha_address: str | None = None
    address: str | None = None


class RouteTable(RouteAnswers):
    """All tables of one name server. `now_ms` is from a clock that only goes forward."""

    def __init__(self) -> None:
        super().__init__()
        self.on_held: list[Callable[[Claim], None]] = []
        """Functions to call with each claim that waited and holds now."""
        self._topics_of: dict[str, set[str]] = {}  # broker name -> its topics in `_topics`
        self._ended_terms: dict[str, tuple[int, int]] = {}  # broker name -> term of the lost leader, until when

    # --- registrations ---

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
        """Registers a broker. Its id or its address may differ from those of its last registration.

        `term`: of a member of a replicated group; 0: not sent. `source`: the IP address of the connection's other end.
        `external`: the address for clients outside the brokers' network; empty: they cannot reach the broker.
        `whole`: the broker no longer has topics that are not in `body`.
        HeldError: the claim waits behind another connection's. StaleTermError, BoundsError: nothing changed.
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
            if not claim.name:  # it is new
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
            # A broker that registers single topics: above the limit only those of its last registration are kept.
            self.claims.set_topics(claim, merged if len(merged) <= MAX_TOPICS else body.topics)

    def master_of(self, claim: Claim) -> MasterAddress:
        """Returns the master's addresses for the answer to this claim's broker."""
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
            raise StaleTermError(f"{address} registered in term {claim.term}, this registration is of term {term}")
        ended, until_ms = self._ended_terms.get(name, (0, 0))
        if now_ms >= until_ms:
            self._ended_terms.pop(name, None)
        elif broker_id == MASTER_ID and term < ended and (claim is None or not claim.holds):
            raise StaleTermError(f"{name} had a master of term {ended}, this registration is of term {term}")

    def displace(self, holder: Claim, claim: Claim) -> None:
        """Gives the keys of `holder`, which does not answer, to `claim`, unless another claim holds them."""
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
        """Unregisters a broker by its address, whatever its name and id. Unknown addresses are accepted.

        HeldError: another connection holds the address. Nothing changed.
        """
        claim = self.claims.of(owner, address)
        if claim is not None:
            self.remove(claim, now_ms)
        elif (holder := self.claims.holder(address)) is not None:
            raise HeldError(None, [holder])

    def expire(self, now_ms: int, silent_ms: int) -> list[object]:
        """Removes addresses whose broker was silent for more than `silent_ms`. Returns their owners."""
        expired = [claim for claim in self.claims if now_ms - claim.seen_ms > silent_ms]
        for claim in expired:
            self.remove(claim, now_ms)
        return [claim.owner for claim in expired]

    def owner_lost(self, owner: object, now_ms: int | None = None) -> list[str]:
        """Removes the registrations of a connection. Returns the addresses that it held."""
        claims = self.claims.all_of(owner)
        held = [claim.address for claim in claims if claim.holds]
        for claim in claims:
            self.remove(claim, now_ms)
        return held

    def remove(self, claim: Claim, now_ms: int | None = None) -> None:
        """Removes a claim, and promotes those that wait for its keys."""
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

    # --- the tables that clients see ---

    def _hold(self, claim: Claim, news: dict[str, QueueData] | None, *, whole: bool = False) -> None:
        """Adds a claim that holds its keys to the tables. It replaces other claims of its connection for these keys.

        `news`: topics that changed since the claim was added; None: no topic changed. `whole`: the broker name has only
        the claim's topics.
        """
        for key in claim.keys:
            older = self.claims.holder(key)
            if older is not None and older is not claim:
                self._vacate(older)
                self.claims.remove(older)
        broker = self._brokers.setdefault(claim.name, Broker(claim.cluster, claim.name))
        if claim.broker_id == MASTER_ID:
            broker.cluster = claim.cluster
        # Add the topics of a new master also if its version is unchanged: those that it registered as a slave are not
        # in the tables.
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
        """Removes a claim from the tables. `_promote` removes the broker name if no other claim replaces it."""
        broker = self._brokers.get(claim.name)
        if claim.holds and broker is not None and broker.addresses.get(claim.broker_id) == claim.address:
            del broker.addresses[claim.broker_id]

    def _promote(self, *keys: Key) -> None:
        """Gives free keys to the claims that wait for them, the earliest first, and removes names without addresses."""
        for waiting in self.claims.waiting_for(keys):
            if not self.claims.blockers(waiting):
                # The topics of the previous claim are removed.
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
        """Returns the data version of this connection's last registration of the address, or that of the address's
        holder. None: the address is not registered."""
        claim = self.claims.of(owner, address) or self.claims.holder(address)
        return claim.data_version if claim is not None else None

    def is_changed(self, address: str, version: DataVersion, owner: object = None) -> bool:
        """Returns whether a broker with this version has changed topics to register."""
        return self.data_version(address, owner) != version

    def touch(self, address: str, now_ms: int, owner: object = None) -> None:
        """Records that the broker is alive, without a registration, for the connection that registered it."""
        if (claim := self.claims.of(owner, address)) is not None:
            claim.seen_ms = now_ms

    # --- administration ---

    def wipe(self, broker_name: str) -> int:
        """Removes the write permission from all topics of a broker name. Returns the number of its topics."""
        return self._change_perm(broker_name, lambda perm: perm & ~_PERM_WRITE)

    def add_write(self, broker_name: str) -> int:
        """Gives the write permission to all topics of a broker name. Returns the number of its topics."""
        return self._change_perm(broker_name, lambda perm: perm | _PERM_WRITE)

    def _change_perm(self, broker_name: str, changed: Callable[[int], int]) -> int:
        count = 0
        for queues in self._topics.values():
            if (data := queues.get(broker_name)) is not None:
                queues[broker_name] = replace(data, perm=changed(data.perm))
                count += 1
        return count

    def delete_topic(self, topic: str) -> None:
        """Removes a topic, until a master registers it again."""
        for name in self._topics.pop(topic, {}):
            self._topics_of.get(name, set()).discard(topic)
            self.claims.forget_topic(topic, name)


def _yields(holder: Claim, displaced: Claim) -> bool:
    """Returns whether a claim gives its place back to the displaced one, which is alive again. It does not if its term
    is higher: then it is the leader of a group, and the displaced one lost leadership while its process was stopped."""
    return holder.order > displaced.order and holder.term <= displaced.term
