"""Topics: their configuration at each broker, their queues, rates and clients."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from tallystick.admin.changing import carry_out
from tallystick.admin.models import Change, Connection, Page, QueueRange, Rates, Topic, TopicDetail
from tallystick.admin.names import is_hidden
from tallystick.admin.paging import names_of_page
from tallystick.admin.routing import places_of
from tallystick.admin.servers import Place, Question, Servers
from tallystick.admin.topic_changes import plan_delete, plan_put
from tallystick.admin.topic_tables import (
    consumer_groups_of,
    get_rate,
    producers_at,
    put_rate,
    queues_of,
    read_topics,
    read_traffic,
)
from tallystick.client import ClientError, NotFound, NotSupported
from tallystick.client.wire.codes import ResponseCode


class Topics:
    """The topics of all clusters that the name servers know."""

    def __init__(self, servers: Servers) -> None:
        self._servers = servers

    async def queues(self, name: str) -> list[QueueRange]:
        """Returns the offsets of a topic's queues. It needs no permission but that for the topic. NotFound: it does not
        exist. ClientError: a broker does not answer."""
        question = self._servers.question()
        places = await places_of(question, name)
        found = await question.each(places, lambda place: queues_of(question, place, name))
        if question.first_error is not None:
            raise question.first_error
        return [each for part in found.values() for each in part]

    async def list(
        self, *, system: bool = False, search: str = "", cursor: str | None = None, limit: int = 500
    ) -> Page[Topic]:
        """Returns a part of the topics, sorted by name. `system`: also those that brokers made: system topics,
        and those of retries and dead letters. `search`: a part of the name. ClientError: no broker answers."""
        question = self._servers.question()
        topology = await question.topology()
        known = await read_topics(question, topology)
        shown = [name for name, topic in known.items() if system or not is_hidden(topic.kind)]
        part, following = names_of_page(shown, search, cursor, limit)
        traffic = await read_traffic(question, topology, {name: known[name] for name in part})
        return Page([traffic[name] for name in part], following, question.problems)

    async def get(self, name: str) -> TopicDetail:
        """Returns a topic with its queues and clients. NotFound: no broker has it. ClientError: no broker answers."""
        question = self._servers.question()
        topology = await question.topology()
        topic = (await read_topics(question, topology)).get(name)
        if topic is None:
            raise NotFound("name server", ResponseCode.TOPIC_NOT_EXIST, f"no broker has the topic {name}")
        places = [place for place in topology.readers() if place.name in topic.configs]
        queues = await question.each(places, lambda place: queues_of(question, place, name))
        rates = await question.each(places, lambda place: put_rate(question, place, name))
        groups = await question.each(places, lambda place: consumer_groups_of(question, place, name))
        names = sorted(set().union(*groups.values()))
        out = sum((await question.each(names, lambda group: get_rate(question, places, name, group))).values())
        ranges = [each for part in queues.values() for each in part]
        messages = sum(each.max - each.min for each in ranges) if queues else None
        found = replace(topic, messages=messages, rates=Rates(float(sum(rates.values())), float(out)))
        producers = await _producers(question, places)
        return TopicDetail(found, ranges, producers, names, question.problems)

    async def put(
        self,
        name: str,
        changes: Mapping[str, Any],
        *,
        cluster: str | None = None,
        dry_run: bool = False,
        if_match: str | None = None,
    ) -> Change:
        """Creates a topic, or changes it at every broker of its clusters. `changes`: fields of `TopicConfig`; others
        stay, or have their defaults. An attribute that is None is removed. `cluster`: where to create it, or the only
        cluster to change. `if_match`: the `etag` that it must have; "": it must not exist.

        ChangedError: it has another one. ConfigurationError: a name or a value is wrong. ClientError: no broker
        answers.
        """
        question = self._servers.question()
        return await carry_out(await plan_put(question, name, changes, cluster, if_match), dry_run=dry_run)

    async def delete(self, name: str, *, dry_run: bool = False, if_match: str | None = None) -> Change:
        """Deletes a topic at all brokers and name servers, with its messages. NotFound, ChangedError, ClientError."""
        question = self._servers.question()
        return await carry_out(await plan_delete(question, name, if_match), dry_run=dry_run)


async def _producers(question: Question, places: list[Place]) -> dict[str, list[Connection]]:
    """The clients of producer groups, from brokers that list them. They do not know to which topics the clients
    send."""
    found: dict[str, list[Connection]] = {}
    for place in places:
        try:
            found |= await producers_at(question, place)
        except NotSupported:
            continue
        except ClientError as error:
            question.failed(place.address, error)
    return found
