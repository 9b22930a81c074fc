"""Clusters, and the live figures of all of them."""

from __future__ import annotations

import time

from tallystick.admin.brokers import describe
from tallystick.admin.group_tables import read_progress
from tallystick.admin.models import Broker, Cluster, Figures, Problem, Rates
from tallystick.admin.names import is_hidden, is_system_group
from tallystick.admin.servers import Servers
from tallystick.admin.topic_tables import incoming_rates, outgoing_rates, read_topics

MOST_RATES = 200
"""Topics whose rates are asked one by one, for brokers that have no table of them."""


class Clusters:
    """The clusters that the name servers know."""

    def __init__(self, servers: Servers) -> None:
        self._servers = servers

    async def list(self) -> list[Cluster]:
        """Returns the clusters with their brokers. A broker that does not answer is not `reachable`. ClientError: no
        name server answers."""
        question = self._servers.question()
        topology = await question.topology()
        found: dict[str, list[Broker]] = {name: [] for name in topology.clusters()}
        for place, broker in (await question.each(topology.places, lambda place: describe(question, place))).items():
            found[place.cluster].append(broker)
        return [Cluster(name, brokers) for name, brokers in found.items()]

    async def figures(self) -> Figures:
        """Returns the figures of now. Rates of topics are there for at most `MOST_RATES` topics at brokers that have no
        table of them. ClientError: no name server answers."""
        question = self._servers.question()
        topology = await question.topology()
        places = topology.readers()
        brokers = (await question.each(topology.places, lambda place: describe(question, place))).values()
        progress = await read_progress(question, places)
        topics = await read_topics(question, topology)
        shown = {name: topic for name, topic in topics.items() if not is_hidden(topic.kind)}
        asked = sorted(shown)[:MOST_RATES]
        of_name = {place.name: place for place in places}
        pairs = [(name, of_name[broker]) for name in asked for broker in shown[name].configs]
        incoming, out = await incoming_rates(question, pairs), outgoing_rates(progress.values())
        if len(shown) > len(asked):
            reason = f"rates are shown for {len(asked)} of {len(shown)} topics"
            question.problems.append(Problem("topics", reason))
        question.problems += [Problem(each.address, each.problem or "") for each in brokers if not each.reachable]
        masters = {place.address for place in places}
        return Figures(
            int(time.time() * 1000),
            sum(each.rates.in_per_s for each in brokers if each.address in masters),
            sum(each.rates.out_per_s for each in brokers),
            {name: Rates(float(incoming[name]), float(out[name])) for name in asked},
            {name: each.lag for name, each in progress.items() if not is_system_group(name)},
            {each.address: each.disk.used_ratio for each in brokers if each.disk.used_ratio is not None},
            question.problems,
        )
