"""What a stranger's registration can change at a name server: nothing that a live broker said, and never for good."""

from __future__ import annotations

import pytest

from tallystick.node.nameserver import claims, limits, routes
from tallystick.node.nameserver.claims import Claim
from tallystick.node.nameserver.limits import BoundsError, check_registration
from tallystick.node.nameserver.registration import QueueData, RegisterBody
from tallystick.node.nameserver.routes import HeldError, RouteTable, StaleTermError
from tallystick.store.tables import DataVersion

HOME, OTHER, FOREIGN = "10.0.0.1:10911", "10.0.0.2:10911", "6.6.6.6:1"
BROKER, SECOND, STRANGER = "broker's connection", "second connection", "stranger's connection"


class Names:
    """A table with a broker g (master at HOME, topics T and U), and words for registrations."""

    def __init__(self, term: int = 0) -> None:
        self.table = RouteTable()
        self.now_ms = 1000
        assert self.register(BROKER, HOME, topics="TU", term=term)

    def register(
        self,
        owner: str,
        address: str,
        broker_id: int = 0,
        *,
        topics: str = "",
        term: int = 0,
        name: str = "g",
        version: int = 1,
        whole: bool = False,
        source: str = "10.0.0.1",
        cluster: str = "C",
    ) -> bool:
        """Whether it was taken; it waits otherwise."""
        body = RegisterBody(DataVersion(version, 7), {topic: QueueData() for topic in topics})
        try:
            self.table.register(
                cluster, name, broker_id, address, "", body,
                owner=owner, now_ms=self.now_ms, term=term, whole=whole, source=source,
            )  # fmt: skip
        except HeldError:
            return False
        return True

    @property
    def addresses(self) -> dict[str, dict[int, str]]:
        table = self.table.cluster_info()["brokerAddrTable"]
        return {name: dict(broker["brokerAddrs"]) for name, broker in table.items()}

    def claim(self, owner: str, address: str) -> claims.Claim:
        found = self.table.claims.of(owner, address)
        assert found is not None
        return found

    def displace(self, holder: tuple[str, str], claim: tuple[str, str]) -> None:
        self.table.displace(self.claim(*holder), self.claim(*claim))


@pytest.mark.parametrize(
    ("address", "broker_id", "name", "term"),
    [
        (FOREIGN, 0, "g", limits.MAX_TERM),  # the master's place, in the highest term there is
        (FOREIGN, 0, "g", 0),
        (HOME, 0, "g", 9),  # the master's address and place
        (HOME, 1, "g", 9),  # its address alone: it would no longer be a master
        (HOME, 0, "x", 0),  # under another name
    ],
)
def test_a_stranger_changes_nothing_of_a_live_broker(address: str, broker_id: int, name: str, term: int) -> None:
    names = Names(term=3)
    before = names.table.cluster_info(), names.table.topics()
    assert not names.register(STRANGER, address, broker_id, name=name, term=term, topics="", whole=True, cluster="X")
    assert (names.table.cluster_info(), names.table.topics()) == before
    assert names.register(BROKER, HOME, topics="TUV", version=2, term=3)  # its owner continues as before
    assert names.addresses == {"g": {0: HOME}}
    names.table.owner_lost(STRANGER)
    assert names.addresses == {"g": {0: HOME}} and names.table.topics() == ["T", "U", "V"]
    assert len(names.table.claims) == 1


def test_a_stranger_cannot_say_goodbye_for_a_live_broker() -> None:
    names = Names()
    with pytest.raises(HeldError, match="another live connection holds g id 0"):
        names.table.unregister(HOME, owner=STRANGER)
    assert names.addresses == {"g": {0: HOME}}
    names.table.unregister(HOME, owner=BROKER)
    assert names.addresses == {}


def test_what_a_stranger_took_while_the_broker_was_away_ends_with_its_connection() -> None:
    names = Names(term=3)
    names.register(SECOND, OTHER, 2, term=3)  # a slave keeps the name
    names.table.owner_lost(BROKER)
    assert names.register(STRANGER, FOREIGN, 0, term=limits.MAX_TERM, topics="TX", whole=True, cluster="X")
    assert not names.register(BROKER, HOME, topics="TU", term=4)
    assert names.addresses == {"g": {0: FOREIGN, 2: OTHER}}
    names.table.owner_lost(STRANGER)
    assert names.addresses == {"g": {0: HOME, 2: OTHER}} and names.table.topics() == ["T", "U"]
    assert names.table.cluster_info()["clusterAddrTable"] == {"C": ["g"]}
    assert names.register(BROKER, HOME, topics="TU", term=4)


def test_a_broker_that_does_not_answer_loses_its_place_until_the_other_one_leaves() -> None:
    names = Names()
    assert not names.register(STRANGER, FOREIGN, topics="X", whole=True)
    names.displace((BROKER, HOME), (STRANGER, FOREIGN))
    assert names.addresses == {"g": {0: FOREIGN}}
    names.table.owner_lost(STRANGER)
    assert names.addresses == {"g": {0: HOME}} and names.table.topics() == ["T", "U"]


