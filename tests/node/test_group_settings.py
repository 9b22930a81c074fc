"""Settings of a member: RocketMQ's names, and errors that say which part is wrong."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from tallystick.node.broker.group.membership import GroupPlan, parse_peers
from tallystick.node.core.configuration import load
from tallystick.node.core.settings import BrokerSettings
from tallystick.replication.membership import Membership
from tallystick.store.settings import FlushDiskType, SettingsError, StoreSettings

PEERS = "n0-10.0.0.1:40911;n1-host-b.example:40911;n2-[::1]:40912"
BROKER = BrokerSettings(brokerIP1="127.0.0.1", brokerName="broker-a")


def store(tmp_path: Path, **changes: object) -> StoreSettings:
    plain = StoreSettings(
        storePathRootDir=str(tmp_path), enableDLegerCommitLog=True, dLegerPeers=PEERS, dLegerSelfId="n1"
    )
    return replace(plain, **changes)  # type: ignore[arg-type]


def test_peers_are_parsed_in_rocketmqs_form() -> None:
    assert parse_peers(PEERS) == {0: ("10.0.0.1", 40911), 1: ("host-b.example", 40911), 2: ("::1", 40912)}


@pytest.mark.parametrize(
    ("changes", "key", "reason"),
    [
        ({"dLegerPeers": "n0:40911"}, "dLegerPeers", "n0-host:port"),
        ({"dLegerPeers": "a-host:1"}, "dLegerPeers", "'a' is not a member id"),
        ({"dLegerPeers": "n1-host:70000"}, "dLegerPeers", "not of the form host:port"),
        ({"dLegerPeers": "n1-a:1;n1-b:1"}, "dLegerPeers", "n1 is listed twice"),
        ({"dLegerSelfId": "n7"}, "dLegerSelfId", "not in dLegerPeers"),
        ({"dLegerSelfId": ""}, "dLegerSelfId", "not a member id"),
        ({"preferredLeaderId": "n9"}, "preferredLeaderId", "not in dLegerPeers"),
        ({"dLegerGroup": "g" * 300}, "dLegerGroup", "255"),
    ],
)
def test_invalid_settings_are_refused_by_their_key(
    tmp_path: Path, changes: dict[str, object], key: str, reason: str
) -> None:
    with pytest.raises(SettingsError, match=reason.replace("[", "\\[")) as refused:
        GroupPlan(BROKER, store(tmp_path, **changes))
    assert refused.value.key == key


def test_a_plan(tmp_path: Path) -> None:
    plan = GroupPlan(
        replace(BROKER, groupBootstrap=True, groupElectionTimeoutMills=500, groupHeartbeatMills=50),
        store(tmp_path, preferredLeaderId="n2", maxMessageSize=32 << 20),
    )
    assert (plan.number, plan.own, plan.identity.group) == (1, ("host-b.example", 40911), "broker-a")
    assert plan.bootstrap == Membership.of([0, 1, 2])
    raft = plan.settings.raft
    assert (raft.election_timeout_seconds, raft.heartbeat_interval_seconds, raft.preferred_leader) == (0.5, 0.05, 2)
    assert plan.settings.transport.payload_max_bytes > 32 << 20, "the largest message has to fit"
    plan.settings.validate()
    assert GroupPlan(BROKER, store(tmp_path)).bootstrap is None, "a group must be created only by an explicit setting"


def test_a_group_may_begin_with_some_of_those_who_may_be_members(tmp_path: Path) -> None:
    making = replace(BROKER, groupBootstrap=True, groupBootstrapMembers="n1; n0")
    assert GroupPlan(making, store(tmp_path)).bootstrap == Membership.of([0, 1])
    other = GroupPlan(making, store(tmp_path, dLegerSelfId="n2"))
    assert other.bootstrap is None, "it waits to be let in, as one whose disk is empty for another reason"
    assert other.peers.keys() == {0, 1, 2}
    assert GroupPlan(replace(making, groupBootstrap=False), store(tmp_path)).bootstrap is None


@pytest.mark.parametrize(
    ("members", "reason"),
    [("n1;n7", "n7 is not in dLegerPeers"), ("n1;n1", "n1 is listed twice"), ("1", "not a member id")],
)
def test_invalid_founders(tmp_path: Path, members: str, reason: str) -> None:
    with pytest.raises(SettingsError, match=reason) as refused:
        GroupPlan(replace(BROKER, groupBootstrapMembers=members), store(tmp_path))
    assert refused.value.key == "groupBootstrapMembers"


def test_messages_of_a_broker_without_a_group_are_not_hidden(tmp_path: Path) -> None:
    old = tmp_path / "commitlog" / ("0" * 20)
    old.parent.mkdir()
    old.write_bytes(b"")
    with pytest.raises(SettingsError, match="messages of a broker without a group"):
        GroupPlan(BROKER, store(tmp_path))


def test_certificates_come_together() -> None:
    with pytest.raises(SettingsError) as refused:
        replace(BROKER, groupTlsCa="ca.pem", groupTlsCertificate="a.pem").validate()
    assert refused.value.key == "groupTlsKey"


def test_a_group_has_safer_defaults_unless_set() -> None:
    alone = load()
    assert (alone.store.flushDiskType, alone.broker.flushConsumerOffsetInterval) == (FlushDiskType.ASYNC_FLUSH, 5000)
    group = load(assignments=["enableDLegerCommitLog=true"])
    assert (group.store.flushDiskType, group.broker.flushConsumerOffsetInterval) == (FlushDiskType.SYNC_FLUSH, 1000)
    assert group.store.flushDelayOffsetInterval == 1000
    chosen = load(assignments=["enableDLegerCommitLog=true", "flushDiskType=ASYNC_FLUSH"])
    assert chosen.store.flushDiskType is FlushDiskType.ASYNC_FLUSH
