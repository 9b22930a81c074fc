"""Brokers that a name server knows, with the addresses of their HTTP ports.

RocketMQ's protocol has no place for an HTTP address. A broker of this product states it with its settings
(GET_BROKER_CONFIG, key `httpAddress`), and each member of a group has the group's log, so one of them is enough.
Requests are signed, and use TLS, as the environment of the driver says (`ProtocolAccess`).
"""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor

from tallystick.node.core.client import ClusterClient
from tallystick.node.remoting.codes import RequestCode
from tallystick.node.remoting.errors import RemotingError
from tallystick.spark.protocol_access import ProtocolAccess
from tallystick.spark.volume import VolumeError
from tallystick.store import fastjson

KEY = "httpAddress"


def brokers_of(servers: str, cluster: str | None) -> dict[str, str]:
    """Returns the HTTP address of one process for each broker name. `servers`: `host:port;host:port`; `cluster`: only
    the brokers of this cluster. VolumeError."""
    with ThreadPoolExecutor(1) as thread:  # the caller's thread may have an event loop, as in a notebook
        return thread.submit(asyncio.run, _brokers(servers, cluster)).result()


async def _brokers(servers: str, cluster: str | None) -> dict[str, str]:
    try:
        access = ProtocolAccess.of()
    except ValueError as error:
        raise VolumeError(f"name server {servers}: {error}") from error
    async with ClusterClient(servers, sign=access.sign, tls=access.context) as client:
        try:
            answer = await client.ask_nameserver(RequestCode.GET_BROKER_CLUSTER_INFO, {})
            known = fastjson.loads(answer.body)
            clusters = known.get("clusterAddrTable") or {}
            names = {name for each, names in clusters.items() if cluster in (None, each) for name in names}
            addresses = {
                name: [address for _, address in sorted(data["brokerAddrs"].items(), key=lambda pair: int(pair[0]))]
                for name, data in sorted((known.get("brokerAddrTable") or {}).items())
                if name in names
            }
        except (RemotingError, ValueError, KeyError, TypeError, AttributeError) as error:
            raise VolumeError(f"name server {servers}: {error}") from error
        if not addresses:
            where = "" if cluster is None else f" in the cluster {cluster}; it knows {', '.join(sorted(clusters))}"
            raise VolumeError(f"name server {servers}: it knows no broker{where}")
        return {name: await _http_of(client, name, found) for name, found in addresses.items()}


async def _http_of(client: ClusterClient, name: str, addresses: list[str]) -> str:
    """Asks the master first, because a slave can be behind."""
    problem = "it has no address"
    for address in addresses:
        try:
            answer = await client.call(address, RequestCode.GET_BROKER_CONFIG, {})
        except RemotingError as error:
            problem = str(error)
            continue
        settings = dict(line.split("=", 1) for line in answer.body.decode(errors="replace").splitlines() if "=" in line)
        if settings.get(KEY):
            return f"http://{settings[KEY]}"
        problem = f"{address} states no {KEY}: it has no HTTP port, or is another product"
    raise VolumeError(f"broker {name}: {problem}")
