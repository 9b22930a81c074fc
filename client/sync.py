"""The synchronous twin of the client, for programs without an event loop.

    with Client("127.0.0.1:9876") as client, client.producer("writers") as producer:
        producer.send("Orders", b"hello")

It runs an event loop in the calling thread, and only during calls: there is no thread in the background. Between calls
no heartbeat is sent and nothing is pulled. A producer does not need that. A consumer that makes no call for two minutes
loses its queues to other members of its group, and messages that it has then are delivered again: call `Client.wait`
during long work, or use the asynchronous client. A client is used in one thread.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Iterator, Sequence
from contextlib import contextmanager
from types import TracebackType
from typing import Any, Self, TypeVar, Unpack

from tallystick.client.client import Client as AsyncClient
from tallystick.client.consuming.consumer import Consumer as AsyncConsumer
from tallystick.client.consuming.consumer import ConsumerOptions
from tallystick.client.consuming.delivery import Delivery
from tallystick.client.core.errors import ClosedError
from tallystick.client.core.message import Message, Stored
from tallystick.client.core.result import SendResult
from tallystick.client.producing.producer import Producer as AsyncProducer
from tallystick.client.producing.producer import ProducerOptions, Reply

T = TypeVar("T")


class Client:
    """See `tallystick.client.Client`; the arguments are the same."""

    def __init__(self, nameservers: str, **options: Any) -> None:
        self._client = AsyncClient(nameservers, **options)
        self._runner: asyncio.Runner | None = None

    def __enter__(self) -> Self:
        self._runner = asyncio.Runner()
        self.run(self._client.__aenter__())
        return self

    def __exit__(self, kind: type[BaseException] | None, error: object, trace: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        """Closes producers, consumers and connections. It can be called again."""
        runner = self._runner
        if runner is not None:
            try:
                self.run(self._client.close())
            finally:
                self._runner = None
                runner.close()

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Runs a method of an asynchronous object of this client to its end. ClosedError: the client is not open."""
        if self._runner is None:
            work.close()
            raise ClosedError("the client is not open: use it as a context manager")
        return self._runner.run(work)

    def wait(self, seconds: float) -> None:
        """Does background work for so long: heartbeats, pulls, commits."""
        self.run(asyncio.sleep(seconds))

    def producer(self, group: str, **options: Unpack[ProducerOptions]) -> Producer:
        """Returns a producer of a group."""
        return Producer(self, self._client.producer(group, **options))

    def consumer(self, group: str, topic: str, **options: Unpack[ConsumerOptions]) -> Consumer:
        """Returns a consumer of a topic, which is a member of a group."""
        return Consumer(self, self._client.consumer(group, topic, **options))


class Producer:
    """See `tallystick.client.Producer`."""

    def __init__(self, client: Client, producer: AsyncProducer) -> None:
        self._client = client
        self._producer = producer

    def __enter__(self) -> Self:
        self._client.run(self._producer.__aenter__())
        return self

    def __exit__(self, kind: type[BaseException] | None, error: object, trace: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        """Takes the producer back."""
        self._client.run(self._producer.close())

    def send(self, message: Message | str, body: Any = None, **fields: Any) -> SendResult:
        """Sends a message and returns when a broker stored it."""
        return self._client.run(self._producer.send(message, body, **fields))

    def send_batch(self, messages: Sequence[Message], **options: Any) -> list[SendResult]:
        """Sends messages of one topic to one queue, in as few requests as possible."""
        return self._client.run(self._producer.send_batch(messages, **options))

    def request(self, message: Message | str, body: Any = None, **fields: Any) -> Reply:
        """Sends a message and waits for the reply of a consumer."""
        return self._client.run(self._producer.request(message, body, **fields))

    def reply(self, request: Stored, body: Any) -> SendResult:
        """Answers a message that was sent with `request`."""
        return self._client.run(self._producer.reply(request, body))


class Consumer:
    """See `tallystick.client.Consumer`. An iterator of messages, which are settled by methods of the consumer."""

    def __init__(self, client: Client, consumer: AsyncConsumer) -> None:
        self._client = client
        self._consumer = consumer

    def __enter__(self) -> Self:
        self._client.run(self._consumer.start())
        return self

    def __exit__(self, kind: type[BaseException] | None, error: object, trace: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        """Commits, and leaves the group."""
        self._client.run(self._consumer.close())

    def __iter__(self) -> Iterator[Delivery]:
        return self

    def __next__(self) -> Delivery:
        return self._client.run(self._consumer.__anext__())

    def receive(self, timeout: float) -> Delivery | None:
        """Returns the next message, or None if no message arrives within `timeout` seconds."""
        try:
            return self._client.run(asyncio.wait_for(self._consumer.__anext__(), timeout))
        except TimeoutError:
            return None

    @contextmanager
    def process(self, message: Delivery, *, reraise: bool = False) -> Iterator[None]:
        """A context manager: see `Delivery.process`."""
        processing = message.process(reraise=reraise)
        self._client.run(processing.__aenter__())
        try:
            yield
        except BaseException as error:
            if not self._client.run(processing.__aexit__(type(error), error, error.__traceback__)):
                raise
        else:
            self._client.run(processing.__aexit__(None, None, None))

    def ack(self, message: Delivery) -> None:
        """The message is consumed."""
        self._client.run(message.ack())

    def retry(self, message: Delivery, delay_level: int = 0) -> None:
        """Delivers the message later again."""
        self._client.run(message.retry(delay_level))

    def dead_letter(self, message: Delivery) -> None:
        """Stores the message in the group's topic of dead letters."""
        self._client.run(message.dead_letter())

    def commit(self) -> None:
        """Commits the offsets of what is settled."""
        self._client.run(self._consumer.commit())
