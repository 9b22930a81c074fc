"""The load of one turn with the official Python client of RocketMQ 5 (rocketmq-python-client): see bench.py.

It runs in a separate environment, without tallystick.
"""

from __future__ import annotations

import os
import sys
import threading
from concurrent.futures import Future
from typing import Any

from rocketmq import (
    ClientConfiguration,
    ConsumeResult,
    Credentials,
    FilterExpression,
    Message,
    MessageListener,
    Producer,
    PushConsumer,
)
from turn import Arguments, Counter


def send(given: Arguments, counter: Counter) -> None:
    """Messages one by one with `send_async`, so many at the same time."""
    producer = Producer(ClientConfiguration(given.server, Credentials()), (given.topic,))
    producer.startup()
    room = threading.Semaphore(given.outstanding)
    body = given.body

    def done(future: Future[Any]) -> None:
        future.result()
        counter.add(1)
        room.release()

    while counter.goes_on:
        room.acquire()
        message = Message()
        message.topic = given.topic
        message.body = body
        producer.send_async(message).add_done_callback(done)
    counter.report()


def consume(given: Arguments, counter: Counter) -> None:
    """A push consumer, whose listener gets one message at a time in one of its threads."""
    ended = threading.Event()
    lock = threading.Lock()

    class Listener(MessageListener):  # type: ignore[misc]
        def consume(self, message: Any) -> Any:
            assert len(message.body) == given.size
            with lock:
                counter.add(1)
            if not counter.goes_on:
                ended.set()
            return ConsumeResult.SUCCESS

    configuration = ClientConfiguration(given.server, Credentials())
    consumer = PushConsumer(configuration, given.group, Listener(), {given.topic: FilterExpression()})
    consumer.startup()
    ended.wait()
    counter.report()


if __name__ == "__main__":
    given = Arguments.parse(sys.argv[1:])
    {"send": send, "consume": consume}[given.mode](given, Counter(given))
    os._exit(0)  # its shutdown waits for long polls