def test_a_broker_that_was_slow_to_answer_takes_its_place_back_when_it_speaks() -> None:
    names = Names(term=3)
    names.register(STRANGER, FOREIGN, topics="X", term=3)
    names.displace((BROKER, HOME), (STRANGER, FOREIGN))
    assert names.register(BROKER, HOME, topics="TU", term=3)
    assert names.addresses == {"g": {0: HOME}} and names.table.topics() == ["T", "U"]
    assert not names.register(STRANGER, FOREIGN, topics="X", term=3)  # but not the other way round
    assert names.addresses == {"g": {0: HOME}}


def test_a_leader_that_stood_still_does_not_take_its_place_back_from_its_successor() -> None:
    names = Names(term=3)
    names.register(SECOND, OTHER, 2, term=3)
    assert not names.register(SECOND, OTHER, 0, topics="TU", term=4)
    names.displace((BROKER, HOME), (SECOND, OTHER))
    assert names.addresses == {"g": {0: OTHER}}
    assert not names.register(BROKER, HOME, topics="TU", term=3)  # it does not know it yet
    assert names.register(BROKER, HOME, 1, term=4)
    assert names.addresses == {"g": {0: OTHER, 1: HOME}}


def test_a_broker_whose_old_connection_is_dead_keeps_its_route_all_the_time() -> None:
    names = Names()
    assert not names.register(SECOND, HOME, topics="TU")
    assert names.addresses == {"g": {0: HOME}}
    names.displace((BROKER, HOME), (SECOND, HOME))
    assert names.addresses == {"g": {0: HOME}} and names.table.topics() == ["T", "U"]
    names.table.owner_lost(BROKER)  # minutes later the system notices
    assert names.addresses == {"g": {0: HOME}} and len(names.table.claims) == 1


def test_members_change_ids_in_any_order() -> None:
    names = Names(term=3)
    assert names.register(SECOND, OTHER, 2, term=3)
    assert not names.register(SECOND, OTHER, 0, topics="TU", term=4)
    assert not names.register(STRANGER, OTHER, 7, term=4)  # the address of who waits for another id stays its own
    assert names.addresses == {"g": {0: HOME}}
    assert names.register(BROKER, HOME, 1, term=4)
    assert names.addresses == {"g": {0: OTHER, 1: HOME}}
    assert not names.register(BROKER, HOME, 0, topics="TU", term=5)
    assert names.register(SECOND, OTHER, 2, term=5)
    assert names.addresses == {"g": {0: HOME, 2: OTHER}} and names.table.topics() == ["T", "U"]


def test_the_one_that_came_first_is_promoted_first() -> None:
    names = Names()
    names.register(SECOND, OTHER, 3)
    assert not names.register(SECOND, OTHER)  # a broker that was known before the stranger came
    assert not names.register(STRANGER, FOREIGN, term=limits.MAX_TERM)
    assert not names.register(SECOND, OTHER)
    names.table.owner_lost(BROKER)
    assert names.addresses == {"g": {0: OTHER}}


def test_the_term_of_a_lost_leader_is_forgotten_after_a_while() -> None:
    names = Names(term=5)
    names.register(SECOND, OTHER, 2, term=5)
    names.table.owner_lost(BROKER, names.now_ms)
    with pytest.raises(StaleTermError, match="term 5"):
        names.register(STRANGER, FOREIGN, 0, term=4)
    names.now_ms += routes.TERM_MEMORY_MS
    assert names.register(SECOND, OTHER, 0, term=5, topics="TU")


def test_a_leader_of_a_lower_term_is_taken_when_the_higher_one_is_forgotten() -> None:
    """A group that lost its disks begins again at term 1."""
    names = Names(term=5)
    names.register(SECOND, OTHER, 2, term=1)
    names.table.owner_lost(BROKER, names.now_ms)
    names.now_ms += routes.TERM_MEMORY_MS
    assert names.register(STRANGER, FOREIGN, 0, term=1, topics="TU")
    assert names.addresses == {"g": {0: FOREIGN, 2: OTHER}}


def test_a_change_of_a_place_is_logged_once() -> None:
    names = Names()
    told: list[Claim] = []
    names.table.on_held.append(told.append)
    names.register(STRANGER, FOREIGN, topics="X")
    names.displace((BROKER, HOME), (STRANGER, FOREIGN))
    assert told == [names.claim(STRANGER, FOREIGN)]


def test_who_waits_keeps_the_topics_that_it_registered_one_by_one() -> None:
    names = Names()
    for version, topic in enumerate("XYZ", 1):
        assert not names.register(SECOND, OTHER, topics=topic, version=version)
    names.table.owner_lost(BROKER)
    assert names.addresses == {"g": {0: OTHER}}
    assert names.table.topics() == ["X", "Y", "Z"]


