"""The connections whose bytes the kernel splits into frames, and whose plain sends it stores itself."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from tallystick.store.clock import wall_ms

if TYPE_CHECKING:
    from tallystick.store._kernel import Log, Meter
    from tallystick.store.formats.message import Host

Answers = list[tuple[int, bytes]]


class Connections:
    """Owns which connection gets which answer of the log. `on_staged` is called when a send was staged."""

    def __init__(self, log: Log) -> None:
        self.on_staged: Callable[[], None] = lambda: None
        self._log = log
        self._writers: dict[int, Callable[[bytes], None]] = {}

    def set_topic(self, topic: str, queues: int) -> None:
        """Lets `feed` store plain sends to queues [0, queues) of this topic; 0 for no queue."""
        self._log.set_topic(topic.encode(), queues)

    def attach(self, born_host: Host, write: Callable[[bytes], None]) -> int:
        """Adds a connection whose bytes go to `feed`. `write` gets the answers that the log creates itself."""
        connection = self._log.connect(born_host.encode())
        self._writers[connection] = write
        return connection

    def detach(self, connection: int) -> None:
        """The connection is closed: drops answers that still wait for the disk."""
        self._log.disconnect(connection)
        self._writers.pop(connection, None)

    def check_access(self) -> None:
        """From now on `feed` stores only sends that were granted to their connection."""
        self._log.check_access()

    def grant(self, connection: int, topic: str, access_key: str, secret: str, meter: Meter | None) -> None:
        """`feed` stores plain sends of this account to this topic, if their signatures are right and the account's
        meter admits them."""
        self._log.grant(connection, topic.encode(), access_key.encode(), secret.encode(), meter)

    def set_meter(self, connection: int, meter: Meter | None) -> None:
        """`feed` stores plain sends of this connection if its meter admits them. None: always."""
        self._log.set_meter(connection, meter)

    def trust(self, connection: int) -> None:
        """`feed` stores all plain sends of this connection, with or without signature."""
        self._log.trust(connection)

    def revoke(self) -> None:
        """Forgets all grants."""
        self._log.revoke()

    def feed(self, connection: int, chunk: bytes) -> tuple[list[tuple[int, bytes, bytes]] | None, str | None]:
        """Stores the plain sends among the frames of a chunk. Returns the other frames, and why the stream is invalid,
        if it is."""
        served, cold, fault = self._log.feed(connection, chunk, wall_ms())
        if served:
            self.on_staged()
        return cold, fault

    def unfinished(self, connection: int) -> int:
        """Number of bytes that are kept of this connection's incomplete frame."""
        return self._log.unfinished(connection)

    def deliver(self, answers: Answers) -> None:
        """Writes answers of the kernel's log to their connections; skips closed ones. A replicated log that drops
        staged records also uses it."""
        for connection, data in answers:
            write = self._writers.get(connection)
            if write is not None:
                write(data)
