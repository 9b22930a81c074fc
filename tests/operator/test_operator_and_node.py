"""What the operator tells pods is what the node understands: the two parts import nothing of each other."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tallystick.node.broker.services.group_changes import group_json
from tallystick.node.core.configuration import ConfigurationError, Settings, load
from tallystick.node.core.settings import BrokerSettings, HttpSettings, NameServerSettings
from tallystick.operator.clusters.adoption_plan import AdoptionPlan
from tallystick.operator.clusters.adoption_source import OldBroker
from tallystick.operator.clusters.cluster_manifests import broker_toml
from tallystick.operator.clusters.layout import layout
from tallystick.operator.clusters.observed import Claim, Group, Member, NameServers, Observed, TlsView, understood
from tallystick.operator.clusters.spec import OWN_SETTINGS, Cluster, ClusterSpec
from tallystick.operator.security.spec import Stage
from tallystick.store.setting import declarations
from tallystick.store.settings import StoreSettings


def cluster(**spec: Any) -> Cluster:
    return Cluster("shop", "orders", "uid", 1, False, ClusterSpec.parse(spec, "node:1"))


_CLAIM = Claim(uid="c")


def told(
    wanted: Cluster,
    name: str,
    claim: Claim | None = _CLAIM,
    plan: AdoptionPlan | None = None,
    tls: TlsView = TlsView(),  # noqa: B008 -- frozen
) -> dict[str, str]:
    """Environment of a pod, with what Kubernetes fills in."""
    members = tuple(
        Member(0, number, node_uid="u", claim=claim, external="172.18.0.2:30911", stateful_set="t")
        for number in range(3)
    )
    observed = Observed(0.0, (Group(0, members),), NameServers(2, 2, 2, True), plan=plan, tls=tls)
    for each in layout(wanted, observed).manifests:
        if (each["kind"], each["metadata"]["name"]) == ("StatefulSet", name):
            (container,) = each["spec"]["template"]["spec"]["containers"]
            found = {entry["name"]: entry.get("value", "172.18.0.2") for entry in container["env"]}
            return {key: value.replace("$(HOST_IP)", found.get("HOST_IP", "")) for key, value in found.items()}
    raise AssertionError(name)


def broker(tmp_path: Path, **spec: Any) -> Settings:
    wanted = cluster(**spec)
    file = tmp_path / "broker.toml"
    file.write_text(broker_toml(wanted))
    return load(file=file, environment=told(wanted, "orders-0-1"))


def test_a_broker_is_the_member_that_it_is_meant_to_be(tmp_path: Path) -> None:
    found = broker(tmp_path, listeners={"external": {"type": "NodePort"}})
    assert (found.broker.brokerName, found.broker.brokerClusterName) == ("orders-0", "orders")
    assert found.broker.brokerIP1 == "orders-0-1.shop.svc"
    assert found.broker.externalAddress == "172.18.0.2:30911"
    assert found.broker.groupBootstrap is True
    assert found.broker.groupBootstrapMembers == "n0;n1;n2"
    assert found.broker.namesrvAddr.count(";") == 1
    assert found.store.enableDLegerCommitLog is True
    assert found.store.flushDiskType.name == "SYNC_FLUSH"
    assert (found.http.host, found.http.port) == ("0.0.0.0", 8080)
    assert found.http.adminTokenFile == "/etc/tallystick-admin/token"
    assert found.http.readTokenFile == "/etc/tallystick-reader/token"
    assert found.broker.autoCreateTopicEnable is False


def test_a_name_server_listens_twice_when_there_are_clients_outside() -> None:
    found = load(environment=told(cluster(listeners={"external": {"type": "LoadBalancer"}}), "orders-nameserver"))
    assert (found.nameserver.listenPort, found.nameserver.externalListenPort) == (9876, 9877)
    assert load(environment=told(cluster(), "orders-nameserver")).nameserver.externalListenPort == 0


@pytest.mark.parametrize("listener", ["None", "NodePort"])
def test_a_member_follows_the_master_that_it_is_meant_to_follow(tmp_path: Path, listener: str) -> None:
    """The name is the master's, the identity of the group stays, and a member is a slave at its first start."""
    spec = {"adoptFrom": {"nameServers": ["old-ns:9876"]}, "listeners": {"external": {"type": listener}}}
    file = tmp_path / "broker.toml"
    file.write_text(broker_toml(cluster(**spec)))
    plan = AdoptionPlan({0: OldBroker("broker-a")})
    found = load(file=file, environment=told(cluster(**spec), "orders-0-1", claim=None, plan=plan))
    assert (found.broker.brokerName, found.store.dLegerGroup) == ("broker-a", "orders-0")
    assert found.store.brokerRole.name == "SLAVE" and found.broker.groupBootstrap is True
    assert found.broker.brokerClusterName == "orders"
    outside = listener == "NodePort"
    assert found.broker.namesrvAddr.endswith(";old-ns:9876") is not outside
    assert found.broker.externalNamesrvAddr == ("old-ns:9876" if outside else "")
    server = load(environment=told(cluster(**spec), "orders-nameserver"))
    assert server.http.adminTokenFile == "/etc/tallystick-admin/token"


