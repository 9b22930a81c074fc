"""What name servers tell clients.

N1  a name server names the member that serves for a broker's name, two periods of registration after the last fault
    at the latest
"""

from __future__ import annotations

import asyncio
from typing import Any

from simulation.clients import Client
from simulation.cluster import Cluster
from simulation.nodes import Node
from simulation.violation import ViolationError
from tallystick.node.remoting.codes import RequestCode
from tallystick.node.remoting.errors import RemotingError
from tallystick.store import fastjson

_WITHIN_S = 70.0


async def routed(client: Client, names: Node, broker: str, cluster: Cluster) -> None:
    """Waits until the name server's route leads to who serves for `broker`. ViolationError: it does not in time."""
    loop, told = client.loop, "nothing"
    deadline = loop.now + _WITHIN_S
    while loop.now < deadline:
        try:
            answer = await client.call(names.address, RequestCode.GET_ROUTEINFO_BY_TOPIC, {"topic": "Probe"})
            told = answer.remark or bytes(answer.body).decode()
            leader = cluster.leader(broker)
            if leader is not None and _master(fastjson.loads(answer.body), broker) == leader.address:
                return
        except (RemotingError, fastjson.FastjsonError) as error:
            told = f"{told}: {error!r}"
        await asyncio.sleep(0.5)
    raise ViolationError("N1", f"{names.name} does not name who serves {broker} within {_WITHIN_S:g} s: {told}")


def _master(route: Any, broker: str) -> str | None:
    """The address under broker id 0, which producers send to."""
    for data in route["brokerDatas"]:
        if data["brokerName"] == broker:
            addresses = {int(number): address for number, address in data["brokerAddrs"].items()}
            return addresses.get(0)
    return None
