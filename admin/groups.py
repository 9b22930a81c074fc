"""Consumer groups: their progress, members, and where the subscriptions of members disagree."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, NamedTuple

from tallystick.admin.changing import carry_out
from tallystick.admin.consumption import (
    GroupProgress,
    Online,
    ages_of_lag,
    disagreements,
    member_state,
    online,
    progress_of_group,
)
from tallystick.admin.group_changes import plan_delete, plan_put
from tallystick.admin.group_tables import offsets_at, read_groups, read_progress
from tallystick.admin.models import (
    Change,
    ConsumerGroup,
    GroupConfig,
    GroupDetail,
    GroupMember,
    GroupState,
    Page,
    QueueLag,
    Subscription,
)
from tallystick.admin.names import DEAD_LETTER_PREFIX, RETRY_PREFIX, is_system_group
from tallystick.admin.paging import etag_of, names_of_page
from tallystick.admin.servers import Place, Question, Servers
from tallystick.admin.topic_tables import Tables, queues_of, read_rows
from tallystick.client import ClientError, NotFound
from tallystick.client.core.queue import Queue
from tallystick.client.wire.codes import ResponseCode


class Groups:
    """The consumer groups of all clusters that the name servers know."""

    def __init__(self, servers: Servers) -> None:
        self._servers = servers

    async def list(
        self, *, system: bool = False, search: str = "", cursor: str | None = None, limit: int = 500
    ) -> Page[ConsumerGroup]:
        """Returns a part of the groups, sorted by name. `system`: also those of brokers and tools. `search`: a part of
        the name. `disagrees` is known here only if the brokers are tallystick's: see `get`. ClientError: no broker
        answers."""
        question = self._servers.question()
        topology = await question.topology()
        places = topology.readers()
        known = await read_groups(question, places)
        shown = [name for name in known if system or not is_system_group(name)]
        part, following = names_of_page(shown, search, cursor, limit)
        progress = await read_progress(question, places)
        members = await question.each(part, lambda name: online(question, places, name))
        ages = await _ages(question, places, {name: progress[name] for name in part if name in progress})
        letters = await _dead_letters(question, await read_rows(question, topology), part)
        items = [
            _group(_Parts(name, known[name], progress.get(name), members.get(name, Online()), ages, letters))
            for name in part
        ]
        return Page(items, following, question.problems)

    async def get(self, name: str) -> GroupDetail:
        """Returns a group with the lag of each queue and its members, whose subscriptions it asks. NotFound: no broker
        knows it. ClientError: no broker answers."""
        question = self._servers.question()
        topology = await question.topology()
        places = topology.readers()
        known = await read_groups(question, places)
        members = await online(question, places, name)
        if name not in known and not members.connections:
            reason = f"no broker has the group {name}"
            raise NotFound("name server", ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST, reason)
        progress = GroupProgress()
        for each in (await question.each(places, lambda place: progress_of_group(question, place, name))).values():
            progress.add(each)
        ages = await _ages(question, places, {name: progress})
        topics = await read_rows(question, topology)
        letters = await _dead_letters(question, topics, [name])
        states = await _member_states(question, {place.name: place for place in places}, name, members)
        subscriptions = {
            client_id: members.of_member.get(client_id, state.subscriptions) for client_id, state in states.items()
        }
        apart = disagreements(subscriptions)
        group = _group(_Parts(name, known.get(name, {}), progress, members, ages, letters), disagrees=bool(apart))
        owners = {queue: client_id for client_id, state in states.items() for queue in state.queues}
        queues = await _queues(question, places, topics, _Queues(name, progress, members, ages, owners))
        found = [
            GroupMember(connection, subscriptions.get(client_id, []), _count(states, client_id))
            for client_id, connection in sorted(members.connections.items())
        ]
        return GroupDetail(group, queues, found, apart, question.problems)

    async def put(
        self,
        name: str,
        changes: Mapping[str, Any],
        *,
        cluster: str | None = None,
        dry_run: bool = False,
        if_match: str | None = None,
    ) -> Change:
        """Creates a group, or changes it at every broker of its clusters. `changes`: fields of `GroupConfig`; others
        stay, or have their defaults. `cluster`: where to create it, or the only cluster to change. `if_match`: the
        `etag` that it must have; "": it must not exist.

        ChangedError: it has another one. ConfigurationError: a name or a value is wrong. ClientError: no broker
        answers.
        """
        question = self._servers.question()
        return await carry_out(await plan_put(question, name, changes, cluster, if_match), dry_run=dry_run)

    async def delete(
        self, name: str, *, topics: bool = False, dry_run: bool = False, if_match: str | None = None
    ) -> Change:
        """Deletes a group at all brokers. `topics`: also its topics of retries and of dead letters, with all messages.
        Brokers of RocketMQ 4 keep its offsets. The steps fail if the group has connected members. NotFound,
        ChangedError, ClientError."""
        question = self._servers.question()
        return await carry_out(await plan_delete(question, name, topics, if_match), dry_run=dry_run)


class _State(NamedTuple):
    subscriptions: list[Subscription]
    queues: list[Queue]
    answered: bool


def _count(states: Mapping[str, _State], client_id: str) -> int | None:
    state = states.get(client_id)
    return len(state.queues) if state is not None and state.answered else None


async def _member_states(
    question: Question, places: Mapping[str, Place], group: str, members: Online
) -> dict[str, _State]:
    """Asks each member. One that does not answer is a problem, and not asked for its subscriptions again."""

    async def ask(client_id: str) -> _State:
        broker = members.connections[client_id].brokers[0]
        try:
            state = await member_state(question, places[broker], group, client_id)
        except ClientError as error:
            question.failed(client_id, error)
            return _State(members.of_member.get(client_id, []), [], False)
        return _State(state.subscriptions, state.queues, True)

    found = await question.each(members.connections, ask)
    return {client_id: state for client_id, state in found.items() if state.answered or state.subscriptions}


async def _ages(
    question: Question, places: Iterable[Place], groups: Mapping[str, GroupProgress]
) -> dict[tuple[str, Queue], float]:
    """Returns how old the first message that is not consumed is, for the queues with such a message."""
    of_name = {place.name: place for place in places}
    asked = {
        (name, of_name[queue.broker], queue.topic)
        for name, progress in groups.items()
        for queue, each in progress.queues.items()
        if each.lag and queue.broker in of_name
    }
    found = await question.each(asked, lambda each: ages_of_lag(question, each[1], each[0], each[2]))
    return {(name, queue): age for (name, _, _), table in found.items() for queue, age in table.items()}


async def _dead_letters(question: Question, tables: Tables, groups: Iterable[str]) -> dict[str, int]:
    """Returns the numbers of dead letters of groups that have some. `tables`: the topics of brokers."""
    wanted = {DEAD_LETTER_PREFIX + name for name in groups}
    pairs = [(place, topic) for place, table in tables.items() for topic in wanted & table.keys()]
    ranges = await question.each(pairs, lambda pair: queues_of(question, *pair))
    found: Counter[str] = Counter()
    for (_, topic), part in ranges.items():
        found[topic.removeprefix(DEAD_LETTER_PREFIX)] += sum(each.max - each.min for each in part)
    return found


@dataclass(frozen=True, slots=True)
class _Parts:
    """What was read about one group."""

    name: str
    configs: dict[str, GroupConfig]
    progress: GroupProgress | None
    members: Online
    ages: Mapping[tuple[str, Queue], float]
    letters: Mapping[str, int]


def _group(parts: _Parts, *, disagrees: bool | None = None) -> ConsumerGroup:
    progress, members = parts.progress, parts.members
    known = progress is not None and bool(progress.queues)
    queues = progress.queues if progress is not None else {}
    topics = {queue.topic for queue in queues} | members.topics.keys()
    ages = [parts.ages[parts.name, queue] for queue in queues if (parts.name, queue) in parts.ages]
    return ConsumerGroup(
        parts.name,
        GroupState.ONLINE if members.connections else GroupState.OFFLINE,
        len(members.connections),
        sorted(topic for topic in topics if not topic.startswith(RETRY_PREFIX)),
        progress.lag if progress is not None and known else None,
        max(ages, default=0.0) if known else None,
        members.mode,
        progress.rate if progress is not None else 0.0,
        bool(disagreements(members.of_member)) if disagrees is None else disagrees,
        parts.letters.get(parts.name, 0),
        parts.configs,
        etag_of({broker: asdict(config) for broker, config in parts.configs.items()}),
    )


# --- the queues of one group ---


@dataclass(frozen=True, slots=True)
class _Queues:
    """What was read about the queues of one group."""

    group: str
    progress: GroupProgress
    members: Online
    ages: Mapping[tuple[str, Queue], float]
    owners: Mapping[Queue, str] = field(default_factory=dict)


async def _queues(question: Question, places: list[Place], tables: Tables, known: _Queues) -> list[QueueLag]:
    """The queues in which the group has offsets, and those of topics to which its members subscribe. `tables`: the
    topics of brokers."""
    rows = dict(known.progress.queues)
    topics = {queue.topic for queue in rows}
    pairs = [
        (place, topic) for topic in known.members.topics.keys() - topics for place in tables if topic in tables[place]
    ]
    ends = {
        Queue(topic, each.broker, each.queue): each.max
        for (_, topic), part in (await question.each(pairs, lambda pair: queues_of(question, *pair))).items()
        for each in part
    }
    doubtful = {queue.broker for queue, each in rows.items() if each.consumer_offset == 0}
    committed = await question.each(
        [place for place in places if place.name in doubtful],
        lambda place: offsets_at(question, place, known.group),
    )
    has_offset = {queue for table in committed.values() for queue in table}
    found = [
        QueueLag(
            *queue,
            each.broker_offset,
            None if each.consumer_offset == 0 and queue not in has_offset else each.consumer_offset,
            each.lag,
            known.ages.get((known.group, queue), 0.0 if not each.lag else None),
            each.last_ms or None,
            known.owners.get(queue),
        )
        for queue, each in rows.items()
    ]
    found += [QueueLag(*queue, end, None, end, None, None, known.owners.get(queue)) for queue, end in ends.items()]
    return sorted(found, key=lambda each: (each.topic, each.broker, each.queue))
