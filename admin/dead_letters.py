"""Dead letters: the messages that groups finally failed to consume.

RocketMQ makes their topics without the permission to read, so they are not pulled: the units of the queue (321) name
the positions of the messages, which are then viewed (33).
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable
from functools import partial

from tallystick.admin.messages import stored_message
from tallystick.admin.models import DeadLetters, MessageSummary, Page, QueueRange, Resent, StepState
from tallystick.admin.names import DEAD_LETTER_PREFIX
from tallystick.admin.paging import checked_limit, decode_cursor, encode_cursor
from tallystick.admin.records import summary_of
from tallystick.admin.resending import resend_to_group
from tallystick.admin.servers import Place, Question, Servers
from tallystick.admin.topic_tables import queues_of, read_topics
from tallystick.client import ClientError, ConfigurationError, NotFound, Stored
from tallystick.client.core.message import decode_stored
from tallystick.client.wire.codes import RequestCode, ResponseCode

_UNITS = 32
_MOST_RESENT = 10_000


class DeadLetterTopics:
    """The dead letters of all groups."""

    def __init__(self, servers: Servers) -> None:
        self._servers = servers

    async def groups(self) -> list[DeadLetters]:
        """Returns the groups that have dead letters, most of them first. ClientError: no broker answers."""
        question = self._servers.question()
        topology = await question.topology()
        topics = {name for name in await read_topics(question, topology) if name.startswith(DEAD_LETTER_PREFIX)}
        places = topology.readers()
        found = []
        for name in sorted(topics):
            ranges = await question.each(places, partial(_ranges_of, question, name))
            count = sum(each.max - each.min for part in ranges.values() for each in part)
            if count:
                found.append(DeadLetters(name.removeprefix(DEAD_LETTER_PREFIX), count))
        return sorted(found, key=lambda each: (-each.messages, each.group))

    async def resend(self, group: str, ids: Iterable[str] | None, *, dry_run: bool = False) -> list[Resent]:
        """Sends dead letters to their group again: copies go to its topic of retries, so that only this group gets
        them. The dead letters stay where they are. `ids`: those of the messages; None: all, at most 10 000. There is
        a result for each. NotFound: the group has no dead letters. ClientError."""
        question = self._servers.question()
        places = await _places(question, group)
        topic = DEAD_LETTER_PREFIX + group
        if ids is None:
            found = []
            async for place, _, message in _letters(question, places, topic, None):
                found.append(await resend_to_group(question, place, message, group, dry_run))
                if len(found) == _MOST_RESENT:
                    break
            return found
        masters = {place.name: place for place in places}
        found = []
        for each in ids:
            try:
                _, message = await stored_message(question, each)
                if message.stored_in != topic or message.broker not in masters:
                    raise ConfigurationError(f"message {each} is not a dead letter of group {group}")
            except ClientError as error:
                found.append(Resent(each, StepState.FAILED, None, "", str(error)))
                continue
            found.append(await resend_to_group(question, masters[message.broker], message, group, dry_run))
        return found

    async def list(self, group: str, *, cursor: str | None = None, limit: int = 64) -> Page[MessageSummary]:
        """Returns dead letters of a group, broker by broker, the oldest first. NotFound: it has none."""
        checked_limit(limit)
        question = self._servers.question()
        places = await _places(question, group)
        at = _position(cursor)
        found: list[MessageSummary] = []
        async for place, queue, message in _letters(question, places, DEAD_LETTER_PREFIX + group, at):
            if len(found) == limit:
                return Page(found, encode_cursor([place.name, queue, message.offset]), question.problems)
            found.append(summary_of(message))
        return Page(found, None, question.problems)


async def _places(question: Question, group: str) -> list[Place]:
    topology = await question.topology()
    topic = (await read_topics(question, topology)).get(DEAD_LETTER_PREFIX + group)
    if topic is None:
        raise NotFound("name server", ResponseCode.TOPIC_NOT_EXIST, f"group {group} has no dead letters")
    return [place for place in topology.readers() if place.name in topic.configs]


async def _ranges_of(question: Question, topic: str, place: Place) -> list[QueueRange]:
    try:
        return await queues_of(question, place, topic)
    except NotFound:
        return []


def _position(cursor: str | None) -> tuple[str, int, int] | None:
    if cursor is None:
        return None
    try:
        broker, queue, offset = decode_cursor(cursor)
        return str(broker), int(queue), int(offset)
    except (TypeError, ValueError) as error:
        raise ConfigurationError(f"{cursor!r:.80} is not a cursor of this list") from error


async def _letters(
    question: Question, places: list[Place], topic: str, at: tuple[str, int, int] | None
) -> AsyncIterator[tuple[Place, int, Stored]]:
    """Yields broker, queue and message. `at`: the broker, queue and offset to begin with."""
    for place in places:
        if at is not None and place.name < at[0]:
            continue
        for each in (await question.each([place], partial(_ranges_of, question, topic))).get(place, []):
            offset = each.min
            if at is not None and place.name == at[0]:
                if each.queue < at[1]:
                    continue
                offset = max(offset, at[2] if each.queue == at[1] else 0)
            async for message in _queue(question, place, topic, each.queue, offset, each.max):
                yield place, each.queue, message


async def _queue(
    question: Question, place: Place, topic: str, queue: int, offset: int, end: int
) -> AsyncIterator[Stored]:
    """Yields the messages of a queue. One that cannot be read is a problem, and is left out."""
    while offset < end:
        ext = {"topic": topic, "queueId": str(queue), "index": str(offset), "count": str(min(_UNITS, end - offset))}
        try:
            rows = (await question.table(place, RequestCode.QUERY_CONSUME_QUEUE, ext)).get("queueData") or []
        except ClientError as error:
            question.failed(place.address, error)
            return
        if not rows:
            return
        positions = dict.fromkeys(int(row["physicOffset"]) for row in rows if int(row.get("physicSize") or 0) > 0)
        found = await question.each(positions, lambda position: _at(question, place, position))
        for message in found.values():
            yield message
        offset += len(rows)


async def _at(question: Question, place: Place, position: int) -> Stored:
    answer = await question.ask(place, RequestCode.VIEW_MESSAGE_BY_ID, {"offset": str(position)})
    return decode_stored(answer.body, place.name, Stored)[0]
