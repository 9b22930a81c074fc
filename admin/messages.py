"""Messages: by id, by key, by unique key, and by the time at which they were stored."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable

from tallystick.admin.models import Message, MessageSummary, Page, Resent, TraceStep, Track
from tallystick.admin.names import TRACE_TOPIC
from tallystick.admin.paging import checked_limit
from tallystick.admin.records import message_of, newest_first, summary_of
from tallystick.admin.resending import consume_now, resend_to_group
from tallystick.admin.routing import places_of, route_of
from tallystick.admin.servers import Place, Question, Servers, Topology
from tallystick.admin.tracks import stored_steps, trace_steps, tracks_of
from tallystick.admin.window import Window
from tallystick.client import ClientError, ConfigurationError, ConnectionFailed, NoAnswer, NotFound, Refused, Stored
from tallystick.client.core.message import decode_stored
from tallystick.client.wire.addresses import host_and_port
from tallystick.client.wire.codes import RequestCode, ResponseCode
from tallystick.client.wire.host import Host
from tallystick.client.wire.message_id import MessageIdError, decode_message_id

_LAST_MS = (1 << 63) - 1
_NOTHING = (ResponseCode.QUERY_NOT_FOUND, ResponseCode.NO_MESSAGE)
_UNIQUE = {"_UNIQUE_KEY_QUERY": "true"}


class Messages:
    """The messages that the brokers of all clusters keep."""

    def __init__(self, servers: Servers) -> None:
        self._servers = servers

    async def get(self, message_id: str) -> Message:
        """Returns the message with a broker's id. Only brokers that are registered are asked. NotFound: it does not
        exist, or no broker has its address. ConfigurationError: the text is not such an id. ClientError."""
        return message_of((await stored_message(self._servers.question(), message_id))[1])

    async def by_key(self, topic: str, key: str, limit: int = 64) -> list[MessageSummary]:
        """Returns the newest messages of a topic that have a key, newest first. NotFound: the topic does not exist.
        ClientError: no broker answers."""
        found = await self._query(topic, key, checked_limit(limit), {}, lambda message: key in message.keys)
        return [summary_of(message) for message in found][:limit]

    async def by_unique_key(self, topic: str, key: str) -> list[MessageSummary]:
        """Returns the messages of a topic that a client gave this unique key: more than one, if the message was sent
        again. Errors as in `by_key`."""
        found = await self._query(topic, key, 64, _UNIQUE, lambda message: key == message.unique_key)
        return [summary_of(message) for message in found]

    async def tracks(self, message: Message) -> list[Track]:
        """Returns what each group that reads the message's topic did with it, as far as offsets show. ClientError."""
        question = self._servers.question()
        places = {place.name: place for place in await places_of(question, message.summary.topic)}
        if message.summary.broker not in places:
            reason = f"broker {message.summary.broker} no longer has the topic {message.summary.topic}"
            raise NotFound("name server", ResponseCode.TOPIC_NOT_EXIST, reason)
        return await tracks_of(question, places, message)

    async def trace(self, message: Message) -> list[TraceStep]:
        """Returns the steps in the life of a message, by time: from the message, and from the trace topic, if clients
        wrote to it. ClientError."""
        steps = stored_steps(message)
        key = message.summary.unique_key
        if key:
            try:
                records = await self._query(TRACE_TOPIC, key, 64, {}, lambda record: True)
            except NotFound:  # no client writes a trace
                records = []
            steps += [step for record in records for step in trace_steps(record, key)]
        return sorted(steps, key=lambda step: step.at_ms)

    async def resend(
        self, message: Message, group: str, client_id: str | None = None, *, dry_run: bool = False
    ) -> Resent:
        """Delivers a message to one group again. `client_id`: this member consumes it now, and the result says how it
        ended; None: a copy goes to the group's topic of retries, and any member gets it. NotFound, ClientError."""
        question = self._servers.question()
        place, stored = await stored_message(question, message.summary.id)
        if client_id is not None:
            return await consume_now(question, place, stored, group, client_id, dry_run)
        return await resend_to_group(question, await _master_of(question, place), stored, group, dry_run)

    async def _query(
        self, topic: str, key: str, limit: int, more: dict[str, str], matches: Callable[[Stored], bool]
    ) -> list[Stored]:
        question = self._servers.question()
        ext = {"topic": topic, "key": key, "maxNum": str(limit), "beginTimestamp": "0", "endTimestamp": str(_LAST_MS)}
        places = await places_of(question, topic)

        async def ask(place: Place) -> list[Stored]:
            try:
                answer = await question.ask(place, RequestCode.QUERY_MESSAGE, ext | more)
            except Refused as error:
                if error.code in _NOTHING:
                    return []
                raise
            return decode_stored(answer.body, place.name, Stored)

        answers = await question.each(places, ask)
        question.need_some(answers)
        # The index has hashes of keys: two keys may share one.
        return newest_first(message for part in answers.values() for message in part if matches(message))

    async def search(
        self, topic: str, begin_ms: int, end_ms: int, *, cursor: str | None = None, limit: int = 64
    ) -> Page[MessageSummary]:
        """Returns messages of a topic that were stored from `begin_ms` to `end_ms`, by the time at which they were
        stored. It reads the queues up to the end of the part, so its costs do not depend on the length of the window.
        NotFound: the topic does not exist. ClientError: no broker answers."""
        checked_limit(limit)
        if end_ms < begin_ms:
            raise ConfigurationError("the end of the window is before its begin")
        question = self._servers.question()
        places = {place.name: place for place in await places_of(question, topic)}
        queues = (await route_of(question, topic)).read
        window = Window(question, places, begin_ms, end_ms)
        found, following = await window.part([each for each in queues if each.broker in places], cursor, limit)
        question.need_some(window.was_read)
        return Page([summary_of(message) for message in found], following, question.problems)


