"""The frame source of a broker's connections: the kernel splits the chunks and stores the plain sends among the frames.

Only the other frames are returned, except for pulls that can take the fast path (`pull_quick`). The store writes the
answers to the sends to the connection when they are as durable as its settings require. The broker decides which topics
take this path (`hot_queues`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tallystick.node.broker.processors.sending import FORBIDDEN_TOPICS
from tallystick.node.remoting.errors import FrameError
from tallystick.node.remoting.frames import Frame

if TYPE_CHECKING:
    from tallystick.node.broker.processors.pull_quick import QuickPulls
    from tallystick.node.broker.tables.topics import TopicConfig
    from tallystick.node.remoting.connection import Connection
    from tallystick.store._kernel import Meter
    from tallystick.store.engine.message_store import MessageStore


class FeedingSource:
    """The bytes of one connection on their way to the store."""

    def __init__(self, store: MessageStore, connection: Connection, quick: QuickPulls | None) -> None:
        self._store = store
        self._connection = connection
        self._quick = quick
        self._feed = store.connections.feed
        self._attached = store.connections.attach(connection.remote, connection.write)

    def feed(self, data: bytes) -> list[Frame]:
        """The frames that the store does not serve itself. FrameError: the rest of the stream is lost."""
        cold, fault = self._feed(self._attached, data)
        if cold is None and fault is None:
            return []
        frames: list[Frame] = []
        if cold:
            quick, connection = self._quick, self._connection
            for kind, header, body in cold:
                # A signature also covers the body, and a pull has none. After a frame that takes the normal path, all
                # others take it too: requests are served in their order.
                if kind == 0 and quick is not None and not body and not frames and connection.at_ease:
                    if quick.answer(connection, header):
                        continue
                    quick.learn(connection, header)
                frames.append(Frame(kind, header, body))
        if fault is not None:
            raise FrameError(fault, frames)
        return frames

    def grant(self, topic: str, access_key: str, secret: str, meter: Meter | None) -> None:
        """The kernel may store plain sends of this account to this topic that the account's meter admits."""
        self._store.connections.grant(self._attached, topic, access_key, secret, meter)

    def set_meter(self, meter: Meter | None) -> None:
        """The kernel may store plain sends that the client's meter admits; None: all."""
        self._store.connections.set_meter(self._attached, meter)

    def trust(self) -> None:
        """The kernel may store all plain sends."""
        self._store.connections.trust(self._attached)

    @property
    def unfinished_bytes(self) -> int:
        """Number of bytes that the kernel keeps of an incomplete frame."""
        return self._store.connections.unfinished(self._attached)

    def close(self) -> None:
        """The connection is closed: pending answers of the store are dropped."""
        self._store.connections.detach(self._attached)


def hot_queues(topic: TopicConfig | None, open_queues: int) -> int:
    """Returns how many queues of a topic the kernel may store plain sends in; 0: none.

    `open_queues`: as `TopicTable.open_queues` says. The kernel acknowledges without asking whether the row is durable.
    """
    if topic is None or not topic.writable or topic.topic_name.startswith("%") or topic.topic_name in FORBIDDEN_TOPICS:
        return 0
    if topic.topic_filter_type != "SINGLE_TAG":
        return 0  # a multi-tag topic's messages get a flag
    return min(open_queues, max(topic.read_queue_nums, topic.write_queue_nums))
