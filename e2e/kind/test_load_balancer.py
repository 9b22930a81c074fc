"""An external listener with a load balancer for each broker: clients outside, failures, and an address that changes."""

from __future__ import annotations

import asyncio

from harness.brokers import Brokers
from harness.lab import Lab
from harness.load_balancers import NETWORK, load_balancers
from harness.places import ROOT
from harness.shell import run
from harness.waiting import NotYetError, wait_for

from tallystick.node.core.client import ClusterClient

NAME = "outside"
_TOLD_S, _MOVED_S = 90, 240


def _tally(*words: str) -> str:
    """The command on this machine, which knows no address of pods. ToolError."""
    return run(str(ROOT / ".venv" / "bin" / "tally"), *words)


async def _masters(name_server: str) -> dict[str, str]:
    async with ClusterClient(name_server, timeout_s=10) as client:
        return await client.masters()


def _external(brokers: Brokers, node: str) -> str:
    return str((brokers.nodes()[node].get("status") or {}).get("externalAddress") or "")


def test_clients_outside_follow_the_load_balancers(lab: Lab, namespace: str) -> None:
    """Without an address no broker starts: it would tell clients an address that they cannot reach."""
    brokers = Brokers(lab.api, namespace, NAME)
    brokers.apply({"nameServers": {"replicas": 1}, "listeners": {"external": {"type": "LoadBalancer"}}})

    def address_pending() -> None:
        found = brokers.condition("Progressing")
        if found.get("reason") != "AddressPending":
            raise NotYetError(str(found))

    wait_for("the status tells that addresses are pending", address_pending, _TOLD_S)
    assert brokers.pods() == {}
    with load_balancers(lab.kind, lab.api, namespace) as balancers:
        status = brokers.whole()
        name_server = str(status["nameServers"]["externalAddress"])
        assert name_server.startswith(f"{NETWORK}."), name_server
        brokers.topic("parcels")
        _tally("produce", "parcels", "first", "--nameserver", name_server)

        leader = brokers.leader()
        assert asyncio.run(_masters(name_server)) == {f"{NAME}-0": _external(brokers, leader)}
        uid = brokers.pod(leader)["metadata"]["uid"]
        lab.api.delete("pods", namespace, f"{leader}-0")
        brokers.replaced(leader, uid)
        brokers.whole()
        _tally("produce", "parcels", "second", "--nameserver", name_server)

        leader = brokers.leader()
        service = next(
            name
            for name, address in balancers.addresses.items()
            if _external(brokers, leader).startswith(f"{address}:")
        )
        new = balancers.readdress(service)

        def moved() -> None:
            brokers.look_whole()
            if not _external(brokers, leader).startswith(f"{new}:"):
                raise NotYetError(f"{_external(brokers, leader)}, not yet {new}; step {brokers.status().get('step')}")

        wait_for("the broker tells clients its new address", moved, _MOVED_S)
        _tally("produce", "parcels", "third", "--nameserver", name_server)
        said = _tally("consume", "parcels", "--once", "--nameserver", name_server)
        assert all(word in said for word in ("first", "second", "third")), said