def test_claims_that_wait_expire_as_others_do() -> None:
    names = Names()
    names.register(STRANGER, FOREIGN)
    names.now_ms += 100
    names.register(BROKER, HOME, topics="TU")
    assert names.table.expire(names.now_ms, 50) == [STRANGER]
    assert len(names.table.claims) == 1 and names.table.claims.topic_entries == 2


def test_a_broker_that_has_two_connections_says_the_same_over_both() -> None:
    names = Names()
    assert not names.register(SECOND, HOME, topics="TU")
    assert names.claim(SECOND, HOME).says_as(names.claim(BROKER, HOME))
    names.register(STRANGER, HOME, source="6.6.6.6")
    assert not names.claim(STRANGER, HOME).says_as(names.claim(BROKER, HOME))


def test_one_connection_registers_a_limited_number_of_addresses() -> None:
    names = Names()
    for number in range(limits.MAX_CLAIMS_OF_OWNER):
        assert names.register(STRANGER, f"6.6.6.6:{number + 100}", name=f"x{number}")
    with pytest.raises(BoundsError, match="64 addresses"):
        names.register(STRANGER, FOREIGN, name="y")
    names.table.owner_lost(STRANGER)
    assert names.addresses == {"g": {0: HOME}}


def test_all_connections_register_a_limited_number(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(claims, "MAX_CLAIMS", 3)
    names = Names()
    names.register("c1", "h:1", name="x1")
    names.register("c2", "h:2", name="x2")
    with pytest.raises(BoundsError, match="3 broker addresses"):
        names.register("c3", "h:3", name="x3")
    assert names.register(BROKER, HOME, topics="TU", version=2)  # who is there continues


def test_topics_are_limited_for_a_registration_a_name_and_in_all(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "MAX_TOPICS", 4)
    monkeypatch.setattr(routes, "MAX_TOPICS", 4)
    monkeypatch.setattr(claims, "MAX_TOPIC_ENTRIES", 7)
    names = Names()
    with pytest.raises(BoundsError, match="5 topics, 4 are allowed"):
        names.register(BROKER, HOME, topics="abcde", version=2)
    assert names.register(BROKER, HOME, topics="abcd", version=3)  # one by one they may not grow forever either
    assert names.table.topics() == ["a", "b", "c", "d"]
    with pytest.raises(BoundsError, match="8 topics; the limit is 7"):
        names.register(STRANGER, FOREIGN, name="x", topics="abcd")
    assert names.addresses == {"g": {0: HOME}} and len(names.table.claims) == 1
    assert names.register(STRANGER, FOREIGN, name="x", topics="abc")
    names.table.owner_lost(STRANGER)
    assert names.table.claims.topic_entries == 4


def test_a_deleted_topic_does_not_come_back_by_a_promotion() -> None:
    names = Names()
    names.register(STRANGER, FOREIGN, topics="X")
    names.table.delete_topic("T")
    names.displace((BROKER, HOME), (STRANGER, FOREIGN))
    names.table.owner_lost(STRANGER)
    assert names.table.topics() == ["U"]


@pytest.mark.parametrize(
    ("changes", "match"),
    [
        ({"term": 1 << 62}, "groupTerm 4611686018427387904 is not from 0 to"),
        ({"term": -1}, "groupTerm -1"),
        ({"broker_id": -1}, "brokerId -1"),
        ({"broker_id": 1 << 40}, "brokerId"),
        ({"name": "n" * 256}, "brokerName must have 1 to 255"),
        ({"name": ""}, "brokerName"),
        ({"cluster": "a\nb"}, "clusterName"),
        ({"address": "nowhere"}, "brokerAddr must be host:port"),
        ({"address": "h:99999"}, "no port from 1 to 65535"),
        ({"address": "h:1 "}, "brokerAddr"),
        ({"external": ":1"}, "externalAddress"),
        ({"ha_address": "h" * 256}, "haServerAddr"),
    ],
)
def test_invalid_registrations_are_refused_by_name(changes: dict[str, object], match: str) -> None:
    fields = {
        "cluster": "C", "name": "g", "broker_id": 0, "address": HOME, "ha_address": "", "external": "", "term": 3,
    }  # fmt: skip
    check_registration(**fields)  # type: ignore[arg-type]
    with pytest.raises(BoundsError, match=match):
        check_registration(**(fields | changes))  # type: ignore[arg-type]


def test_numbers_of_topics_that_no_client_can_read_are_refused() -> None:
    table = RouteTable()
    body = RegisterBody(DataVersion(), {"T": QueueData(read_queues=1 << 40)})
    with pytest.raises(BoundsError, match="1099511627776"):
        table.register("C", "g", 0, HOME, "", body, owner=BROKER, now_ms=0)
