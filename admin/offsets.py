"""The offsets of consumer groups: reset, and copied from one group to another.

Members of a group keep their offsets in memory and commit them every few seconds, so a change in the broker's table
does not last while they are connected. A reset to the begin, to the end or to a time is sent to them by the broker
(222): they continue from there, and commit. Other targets need a group without members.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from tallystick.admin.consumption import online, queue_table
from tallystick.admin.group_tables import offsets_at
from tallystick.admin.models import OffsetChange, OffsetKind, OffsetStep, OffsetTarget, QueueRange, StepState
from tallystick.admin.records import offset_at
from tallystick.admin.routing import places_of
from tallystick.admin.servers import Place, Question, Servers
from tallystick.admin.topic_tables import queues_of
from tallystick.client import ClientError, ConfigurationError
from tallystick.client.core.queue import Queue
from tallystick.client.wire.codes import RequestCode, ResponseCode

_ALL_KINDS = (OffsetKind.EARLIEST, OffsetKind.LATEST, OffsetKind.TIMESTAMP)
"""Targets that brokers send to members."""


class Offsets:
    """Changes of offsets."""

    def __init__(self, servers: Servers) -> None:
        self._servers = servers

    async def reset(
        self,
        group: str,
        topic: str,
        to: OffsetTarget,
        *,
        queues: Iterable[tuple[str, int]] | None = None,
        dry_run: bool = False,
    ) -> OffsetChange:
        """Sets where a group continues in a topic. `queues`: only these, as names of brokers and numbers; None: all.

        The result has a step for each queue. If members are connected, only a reset of all queues to the begin, the end
        or a time is possible; other steps fail, because the members would overwrite the offsets. NotFound: the topic
        does not exist. ConfigurationError: a queue does not exist. ClientError: no broker answers.
        """
        question = self._servers.question()
        places = {place.name: place for place in await places_of(question, topic)}
        ranges = await _ranges(question, places.values(), topic)
        only = None if queues is None else set(queues)
        if only is not None and (missing := only - {(queue.broker, queue.id) for queue in ranges}):
            raise ConfigurationError(f"topic {topic} has no queue {min(missing)}")
        committed = await _committed(question, places.values(), group)
        chosen = {queue: each for queue, each in ranges.items() if only is None or (queue.broker, queue.id) in only}
        targets = await question.each(
            chosen, lambda queue: _target(question, places[queue.broker], queue, chosen[queue], to, committed)
        )
        question.need_some(targets)
        plans = [
            _planned(queue, committed.get(queue), targets[queue], chosen[queue]) for queue in chosen if queue in targets
        ]
        members = await online(question, places.values(), group)
        is_online = bool(members.connections)
        if is_online and (only is not None or to.kind not in _ALL_KINDS):
            reason = (
                f"group {group} has connected members, which would overwrite the offset: stop them, or reset all "
                "queues to the begin, the end or a time"
            )
            return OffsetChange(dry_run, False, [_failed(plan, reason) for plan in plans])
        if dry_run:
            return OffsetChange(True, is_online, plans)
        if is_online:
            return OffsetChange(False, True, await _tell_members(question, places, group, topic, to, plans))
        return OffsetChange(False, False, await _write(question, places, group, plans))

    async def clone(self, source: str, target: str, topic: str, *, dry_run: bool = False) -> OffsetChange:
        """Copies the offsets of a group in a topic to another group, which must have no connected members. Errors as in
        `reset`; ConfigurationError: the source has no offsets."""
        question = self._servers.question()
        places = {place.name: place for place in await places_of(question, topic)}
        ranges = await _ranges(question, places.values(), topic)
        offsets = await _committed(question, places.values(), source)
        known = await _committed(question, places.values(), target)
        plans = [
            _planned(queue, known.get(queue), offsets[queue], ranges[queue]) for queue in ranges if queue in offsets
        ]
        if not plans:
            raise ConfigurationError(f"group {source} has no offsets in topic {topic}")
        if (await online(question, places.values(), target)).connections:
            reason = f"group {target} has connected members, which would overwrite the offset: stop them"
            return OffsetChange(dry_run, False, [_failed(plan, reason) for plan in plans])
        return OffsetChange(dry_run, False, plans if dry_run else await _write(question, places, target, plans))


async def _ranges(question: Question, places: Iterable[Place], topic: str) -> dict[Queue, QueueRange]:
    found = await question.each(places, lambda place: queues_of(question, place, topic))
    question.need_some(found)
    return {Queue(topic, each.broker, each.queue): each for part in found.values() for each in part}


async def _committed(question: Question, places: Iterable[Place], group: str) -> dict[Queue, int]:
    found = await question.each(places, lambda place: offsets_at(question, place, group))
    return {queue: offset for part in found.values() for queue, offset in part.items()}


async def _target(
    question: Question, place: Place, queue: Queue, known: QueueRange, to: OffsetTarget, committed: dict[Queue, int]
) -> int:
    """The new offset in a queue, between its begin and its end. ClientError."""
    if to.kind is OffsetKind.EARLIEST:
        return known.min
    if to.kind is OffsetKind.LATEST:
        return known.max
    if to.kind is OffsetKind.OFFSET:
        wanted = to.value
    elif to.kind is OffsetKind.SHIFT:
        wanted = committed.get(queue, known.min) + to.value
    else:
        wanted = await offset_at(question, place, queue, to.value)
    return min(max(wanted, known.min), known.max)


def _planned(queue: Queue, before: int | None, after: int, known: QueueRange) -> OffsetStep:
    state = StepState.UNCHANGED if before == after else StepState.PLANNED
    return OffsetStep(queue.topic, queue.broker, queue.id, before, after, known.min, known.max, state)


def _failed(step: OffsetStep, reason: str) -> OffsetStep:
    return replace(step, state=StepState.FAILED, error=reason)


async def _write(question: Question, places: dict[str, Place], group: str, plans: list[OffsetStep]) -> list[OffsetStep]:
    """Writes the table of offsets, which nothing overwrites while the group has no members."""
    done = []
    for plan in plans:
        if plan.state is StepState.UNCHANGED:
            done.append(plan)
            continue
        ext = {"consumerGroup": group, "topic": plan.topic, "queueId": str(plan.queue), "commitOffset": str(plan.after)}
        try:
            await question.ask(places[plan.broker], RequestCode.UPDATE_CONSUMER_OFFSET, ext)
        except ClientError as error:
            done.append(_failed(plan, str(error)))
        else:
            done.append(replace(plan, state=StepState.DONE))
    return done


async def _tell_members(
    question: Question, places: dict[str, Place], group: str, topic: str, to: OffsetTarget, plans: list[OffsetStep]
) -> list[OffsetStep]:
    """Lets each broker send the new offsets to the members. Queues without an offset cannot be a part of it: RocketMQ
    refuses the whole request; they are written to the table, and the members take them when they get the queue."""
    timestamp = {OffsetKind.EARLIEST: 0, OffsetKind.LATEST: -1}.get(to.kind, to.value)
    ext = {"topic": topic, "group": group, "timestamp": str(timestamp), "isForce": "true"}
    done = []
    for name, place in places.items():
        mine = [plan for plan in plans if plan.broker == name]
        unknown = [plan for plan in mine if plan.before is None]
        try:
            for plan in unknown:
                row = {"consumerGroup": group, "topic": topic, "queueId": str(plan.queue)}
                row["commitOffset"] = str(plan.after)
                await question.ask(place, RequestCode.UPDATE_CONSUMER_OFFSET, row)
            answer = await question.ask(place, RequestCode.INVOKE_BROKER_TO_RESET_OFFSET, ext)
            told = queue_table(question.json(answer, f"the answer of {place}").get("offsetTable") or {})
        except ClientError as error:
            if error.code == ResponseCode.CONSUMER_NOT_ONLINE:  # the members are at other brokers
                done += await _write(question, {name: place}, group, mine)
                continue
            done += [_failed(plan, str(error)) for plan in mine]
            continue
        for plan in mine:
            offset = told.get(Queue(topic, name, plan.queue))
            after = plan.after if offset is None else int(offset)
            done.append(replace(plan, after=after, state=StepState.DONE))
    return done
