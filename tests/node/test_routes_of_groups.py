"""Registrations of a replicated group's members, which may overtake each other (B6)."""

from __future__ import annotations

import pytest

from tallystick.node.nameserver.registration import QueueData, RegisterBody
from tallystick.node.nameserver.routes import HeldError, RouteTable, StaleTermError
from tallystick.store.tables import DataVersion

A, B, C = "10.0.0.1:1", "10.0.0.2:1", "10.0.0.3:1"


class Names:
    """A table, and registrations of the one broker name."""

    def __init__(self) -> None:
        self.table = RouteTable()

    def register(self, address: str, broker_id: int, term: int, *topics: str, version: int = 1) -> bool:
        """False: it waits behind another one that is connected."""
        body = RegisterBody(DataVersion(version, 7), {topic: QueueData() for topic in topics})
        try:
            self.table.register("C1", "g", broker_id, address, "", body, owner=address, now_ms=0, term=term)
        except HeldError:
            return False
        return True

    @property
    def addresses(self) -> dict[int, str]:
        found = self.table.cluster_info()["brokerAddrTable"]
        return dict(found["g"]["brokerAddrs"]) if "g" in found else {}


def test_a_new_leader_takes_the_place_and_the_old_one_becomes_a_slave() -> None:
    names = Names()
    names.register(A, 0, 1, "T")
    names.register(B, 2, 1)
    assert not names.register(B, 0, 2, "T", "U")
    assert names.addresses == {0: A}
    names.register(A, 1, 2)  # it knows at once that it was deposed, without a check
    assert names.addresses == {0: B, 1: A}
    assert names.table.topics() == ["T", "U"]


def test_a_deposed_leader_that_does_not_know_it_cannot_take_the_route_back() -> None:
    names = Names()
    names.register(B, 0, 2, "T")
    assert not names.register(A, 0, 1, "T")
    assert names.addresses == {0: B}


def test_a_registration_that_was_overtaken_changes_nothing() -> None:
    names = Names()
    names.register(A, 0, 3, "T")
    with pytest.raises(StaleTermError, match="term 3"):
        names.register(A, 1, 2)
    assert names.addresses == {0: A}


def test_the_term_holds_after_the_leader_is_lost() -> None:
    names = Names()
    names.register(B, 0, 2, "T")
    names.register(C, 3, 2)
    names.table.owner_lost(B)
    with pytest.raises(StaleTermError):
        names.register(A, 0, 1, "T")
    assert names.addresses == {3: C}


def test_a_farewell_does_not_end_the_route_of_a_successor() -> None:
    names = Names()
    names.register(A, 0, 1, "T")
    names.register(B, 0, 2, "T")
    names.table.unregister(A, owner=A)
    assert names.addresses == {0: B}
    names.table.unregister(A, owner=A)
    assert names.addresses == {0: B}


def test_topics_that_a_leader_had_before_it_led_are_taken_when_it_does() -> None:
    """As a slave it told of the same version already, and slaves' topics are left."""
    names = Names()
    names.register(A, 0, 1, "T", version=1)
    names.register(B, 2, 1, "T", "U", version=2)
    assert names.table.topics() == ["T"]
    names.table.owner_lost(A)
    names.register(B, 0, 2, "T", "U", version=2)
    assert names.table.topics() == ["T", "U"]


def test_brokers_without_a_group_replace_each_other_when_the_first_one_leaves() -> None:
    names = Names()
    names.register(A, 0, 0, "T")
    assert not names.register(B, 0, 0, "T")
    assert names.addresses == {0: A}
    names.table.owner_lost(A)
    assert names.addresses == {0: B}
