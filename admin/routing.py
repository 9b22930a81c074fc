"""The brokers and queues of one topic, as name servers know them."""

from __future__ import annotations

from tallystick.admin.servers import Place, Question
from tallystick.client.transport.routes import Route, parse_route
from tallystick.client.wire.codes import RequestCode


async def route_of(question: Question, topic: str) -> Route:
    """Returns the brokers and queues of a topic. NotFound: it does not exist. ClientError."""
    ext = {"topic": topic, "acceptStandardJsonOnly": "true"}
    return parse_route(topic, (await question.nameserver(RequestCode.GET_ROUTEINFO_BY_TOPIC, ext)).body)


async def places_of(question: Question, topic: str) -> list[Place]:
    """Returns for each broker of a topic the process to read from. NotFound: it does not exist. ClientError."""
    route = await route_of(question, topic)
    found = []
    for name, addresses in sorted(route.brokers.items()):
        if addresses:
            lowest = min(addresses)
            found.append(Place(route.clusters.get(name, ""), name, lowest, addresses[lowest]))
    return found
