"""The client with servers that fail: what it repeats, and what it says."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest

from tallystick.client import (
    AccessDenied,
    Busy,
    Client,
    ConnectionFailed,
    Event,
    Message,
    NoAnswer,
    NotStored,
    NotSupported,
    ProtocolError,
    Refused,
    SendStatus,
    Timeout,
    Unknown,
)
from tallystick.client.testing import Broker
from tallystick.client.wire.codes import RequestCode, ResponseCode
from tallystick.client.wire.command import Command
from tallystick.node.remoting.connection import Connection
from tallystick.node.remoting.server import RemotingServer

PATIENCE_S = 60.0
Answer = Callable[[Connection, Command], Any]
"""What a broker does with a send: returns an answer or None."""


def stored(connection: Connection, request: Command) -> Command:
    ext = request.ext or {}
    return request.reply(ext={"msgId": "ID", "queueId": ext["e"], "queueOffset": "5"})


def refuse(code: int, remark: str = "no") -> Answer:
    return lambda connection, request: request.reply(code, remark=remark)


def silence(connection: Connection, request: Command) -> None:
    return None


def lose(connection: Connection, request: Command) -> None:
    connection.abort()


class Brokers:
    """A name server and brokers whose answers to sends are given: the last one of a list is repeated."""

    def __init__(self, *answers: list[Answer]) -> None:
        self._answers = answers
        self.requests: list[tuple[int, Command]] = []
        self._servers: list[RemotingServer] = []
        self._addresses: list[str] = []
        self.nameserver = ""

    async def start(self) -> None:
        for number, _ in enumerate(self._answers):
            routes: dict[int, Answer] = {
                RequestCode.SEND_MESSAGE_V2: self._send(number),
                RequestCode.SEND_BATCH_MESSAGE: self._send(number),
            }
            server = RemotingServer(routes)
            self._addresses.append(f"127.0.0.1:{await server.start('127.0.0.1', 0)}")
            self._servers.append(server)
        server = RemotingServer({int(RequestCode.GET_ROUTEINFO_BY_TOPIC): self._route})
        self.nameserver = f"127.0.0.1:{await server.start('127.0.0.1', 0)}"
        self._servers.append(server)

    async def stop(self) -> None:
        for server in self._servers:
            await server.stop(0.1)

    def _send(self, number: int) -> Answer:
        def serve(connection: Connection, request: Command) -> Any:
            self.requests.append((number, request))
            answers = self._answers[number]
            return (answers.pop(0) if len(answers) > 1 else answers[0])(connection, request)

        return serve

    def _route(self, _: Connection, request: Command) -> Command:
        from tallystick.client.wire import fastjson

        body = {
            "brokerDatas": [
                {"brokerAddrs": {0: address}, "brokerName": f"b{number}", "cluster": "C"}
                for number, address in enumerate(self._addresses)
            ],
            "queueDatas": [
                {"brokerName": f"b{number}", "perm": 6, "readQueueNums": 2, "writeQueueNums": 2, "topicSynFlag": 0}
                for number in range(len(self._addresses))
            ],
        }
        return request.reply(body=fastjson.dumps(body))


@asynccontextmanager
async def brokers(*answers: list[Answer], **options: Any) -> AsyncIterator[tuple[Brokers, Client]]:
    made = Brokers(*answers)
    await made.start()
    try:
        async with Client(made.nameserver, **({"timeout": PATIENCE_S} | options)) as client:
            yield made, client
    finally:
        await made.stop()


async def test_a_lost_answer_is_repeated_and_reported_as_perhaps_twice() -> None:
    async with brokers([lose, stored]) as (made, client):
        result = await client.producer("g").send("T", b"x", unique_key="KEY")
        assert result.maybe_twice and result.unique_key == "KEY" and result.offset == 5
        texts = [(request.ext or {})["i"] for _, request in made.requests]
        assert len(texts) == 2 and texts[0] == texts[1], "the unique key stays"


async def test_a_message_without_any_answer_is_unknown() -> None:
    async with brokers([lose]) as (_, client):
        with pytest.raises(Unknown) as caught:
            await client.producer("g", timeout=0.3).send("T", b"x", unique_key="KEY")
        assert caught.value.unique_key == "KEY"
        assert isinstance(caught.value.__cause__, NoAnswer | ConnectionFailed)


async def test_silence_is_unknown_after_the_time() -> None:
    async with brokers([silence], timeout=0.1) as (made, client):
        with pytest.raises(Unknown):
            await client.producer("g", timeout=0.3).send("T", b"x")
        assert len(made.requests) >= 2


async def test_a_refusal_by_a_busy_broker_is_not_unknown() -> None:
    async with brokers([refuse(2, "[TIMEOUT_CLEAN_QUEUE]broker busy")]) as (made, client):
        with pytest.raises(NotStored) as caught:
            await client.producer("g", timeout=0.3).send("T", b"x")
        assert caught.value.code == 2 and isinstance(caught.value.__cause__, Busy)
        assert len(made.requests) > 2, "it is repeated while there is time"


async def test_an_uncertain_attempt_is_not_forgotten_after_a_refusal() -> None:
    """The first request may have stored the message, whatever the second one says."""
    async with brokers([lose, refuse(13)]) as (_, client):
        with pytest.raises(Unknown):
            await client.producer("g").send("T", b"x")


async def test_a_final_refusal_is_not_repeated() -> None:
    async with brokers([refuse(13, "the message is illegal")]) as (made, client):
        with pytest.raises(Refused) as caught:
            await client.producer("g").send("T", b"x")
        assert (caught.value.code, caught.value.remark, len(made.requests)) == (13, "the message is illegal", 1)


async def test_access_control_is_not_asked_twice() -> None:
    async with brokers([refuse(1, "org.apache.rocketmq.acl.common.AclException: no")]) as (made, client):
        with pytest.raises(AccessDenied):
            await client.producer("g").send("T", b"x")
        assert len(made.requests) == 1


async def test_a_system_error_is_unknown_after_some_attempts() -> None:
    async with brokers([refuse(1, "create mapped file failed")]) as (made, client):
        with pytest.raises(Unknown):
            await client.producer("g").send("T", b"x")
        assert len(made.requests) == 3


@pytest.mark.parametrize("answer", [lose, refuse(2), refuse(14), refuse(16), refuse(17), refuse(1)])
async def test_another_broker_takes_the_message(answer: Answer) -> None:
    async with brokers([answer], [stored]) as (made, client):
        producer = client.producer("g")
        results = [await producer.send("T", b"x") for _ in range(4)]
        assert {result.queue.broker for result in results} == {"b1"}
        assert sum(number == 0 for number, _ in made.requests) == 1, "a broker that failed is avoided for a while"


async def test_messages_with_an_order_key_stay_with_their_broker() -> None:
    async with brokers([refuse(2), stored], [refuse(2), stored]) as (made, client):
        await client.producer("g").send("T", b"x", order_key="k")
        first, second = made.requests
        assert (first[0], (first[1].ext or {})["e"]) == (second[0], (second[1].ext or {})["e"])


async def test_a_repetition_is_not_overtaken() -> None:
    """The first request is refused once; the second message of its key must wait for the repetition."""
    async with brokers([refuse(2), stored]) as (made, client):
        producer = client.producer("g")
        await producer.prepare("T")
        futures = [producer.send_nowait("T", b"%d" % number, order_key="k") for number in range(5)]
        await asyncio.gather(*futures)
        assert [request.body for _, request in made.requests] == [b"0", b"0", b"1", b"2", b"3", b"4"]


@pytest.mark.parametrize(
    ("code", "status"), [(10, SendStatus.NOT_SYNCED), (11, SendStatus.NOT_COPIED), (12, SendStatus.NOT_COPIED)]
)
async def test_a_message_that_is_stored_less_safely_is_not_sent_again(code: int, status: SendStatus) -> None:
    def answer(connection: Connection, request: Command) -> Command:
        reply = stored(connection, request)
        reply.code = code
        return reply

    async with brokers([answer]) as (made, client):
        result = await client.producer("g").send("T", b"x")
        assert result.status is status and len(made.requests) == 1


async def test_coalesced_messages_of_one_request_have_one_fate() -> None:
    async with brokers([stored, refuse(13)]) as (made, client):
        producer = client.producer("g", coalesce=True)
        await producer.send("T", b"first")
        futures = [producer.send_nowait(Message("T", b"%d" % number, queue=0)) for number in range(5)]
        found = await asyncio.gather(*futures, return_exceptions=True)
        assert [type(each) for each in found] == [Refused] * 5
        assert [request.code for _, request in made.requests] == [310, 320]


async def test_a_broker_asks_for_a_new_connection() -> None:
    connections: set[str] = set()

    def go_away(connection: Connection, request: Command) -> Command:
        connections.add(connection.id)
        return request.reply(1500) if len(connections) == 1 else stored(connection, request)

    async with brokers([go_away]) as (_, client):
        assert not (await client.producer("g").send("T", b"x")).maybe_twice
    assert len(connections) == 2


async def test_a_server_of_another_protocol_is_named() -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(1)
        writer.write(b"HTTP/1.1 400 Bad Request\r\n\r\n")
        await reader.read()
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    events: list[Event] = []
    async with Client(f"127.0.0.1:{port}", timeout=0.5, on_event=events.append) as client:
        with pytest.raises(NoAnswer, match="is no server of RocketMQ"):
            await client.ask(f"127.0.0.1:{port}", 106)
        with pytest.raises(NoAnswer, match="is no server of RocketMQ"):
            await client.route("T")
    server.close()


async def test_a_call_that_is_cancelled_leaves_the_connection_usable() -> None:
    async with brokers([silence, stored]) as (_, client):
        producer = client.producer("g")
        waiting = asyncio.create_task(producer.send("T", b"x"))
        while not _.requests:  # noqa: ASYNC110
            await asyncio.sleep(0)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        assert (await producer.send("T", b"y")).offset == 5


async def test_a_request_that_fits_into_no_frame_is_an_error_of_the_caller() -> None:
    async with brokers([stored]) as (made, client):
        with pytest.raises(ProtocolError, match="frame"):
            await client.ask(made.nameserver, 105, {}, bytes(17 << 20))


async def test_attempts_to_connect_have_pauses() -> None:
    events: list[Event] = []
    async with Client("127.0.0.1:1", on_event=events.append) as client:
        for _ in range(4):
            with pytest.raises(ConnectionFailed):
                await client.ask("127.0.0.1:1", 105)
    pauses = [float(event.detail.split()[-2]) for event in events if event.kind == "connect-failed"]
    assert len(pauses) == 4 and pauses[3] > pauses[0] and max(pauses) <= 0.05 * 2**3


async def test_silence_ends_with_a_timeout_that_names_the_server() -> None:
    async with brokers([silence]) as (made, client):
        with pytest.raises(Timeout, match=r"no answer to request 310 within 0") as caught:
            await client.ask(made._addresses[0], 310, {}, timeout=0.05)
        assert isinstance(caught.value, TimeoutError) and caught.value.address == made._addresses[0]


async def test_errors_of_an_event_function_change_nothing() -> None:
    def broken(event: Event) -> None:
        raise RuntimeError("the application's bug")

    async with brokers([stored], on_event=broken) as (_, client):
        assert (await client.producer("g").send("T", b"x")).offset == 5


async def test_a_server_that_is_not_a_name_server_is_passed_over() -> None:
    async with Broker() as broker:
        async with Client(f"{broker.address};{broker.nameserver}") as client:
            for _ in range(4):  # whichever was asked first
                assert (await client.ask_nameserver(RequestCode.GET_BROKER_CLUSTER_INFO)).body
        async with Client(broker.address) as client:
            with pytest.raises(NotSupported):
                await client.ask_nameserver(RequestCode.GET_BROKER_CLUSTER_INFO)


async def test_any_answer_of_a_server_is_returned_by_call() -> None:
    async with Broker() as broker, Client(broker.nameserver) as client:
        answer = await client.call(broker.address, RequestCode.GET_TOPIC_STATS_INFO, {"topic": "Missing"})
        assert answer.code == ResponseCode.TOPIC_NOT_EXIST
        with pytest.raises(ConnectionFailed):
            await client.call("127.0.0.1:1", RequestCode.GET_TOPIC_STATS_INFO)