@pytest.mark.parametrize("stage", [each for each in Stage if each is not Stage.OFF])
def test_each_stage_of_tls_is_understood(tmp_path: Path, stage: Stage) -> None:
    wanted, tls = cluster(security={"tls": {}}), TlsView(stage, stage)
    file = tmp_path / "broker.toml"
    file.write_text(broker_toml(wanted))
    found = load(file=file, environment=told(wanted, "orders-0-1", tls=tls))
    server = load(environment=told(wanted, "orders-nameserver", tls=tls))
    mode = "permissive" if stage is Stage.ACCEPTING else "preferred" if stage is Stage.PREFERRING else "enforcing"
    assert (found.broker.groupTlsMode.name, found.broker.groupTlsPeerName) == (mode, "n{member}.{group}")
    for each in (found, server):
        assert each.tls.server_mode.name == ("enforcing" if stage is Stage.ENFORCING else "permissive")
        assert each.tls.is_client_enabled is (stage >= Stage.PREFERRING)
        assert each.tls.verifies_servers and each.tls.client_checkHostname and not each.tls.is_test_mode
        assert each.http.tlsMode.name == "permissive" and each.http.adminTokenFile
        each.tls.validate()
    found.broker.validate()


def test_with_a_secret_of_the_user_members_accept_any_certificate_of_its_authority(tmp_path: Path) -> None:
    wanted = cluster(security={"tls": {"secretName": "shop-tls"}})
    file = tmp_path / "broker.toml"
    file.write_text(broker_toml(wanted))
    tls = TlsView(Stage.MUTUAL, Stage.MUTUAL, "shop-tls")
    assert load(file=file, environment=told(wanted, "orders-0-1", tls=tls)).broker.groupTlsPeerName == ""


def test_access_control_is_on_at_brokers_and_name_servers(tmp_path: Path) -> None:
    security = {"accessControl": {"enabled": True}}
    found = broker(tmp_path, security=security)
    server = load(environment=told(cluster(security=security), "orders-nameserver"))
    for settings in (found.broker, server.nameserver):
        assert (settings.aclEnable, settings.aclFile) == (True, "/etc/tallystick-access/plain_acl.yml")
    assert found.broker.aclCredentialsFile == "/etc/tallystick-access/tools.yml"
    assert found.broker.aclKeyFile == "/etc/tallystick-access/acl.key"
    assert not broker(tmp_path).broker.aclEnable


def test_settings_of_the_spec_reach_the_broker_in_any_case(tmp_path: Path) -> None:
    found = broker(tmp_path, config={"fileReservedTime": "24", "slaveReadEnable": "true"}, durability="MajorityAsync")
    assert (found.store.fileReservedTime, found.broker.slaveReadEnable) == (24, True)
    assert found.store.flushDiskType.name == "ASYNC_FLUSH"
    with pytest.raises(ConfigurationError, match="TALLY_NOSUCHSETTING"):
        broker(tmp_path, config={"noSuchSetting": "1"})


def test_the_operator_refuses_the_settings_that_the_node_declares_as_its_own() -> None:
    """The operator imports nothing of the node, so its list is a copy."""
    declared = {
        key.lower()
        for kind in (BrokerSettings, StoreSettings, NameServerSettings, HttpSettings)
        for key, known in declarations(kind).items()
        if known.operator
    }
    assert declared == OWN_SETTINGS


def test_what_a_member_answers_is_understood() -> None:
    """Names of fields and of their values, as `group_json` writes them."""
    from dataclasses import dataclass
    from types import SimpleNamespace

    from tallystick.replication.durable import DiskState, PossibleLoss
    from tallystick.replication.effects import Role
    from tallystick.replication.member.status import GroupStatus, PeerProgress

    def peer(member: int, disk: DiskState, doubt: PossibleLoss, heard: float = 0.1) -> PeerProgress:
        return PeerProgress(member, True, None, True, 5, 0, "pipeline", heard, disk, doubt)

    peers = (
        peer(0, DiskState.OK, PossibleLoss.NONE),
        peer(2, DiskState.FULL, PossibleLoss.NONE),
        peer(3, DiskState.OK, PossibleLoss.VOTES),
        peer(4, DiskState.OK, PossibleLoss.NONE, heard=9.0),
    )
    status = GroupStatus(
        cluster="orders",
        group="orders-0",
        member=1,
        role=Role.LEADER,
        term=4,
        leader=1,
        ready=True,
        accepting=True,
        voters=(0, 1, 2),
        learners=(3,),
        membership_index=2,
        membership_committed=True,
        first_index=0,
        last_index=9,
        synced_index=9,
        commit_index=8,
        applied_index=8,
        transfer_target=None,
        disk=DiskState.OK,
        doubt=PossibleLoss.NONE,
        fatal=None,
        last_error="",
        peers=peers,
    )

    @dataclass
    class Fake:
        leads: bool = True
        tables: Any = None

        def status(self) -> GroupStatus:
            return status

        def unready(self) -> None:
            return None

    answer = understood(group_json(Fake(tables=SimpleNamespace(saved_index=3))))  # type: ignore[arg-type]
    assert answer.leads and answer.formed and answer.sound and answer.settled
    assert (answer.voters, answer.learners, answer.commit_index) == ((0, 1, 2), (3,), 8)
    assert [each.sound for each in answer.peers] == [True, False, False, True]
    assert [each.connected for each in answer.peers] == [True, True, True, False]
    assert [each.lag_bytes for each in answer.peers] == [0, 0, 0, 0]
