"""What was sent, what was acknowledged, and whether a broker still has it.

Every body begins with its own id, so that whatever comes back tells what it is. The rules:

- An acknowledged message is at exactly its place (topic, queue, offset, position in the log) with exactly its body.
- A queue has no gap, and holds nothing that was not sent. What was not acknowledged may be there or not.
- What was readable once stays where it was: a later reading of a queue continues an earlier one.
- A topic or group exists that an acknowledged send made; `rows` has their topics.
- An acknowledged delayed message comes, an acknowledged commit comes, a message whose rollback was acknowledged never
  does. Each may come twice after a kill: the broker delivers at least once.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, replace

from tallystick.store.formats.record import Record, body_crc

SCHEDULE_TOPIC = "SCHEDULE_TOPIC_XXXX"
HALF_TOPIC = "RMQ_SYS_TRANS_HALF_TOPIC"

_MAX_LISTED = 12


@dataclass(frozen=True, slots=True)
class Sent:
    """One message as it was sent; `topic` is the one that its consumers read."""

    digest: bytes
    crc: int
    topic: str
    unique_key: str


@dataclass(frozen=True, slots=True)
class Place:
    """Where a broker says that a message is. `pos`: bytes into the log."""

    topic: str
    queue_id: int
    queue_offset: int
    pos: int


ANYWHERE = -1
"""The position of a message that was copied into another log."""


def digest(body: bytes) -> bytes:
    """What is remembered of a body."""
    return hashlib.blake2b(body, digest_size=16).digest()


def body_id(body: bytes) -> str:
    """Returns the id at the begin of a body. The body of another program gives an arbitrary text."""
    return body[:64].split(b"|", 1)[0].decode(errors="replace")


class Problems:
    """What is wrong, of which only the first ones are kept."""

    def __init__(self) -> None:
        self.count = 0
        self.texts: list[str] = []

    def add(self, text: str) -> None:
        self.count += 1
        if self.count <= _MAX_LISTED:
            self.texts.append(text)

    def lines(self) -> list[str]:
        more = [f"... and {self.count - len(self.texts)} more"] if self.count > len(self.texts) else []
        return self.texts + more


class Ledger:
    """The memory of one store's life, over all its kills."""

    def __init__(self) -> None:
        self.sent: dict[str, Sent] = {}
        self.places: dict[str, Place] = {}  # of acknowledged messages, by body id
        self.delayed: set[str] = set()  # acknowledged ones
        self.committed: set[str] = set()  # whose commit was acknowledged
        self.rolled_back: set[str] = set()
        self.rows: set[str] = set()
        self.destinations: set[tuple[str, int]] = set()  # queues that delayed and committed messages come to
        self.kinds: Counter[str] = Counter()
        self.refused: Counter[str] = Counter()
        self._history: dict[tuple[str, int], list[str]] = {}  # body ids by queue, as last read
        self._first: dict[tuple[str, int], int] = {}

    def send(self, name: str, body: bytes, topic: str, unique_key: str) -> None:
        """Before it is sent: from now on a broker may have it."""
        self.sent[name] = Sent(digest(body), body_crc(body), topic, unique_key)

    def acknowledge(self, name: str, place: Place, kind: str) -> None:
        """The broker said that it has it, and where."""
        self.places[name] = place
        self.kinds[kind] += 1

    def forget_positions(self) -> None:
        """The messages were copied into another log: topics, queues and offsets stay, and positions do not."""
        self.places = {name: replace(place, pos=ANYWHERE) for name, place in self.places.items()}

    def queues(self) -> list[tuple[str, int]]:
        """All queues in which something acknowledged is."""
        return sorted({(place.topic, place.queue_id) for place in self.places.values()})

    def queues_since(self, count: int) -> list[tuple[str, int]]:
        """Queues of what was acknowledged after the first `count` messages."""
        return sorted({(place.topic, place.queue_id) for place in list(self.places.values())[count:]})

    def check_rows(self, topics: set[str], problems: Problems) -> None:
        """The topics that a broker has: none is missing."""
        for topic in sorted(self.rows - topics):
            problems.add(f"topic {topic}: a message to it was acknowledged, its row is LOST")

    def check_queue(self, topic: str, queue_id: int, first: int, records: Iterable[Record], problems: Problems) -> None:
        """A whole queue as it was read from `first`, its lowest offset, to its end."""
        at = f"{topic} queue {queue_id}"
        names = []
        for offset, record in enumerate(records, first):
            name = body_id(record.body)
            names.append(name)
            where = f"{at} offset {offset}"
            if record.queue_offset != offset or record.topic != topic or record.queue_id != queue_id:
                problems.add(f"{where}: a record of {record.topic} {record.queue_id} {record.queue_offset} is there")
            sent = self.sent.get(name)
            if sent is None or sent.digest != digest(record.body):
                problems.add(f"{where}: holds a body that was never sent: {record.body[:40]!r}")
            elif topic not in (SCHEDULE_TOPIC, HALF_TOPIC) and sent.topic != topic:
                problems.add(f"{where}: holds a message for {sent.topic}")
            place = self.places.get(name)
            stored = Place(topic, queue_id, offset, ANYWHERE if place and place.pos == ANYWHERE else record.pos)
            # Delivered and committed messages are stored again under their own topic, a half message that was asked
            # about under the same: what counts for those is that the first one stays (check_places).
            if place is not None and place.topic == topic != HALF_TOPIC and stored != place:
                problems.add(f"{name}: acknowledged at {place}, found at {stored}")
        before, begin = self._history.get((topic, queue_id), []), self._first.get((topic, queue_id), first)
        if first != begin or names[: len(before)] != before:
            same = next((i for i, (a, b) in enumerate(zip(before, names, strict=False)) if a != b), len(names))
            problems.add(f"{at}: had {len(before)} messages from {begin}, and now differs at {first + same}")
        self._history[topic, queue_id], self._first[topic, queue_id] = names, first

    def check_places(self, problems: Problems) -> None:
        """After all queues were read: nothing acknowledged is missing."""
        for name, place in self.places.items():
            names, first = self._history.get((place.topic, place.queue_id), []), place.queue_offset
            index = first - self._first.get((place.topic, place.queue_id), 0)
            if not 0 <= index < len(names) or names[index] != name:
                problems.add(f"{name}: acknowledged at {place}, LOST")

    def missing_deliveries(self) -> set[str]:
        """Delayed and committed messages that were due and have not come yet, by the last reading."""
        return (self.delayed | self.committed) - self._delivered().keys()

    def check_deliveries(self, problems: Problems) -> int:
        """After everything was delivered: nothing came that must not. How many came more than once."""
        delivered = self._delivered()
        for name in sorted(self.rolled_back & delivered.keys()):
            problems.add(f"{name}: rolled back, but delivered")
        for name in sorted(self.missing_deliveries()):
            problems.add(f"{name}: never delivered")
        again = {name for name, count in delivered.items() if count > 1}
        for name in sorted(again - self.delayed - self.committed):
            if name in self.places and self.places[name].topic not in (SCHEDULE_TOPIC, HALF_TOPIC):
                problems.add(f"{name}: sent once, stored {delivered[name]} times")
        return len(again)

    def _delivered(self) -> Counter[str]:
        count: Counter[str] = Counter()
        for (topic, _), names in self._history.items():
            if topic not in (SCHEDULE_TOPIC, HALF_TOPIC):
                count.update(names)
        return count