async def stored_message(question: Question, message_id: str) -> tuple[Place, Stored]:
    """Returns a message by its id, and the broker that has it. Errors as in `Messages.get`."""
    try:
        host, position = decode_message_id(message_id)
    except (MessageIdError, ValueError) as error:
        raise ConfigurationError(str(error)) from error
    topology = await question.topology()
    place = await _place_at(topology, host)
    if place is None:
        return await _found_elsewhere(question, topology, message_id, position)
    # The others with this name have the same log: slaves, or members of a replicated group.
    copies = [place, *(each for each in topology.named(place.name) if each != place)]
    problem: ClientError | None = None
    for each in copies:
        try:
            found = await _record_at(question, each, position)
        except (ConnectionFailed, NoAnswer) as error:
            problem = problem or error
            continue
        if found is None:
            raise NotFound(each.address, ResponseCode.QUERY_NOT_FOUND, f"no message {message_id}")
        return each, found
    assert problem is not None, "there is at least one copy"
    raise problem


async def _record_at(question: Question, place: Place, position: int) -> Stored | None:
    """Returns the message at a position of a broker's log; None: there is none. ClientError."""
    try:
        answer = await question.ask(place, RequestCode.VIEW_MESSAGE_BY_ID, {"offset": str(position)})
    except Refused as error:
        if error.code == ResponseCode.SYSTEM_ERROR and "can not find message" in (error.remark or ""):
            return None
        raise
    messages = decode_stored(answer.body, place.name, Stored)
    return messages[0] if len(messages) == 1 else None


async def _found_elsewhere(
    question: Question, topology: Topology, message_id: str, position: int
) -> tuple[Place, Stored]:
    """Returns a message whose id has the address of no registered broker. An id has the address that the store had when
    it wrote the message: clients may reach the broker at another one, it may have moved, or that member of the group
    may be gone. Each log is asked for its record at the position, which must have this id. ClientError."""
    found = await question.each(topology.readers(), lambda place: _record_at(question, place, position))
    for place, message in found.items():
        if message is not None and message.message_id == message_id.upper():
            return place, message
    question.need_some(found)
    reason = f"no broker that is registered has the address of message {message_id}, or has the message itself"
    raise NotFound("name server", ResponseCode.QUERY_NOT_FOUND, reason)


async def _master_of(question: Question, place: Place) -> Place:
    """The master with the same name; without one, the given process."""
    if place.id == 0:
        return place
    return next((each for each in (await question.topology()).named(place.name) if each.id == 0), place)


async def _place_at(topology: Topology, host: Host) -> Place | None:
    """The broker with this address. Ids have IP addresses, and brokers may register with names."""
    if (place := topology.at(str(host))) is not None:
        return place
    loop = asyncio.get_running_loop()
    for each in topology.places:
        name, port = host_and_port(each.address) or ("", 0)
        if port != host.port:
            continue
        try:
            infos = await loop.getaddrinfo(name, port, type=socket.SOCK_STREAM)
        except OSError:
            continue
        if any(info[4][0] == host.ip for info in infos):
            return each
    return None
