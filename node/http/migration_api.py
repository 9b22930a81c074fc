"""What an operator of Kubernetes asks before and after a group takes the place of a RocketMQ master. Bodies are JSON.

    POST /migration/plan          {"nameServers": "10.0.0.1:9876;10.0.0.2:9876"}
                                  200 {"brokers": [{"broker": "broker-a", "cluster": "DefaultCluster",
                                                    "addresses": {"0": "10.0.0.1:10911"}, "master": "10.0.0.1:10911",
                                                    "error": "", "version": "V4_8_0", "bytes": 1234, "topics": 8,
                                                    "groups": 2, "obstacles": [], "different": [],
                                                    "settings": {"maxMessageSize": "4194304"},
                                                    "defaults": {"maxMessageSize": "4194304"}}]}
    POST /migration/comparison    {"sample": 200}
                                  200 {"with": "10.0.0.1:10911", "queues": 8, "offsets": 3, "sampled": 200,
                                       "behind": 0, "lateOffsets": 0, "problems": []}

Every process answers the first request, also one that is only a name server: it asks the name servers and masters of
the cluster that is to be replaced, as `tally migrate plan` does. It connects to addresses that the caller names, so it
is refused with 403 unless the process has an `adminTokenFile`. `error`: why a master told nothing.

The second one compares this broker, which copies a master or has taken its place, with that master, as `tally migrate
rehearse` and `verify` do. 404: this broker follows no master and never did; 409: this member does not lead its group.

Both only read. 502: the other cluster does not answer; the text says what does not.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any

from aiohttp import web

from tallystick.node.core import migration
from tallystick.node.core.client import ClusterClient
from tallystick.node.core.migration import Place
from tallystick.node.http.json_api import ApiError, failed, object_of
from tallystick.node.remoting.errors import RemotingError

if TYPE_CHECKING:
    from tallystick.node.broker.broker import Broker
    from tallystick.node.http.admin_api import AdminView

_MOST_SERVERS, _MOST_SAMPLED, _MOST_BROKERS = 16, 10_000, 256
_AT_ONCE = 16
"""Masters that are asked at a time."""


def migration_routes(view: AdminView, *, authenticated: bool) -> list[web.RouteDef]:
    """The routes. `authenticated`: callers need a token."""

    def route(work: Callable[[web.Request], Awaitable[Any]]) -> Callable[[web.Request], Any]:
        async def handle(request: web.Request) -> web.Response:
            try:
                return web.json_response(await work(request))
            except ApiError as error:
                return failed(error.status, str(error), **error.more)
            except RemotingError as error:
                return failed(502, str(error))
            except (KeyError, TypeError, ValueError, AttributeError) as error:
                return failed(502, f"the other cluster gave an invalid answer: {error!r}")

        return handle

    async def plan(request: web.Request) -> Any:
        if not authenticated:
            raise ApiError(403, "this request needs adminTokenFile: the process connects to addresses of the caller")
        return {"brokers": await _plan(_name_servers(await object_of(request)), view.broker())}

    async def comparison(request: web.Request) -> Any:
        broker = view.broker()
        if broker is None:
            raise ApiError(503, view.absent())
        return await _compared(broker, _sample(await object_of(request)))

    return [web.post("/migration/plan", route(plan)), web.post("/migration/comparison", route(comparison))]


def _name_servers(body: dict[str, Any]) -> str:
    found = body.pop("nameServers", None)
    if body or not isinstance(found, str) or not found.strip():
        raise ApiError(400, 'the body is {"nameServers": "host:port;host:port"}')
    if found.count(";") >= _MOST_SERVERS:
        raise ApiError(400, f"nameServers has at most {_MOST_SERVERS} addresses")
    return found


def _sample(body: dict[str, Any]) -> int:
    found = body.pop("sample", 0)
    if body or isinstance(found, bool) or not isinstance(found, int) or not 0 <= found <= _MOST_SAMPLED:
        raise ApiError(400, f'the body is {{"sample": n}}, with n from 0 to {_MOST_SAMPLED}')
    return found


async def _plan(nameservers: str, broker: Broker | None) -> list[dict[str, Any]]:
    limit = asyncio.Semaphore(_AT_ONCE)

    async def row(client: ClusterClient, place: Place) -> dict[str, Any]:
        async with limit:
            return await _row(client, place)

    async with _client(nameservers, broker) as client:
        known = await migration.places(client)
        if len(known) > _MOST_BROKERS:
            raise ApiError(409, f"the cluster has {len(known)} broker names, and at most {_MOST_BROKERS} are supported")
        return list(await asyncio.gather(*(row(client, place) for place in known)))


def _client(nameservers: str, broker: Broker | None) -> ClusterClient:
    """With the credentials and the TLS of the broker's own requests; None: this process has no broker."""
    if broker is None:
        return ClusterClient(nameservers)
    return ClusterClient(nameservers, tls=broker.client_context, sign=broker.sign)


async def _row(client: ClusterClient, place: Place) -> dict[str, Any]:
    told: dict[str, Any] = {
        "broker": place.name,
        "cluster": place.cluster,
        "addresses": {str(number): address for number, address in sorted(place.addresses.items())},
        "master": place.master,
        "error": "",
    }
    if place.master is None:
        return told | {"error": "it has no master"}
    try:
        found = await migration.facts(client, place.master)
    except RemotingError as error:
        return told | {"error": f"its master {place.master} does not answer: {error}"}
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        return told | {"error": f"its master {place.master} gave an invalid answer: {error!r}"}
    theirs, own = migration.compared_settings(found)
    return told | {
        "version": found.version,
        "bytes": found.end - found.begin,
        "topics": found.topics,
        "groups": found.groups,
        "obstacles": migration.obstacles(found),
        "different": migration.differences_of_group(found),
        "settings": theirs,
        "defaults": own,
    }


async def _compared(broker: Broker, sample: int) -> dict[str, Any]:
    copy = broker.copying
    if copy is None:
        raise ApiError(404, "this broker follows no master, and never did")
    if broker.group is not None and not broker.group.leads:
        leader = broker.group.member.leader
        raise ApiError(409, "this member does not lead its group: ask the leader", leader=leader)
    theirs = copy.counterpart
    if not theirs:
        raise ApiError(409, "the address of the master is not known")
    async with _client(broker.settings.namesrvAddr, broker) as client:
        found = await migration.compare(
            client,
            str(broker.advertised),
            theirs,
            sample=sample,
            rng=random.Random(),
            same_positions=broker.group is None,
        )
    return {
        "with": theirs,
        "queues": found.queues,
        "offsets": found.offsets,
        "sampled": found.sampled,
        "behind": found.behind,
        "lateOffsets": found.late_offsets,
        "problems": found.problems,
    }
