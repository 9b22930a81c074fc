"""GET /node: one word for what a process does, and why it is not ready."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from own_parts import OwnParts

from tallystick.node.core.configuration import Settings, load
from tallystick.node.core.starting import RECOVERING, WAITING, StartProgress
from tallystick.node.http.node_api import ProcessClock, broker_json, nameserver_json
from tallystick.node.tls.process import ProcessTls
from tallystick.node.tls.settings import TlsSettings
from tallystick.replication.durable import DiskState
from tallystick.replication.member.status import Unrepaired
from tallystick.store.finding_log import FindingLog
from tallystick.store.findings import FindingKind

TLS = ProcessTls(TlsSettings())
PEER = SimpleNamespace(member=1, voter=True, connected=True, lag_bytes=77, disk=DiskState.OK)


class FakeStore(OwnParts):
    min_pos, max_pos, flushed_pos, readable_end, dispatch_behind_bytes = 10, 90, 80, 70, 5
    broken: str | None = None
    full: str | None = None
    scrub = SimpleNamespace(to_json=lambda: {"enabled": True})

    def failure(self) -> str | None:
        return self.broken

    def no_room(self) -> str | None:
        return self.full


class FakeNode:
    """A broker that is what a test says."""

    def __init__(self, tmp_path: Path) -> None:
        self.settings: Settings = load(
            environment={
                "TALLY_STOREPATHROOTDIR": str(tmp_path / "not" / "there"),
                "TALLY_ENABLEDLEGERCOMMITLOG": "true",
                "TALLY_DLEGERSELFID": "n0",
                "TALLY_BROKERNAME": "orders-0",
                "TALLY_BROKERCLUSTERNAME": "orders",
                "TALLY_BROKERIP1": "orders-0-0.shop.svc",
                "TALLY_EXTERNALADDRESS": "203.0.113.7:30001",
            }
        )
        self.status = SimpleNamespace(
            term=7,
            leader=0,
            learners=(),
            voters=(0, 1),
            disk=DiskState.OK,
            last_error="",
            peers=(PEER,),
            unrepaired=(),
            recovered=None,
        )
        self.member = SimpleNamespace(leader=0, tls_json=lambda: None)
        self.slaves: Any = None
        self.group: Any = SimpleNamespace(
            number=0, leads=True, is_member=True, member=self.member, status=lambda: self.status
        )
        self.reason: str | None = None
        self.store = FakeStore()
        self.started = True
        self.progress = StartProgress(lambda: 100.0)
        self.last_save_error = ""
        self.findings = FindingLog(tmp_path)

    def unready(self) -> str | None:
        return self.reason

    def failure(self) -> str | None:
        return self.store.admission.failure()

    def told(self, *, stopping: bool = False) -> dict[str, Any]:
        broker: Any = (
            SimpleNamespace(
                settings=self.settings.broker,
                group=self.group,
                slaves=self.slaves,
                copying=None,
                access=None,
                store=self.store,
                unready=self.unready,
                failure=self.failure,
                last_save_error=self.last_save_error,
                timers=SimpleNamespace(to_json=lambda: {"pending": 3}),
            )
            if self.started
            else None
        )
        return broker_json(self.settings, broker, self.progress, ProcessClock(), self.findings, TLS, stopping=stopping)


@pytest.fixture
def node(tmp_path: Path) -> FakeNode:
    return FakeNode(tmp_path)


def test_a_leader(node: FakeNode) -> None:
    told = node.told()
    assert (told["phase"], told["reason"], told["recovery"]) == ("ready", None, None)
    assert (told["kind"], told["cluster"], told["group"], told["member"]) == ("broker", "orders", "orders-0", 0)
    assert (told["role"], told["term"], told["leader"]) == ("leader", 7, 0)
    assert (told["address"], told["externalAddress"]) == ("orders-0-0.shop.svc:10911", "203.0.113.7:30001")
    assert told["peers"] == [{"member": 1, "voter": True, "connected": True, "lagBytes": 77, "disk": "ok"}]
    assert told["store"]["committedPos"] == 70 and told["timers"] == {"pending": 3}
    assert told["disk"]["healthy"] and told["disk"]["totalBytes"] > told["disk"]["freeBytes"] > 0
    assert told["uptimeSeconds"] >= 0 and told["version"] and told["lastError"] == ""


def test_the_slaves_of_a_broker_without_a_group(node: FakeNode) -> None:
    assert node.told()["slaves"] is None
    node.group, node.slaves = None, SimpleNamespace(to_json=lambda: {"port": 10912, "connected": [], "refused": []})
    assert node.told()["slaves"] == {"port": 10912, "connected": [], "refused": []}


def test_a_start_and_how_far_it_is(node: FakeNode) -> None:
    node.started = False
    node.progress.enter(WAITING)
    told = node.told()
    assert (told["phase"], told["member"], told["role"], told["store"]) == ("waiting-for-name", 0, "none", None)
    assert "no address yet" in told["reason"]
    node.progress.enter(RECOVERING, "queues")
    assert node.told()["recovery"] == {"step": "queues", "seconds": 0.0, "doneBytes": None, "totalBytes": None}
    node.progress.read(1000, 5000)
    node.progress.read(2000, 5000)
    told = node.told()
    assert (told["phase"], told["recovery"]["doneBytes"], told["recovery"]["totalBytes"]) == ("recovering", 1000, 4000)
    assert told["reason"] == "starting: the store is being recovered, 25 % of 4000 bytes"
    assert node.told(stopping=True)["phase"] == "stopping"


def test_findings_are_shown_before_the_broker_is_there(node: FakeNode) -> None:
    node.started = False
    node.progress.enter(RECOVERING, "log")
    node.findings.add(FindingKind.CUT, "commitlog/0", "a torn write", offset=100, size=28, pos=100)
    told = node.told()["findings"]
    assert told["total"] == 1 and told["counts"]["cut"] == 1
    (finding,) = told["newest"]
    assert finding.pop("time") > 0
    assert finding == {
        "kind": "cut", "file": "commitlog/0", "offset": 100, "bytes": 28, "pos": 100, "reason": "a torn write",
    }  # fmt: skip


@pytest.mark.parametrize(
    ("is_member", "leads", "leader", "learners", "phase", "role"),
    [
        (False, False, 1, (), "waiting-to-join", "none"),
        (True, False, None, (), "electing", "follower"),
        (True, False, 0, (), "electing", "follower"),
        (True, False, 1, (), "catching-up", "follower"),
        (True, False, 1, (0,), "catching-up", "learner"),
        (True, True, 0, (), "unready", "leader"),
    ],
)
def test_a_member_that_is_not_ready(
    node: FakeNode, is_member: bool, leads: bool, leader: int | None, learners: tuple[int, ...], phase: str, role: str
) -> None:
    node.reason = "not in sync: lacks what was committed 2 s ago"
    node.group.is_member, node.group.leads, node.member.leader = is_member, leads, leader
    node.status.leader, node.status.learners = leader, learners
    told = node.told()
    assert (told["phase"], told["role"], told["leader"], told["reason"]) == (phase, role, leader, node.reason)


def test_damage_that_no_member_can_repair(node: FakeNode) -> None:
    assert node.told()["unrepaired"] == []
    node.status.unrepaired = (Unrepaired(5, 700, 900, "n1 has no sound copy", no_copy=True),)
    assert node.told()["unrepaired"] == [
        {"firstEntry": 5, "pos": 700, "end": 900, "noCopy": True, "reason": "n1 has no sound copy"}
    ]


def test_the_disk(node: FakeNode) -> None:
    node.store.full = "the disk is fuller than 90%"
    told = node.told()["disk"]
    assert (told["healthy"], told["error"]) == (False, "the disk is fuller than 90%")
    node.store.full = None
    node.status.disk, node.status.last_error = DiskState.FULL, "no room for a segment"
    told = node.told()
    assert (told["disk"]["healthy"], told["disk"]["error"]) == (False, "no room for a segment")
    assert told["lastError"] == "no room for a segment"
    node.store.broken = "the log could not be flushed: EIO"
    told = node.told(stopping=True)
    assert (told["phase"], told["reason"]) == ("failed", "the log could not be flushed: EIO")


def test_a_table_that_is_not_saved(node: FakeNode) -> None:
    node.last_save_error = "cannot save topics.json: No space left on device"
    assert node.told()["lastError"] == node.last_save_error


def test_a_broker_without_a_group(node: FakeNode) -> None:
    node.group = None
    node.settings = replace(node.settings, store=replace(node.settings.store, enableDLegerCommitLog=False))
    told = node.told()
    assert (told["phase"], told["role"], told["member"], told["leader"], told["peers"]) == (
        "ready",
        "leader",
        None,
        None,
        [],
    )
    node.reason = "the disk is fuller than 90%"
    assert node.told()["phase"] == "unready"


def test_a_name_server() -> None:
    assert nameserver_json(None, ProcessClock(), TLS, stopping=False)["phase"] == "starting"
    server: Any = SimpleNamespace(
        routes=SimpleNamespace(address_count=3, topics=lambda: ["T", "U"]), access_json=lambda: None
    )
    told = nameserver_json(server, ProcessClock(), TLS, stopping=False)
    assert (told["kind"], told["phase"], told["reason"], told["brokers"], told["topics"]) == (
        "nameserver",
        "ready",
        None,
        3,
        2,
    )
    assert nameserver_json(server, ProcessClock(), TLS, stopping=True)["phase"] == "stopping"
