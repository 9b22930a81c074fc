"""What was promised to clients, and whether a broker keeps it.

A message is *acknowledged* when its producer got a yes, with its queue and offset. From then on

    A1  it is read at that offset, with its body and its properties
    A2  it is in its queue once
    A3  a message sent after its acknowledgement, to the same queue, has a greater offset
    A4  the offsets of a queue are dense: each from the first kept to the last is read
    A5  only messages that were sent are read
    A6  a message that was refused, or half of an uncommitted transaction, is not read
    A8  what damage made unreadable was reported
    A11 a timer is not there before its time
    A12 a timer that was recalled is not there
    A9  a delayed message, or one of a committed transaction, is there in time
    A10 it is found by its key

after any restart, as far as the mode of flushing promises: what only the system's memory had is lost with the power,
but always the end of the log (A7: of two acknowledged messages, the one that lies earlier is not lost alone).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import Enum

from simulation.clients import Outgoing
from simulation.tables import Offsets
from simulation.violation import ViolationError
from tallystick.store.formats import properties
from tallystick.store.formats.record import Record

Queue = tuple[str, str, int]
"""Broker name, topic, queue id."""

LATE_S = 20.0
"""A delayed message may be so late while nothing is wrong, and after a fault ends."""


class Fate(Enum):
    """What a producer knows of its message."""

    PENDING = "pending"
    ACKNOWLEDGED = "acknowledged"
    UNKNOWN = "unknown"
    REFUSED = "refused"
    DAMAGED = "its record was hit by damage: it may be unreadable"
    LOST = "it may be lost, and its offset given out again"


@dataclass(slots=True)
class Sent:
    """One message and its fate."""

    message: Outgoing
    queue: Queue
    after: int
    """The greatest offset that was acknowledged in its queue before it was sent; -1: none."""
    fate: Fate = Fate.PENDING
    offset: int = -1
    pos: int = -1
    """Where its record begins in the log."""
    acknowledged_at: float = 0.0
    anywhere: bool = False
    """It gets its offset later (delayed, or in a transaction): it has to be there, at any offset."""
    copy_at: int = -1
    """The offset that such a message got; known only if damage hit it there."""
    repeats: bool = False
    """It may be there more than once: delayed messages are, after a crash."""
    excused: bool = False
    """Power went while it was in progress, and nothing but memory had it, or damage hit its record: a yes that was on
    its way says little."""
    hidden: bool = False
    """Half of an uncommitted transaction."""
    due: float = 0.0
    """When it has to be there."""
    handle: str = ""
    """With which a timer can be recalled."""
    recalled: bool = False
    """Its producer was told that it is never delivered."""

    @property
    def may_be_unreadable_at(self) -> int:
        """The offset at which damage or a loss of power may have left no record of it; -1: nowhere."""
        if self.fate not in (Fate.DAMAGED, Fate.LOST):
            return -1
        return self.copy_at if self.anywhere else self.offset


@dataclass
class Oracle:
    """Records what clients were told; `check_queue` compares what is read with it."""

    sent: dict[str, Sent] = field(default_factory=dict)
    by_queue: dict[Queue, dict[str, Sent]] = field(default_factory=lambda: defaultdict(dict))
    greatest: dict[Queue, int] = field(default_factory=dict)
    at: dict[tuple[Queue, int], Sent] = field(default_factory=dict)
    seen: set[str] = field(default_factory=set)
    """Keys that the last audit met."""
    damaged: set[str] = field(default_factory=set)
    """Brokers with damage in their log: a record of a message with an unknown result may be damaged as well."""
    torn: set[str] = field(default_factory=set)
    """Brokers whose power was lost: of unsynced writes a later one may have survived alone. The hole before it looks
    like damage, and may have been an unacknowledged message."""
    unread_at: str = ""
    unread: dict[str, int] = field(default_factory=dict)
    """By broker, how many records the last audit did not get because of damage."""
    acknowledged: int = 0
    offsets: Offsets = field(default_factory=Offsets)
    clocks_moved: bool = False
    """A wall clock was set."""
    settled_at: float = 0.0
    """When brokers were last seen to take messages after a fault: no delayed message could be delivered before."""

    def sending(self, broker: str, message: Outgoing) -> Sent:
        """A producer sends it now."""
        queue = broker, message.topic, message.queue_id
        sent = Sent(message, queue, self.greatest.get(queue, -1))
        self.sent[message.key] = self.by_queue[queue][message.key] = sent
        return sent

    def acknowledge(self, sent: Sent, offset: int, pos: int, now: float) -> None:
        """Its producer got a yes."""
        sent.fate, sent.offset, sent.pos, sent.acknowledged_at = Fate.ACKNOWLEDGED, offset, pos, now
        self.acknowledged += 1
        if sent.excused:
            sent.fate = Fate.LOST
            return
        if sent.anywhere:
            return
        if offset <= sent.after:
            raise ViolationError(
                "A3", f"{sent.message.key} got offset {offset}, sent after {sent.after} in {sent.queue}"
            )
        other = self.at.setdefault((sent.queue, offset), sent)
        if other is not sent and other.fate is Fate.ACKNOWLEDGED:
            raise ViolationError(
                "A2", f"offset {offset} of {sent.queue} was given to {other.message.key} and {sent.message.key}"
            )
        self.at[sent.queue, offset] = sent
        self.greatest[sent.queue] = max(offset, self.greatest.get(sent.queue, -1))

    def check_queue(
        self,
        queue: Queue,
        records: dict[int, Record],
        first: int,
        end: int,
        promised: list[Sent],
        cleaned: bool = False,
    ) -> None:
        """`records` by offset: all that was read of a queue whose offsets go from `first` to `end`.

        `promised`: what has to be among them. `cleaned`: old segments of the log were deleted, and with them what lay
        before the first record that is read.
        """
        sent = self.by_queue[queue]
        self.seen -= sent.keys()
        missing = [offset for offset in range(first, end) if offset not in records]
        if cleaned:
            missing = [offset for offset in missing if offset > min(records, default=end)]
        if missing:
            excused = {item.may_be_unreadable_at for item in sent.values()}
            # A late message's place is not known: its record may be the one that was hit.
            doubtful = (
                sum(item.fate is Fate.UNKNOWN or item.anywhere for item in sent.values())
                if queue[0] in self.damaged | self.torn
                else 0
            )
            self.unread[queue[0]] = self.unread.get(queue[0], 0) + len(missing)
            self.unread_at = f"{queue} at {missing}"
            missing = [offset for offset in missing if offset not in excused][doubtful:]
        if missing:
            raise ViolationError("A4", f"{queue} has no records at {missing[:10]} of {first}..{end}")
        places: dict[str, int] = {}
        hit = self._hit_bodies(queue[0])
        for offset, record in sorted(records.items()):
            if record.body in hit:
                continue
            key = properties.decode(record.properties).get(properties.UNIQ_KEY, "")
            if key in places and not (key in sent and sent[key].repeats):
                raise ViolationError("A2", f"{key} is at {places[key]} and {offset} of {queue}")
            places[key] = offset
            found = sent.get(key)
            if found is None:
                raise ViolationError("A5", f"{queue} has at {offset} a message that was not sent: {record!r}")
            if record.body != found.message.body:
                raise ViolationError("A1", f"{key} at {offset} of {queue} has another body")
            if not found.message.kept.items() <= properties.decode(record.properties).items():
                raise ViolationError("A1", f"{key} at {offset} of {queue} has other properties: {record.properties!r}")
            self.seen.add(key)
            if found.hidden:
                raise ViolationError("A6", f"{key} is an uncommitted half message, and is at {offset} of {queue}")
            if found.message.wait_ms:
                self._check_timer(found, record)
            if found.fate is Fate.REFUSED:
                raise ViolationError("A6", f"{key} was refused, and is at {offset} of {queue}")
        for item in promised:
            key = item.message.key
            if places.get(key) != item.offset and item.offset >= first:
                raise ViolationError(
                    "A1",
                    f"{key} was acknowledged at {item.acknowledged_at:.6f} at offset {item.offset} of {queue}; "
                    f"it is at {places.get(key)}, offsets go from {first} to {end}",
                )

    def _hit_bodies(self, broker: str) -> set[bytes]:
        """Bodies of records that damage hit. RocketMQ's checksum covers only the body: such a record may name another
        queue or other properties."""
        if broker not in self.damaged:
            return set()
        return {
            item.message.body
            for item in self.sent.values()
            if item.fate in (Fate.DAMAGED, Fate.LOST) and item.queue[0] == broker
        }

    def _check_timer(self, found: Sent, record: Record) -> None:
        """A timer that was delivered. Where damage or a power loss hit the log, its recall may be gone."""
        names = properties.decode(record.properties)
        if record.store_timestamp_ms < int(names[properties.TIMER_DELIVER_MS]):
            raise ViolationError("A11", f"{found.message.key} was delivered before its time: {record!r}")
        if found.recalled and found.fate is Fate.ACKNOWLEDGED and found.queue[0] not in self.damaged:
            raise ViolationError("A12", f"{found.message.key} was recalled, and is at {record.queue_offset}")

    def promised(self, queue: Queue) -> list[Sent]:
        """What was acknowledged until now and has to be read."""
        return [item for item in self.by_queue[queue].values() if item.fate is Fate.ACKNOWLEDGED and not item.anywhere]

    def check_late(self, now: float, begins: dict[str, int]) -> None:
        """What got its offset later is there by now. `begins`: where each broker's log begins.

        The only record of a timer's delivery may be one that damage made unreadable.
        """
        unread = dict(self.unread)
        for key, item in self.sent.items():
            waits = item.message.delay_level or item.message.wait_ms
            at = max(item.due, self.settled_at + LATE_S) if waits else item.due
            if item.message.wait_ms and self.clocks_moved:
                continue  # it waits for a time of the wall clock
            due = item.fate is Fate.ACKNOWLEDGED and item.anywhere and at < now
            if due and key not in self.seen and item.pos >= begins[item.queue[0]]:
                if item.message.wait_ms and unread.get(item.queue[0], 0) > 0:
                    unread[item.queue[0]] -= 1
                    continue
                raise ViolationError("A9", f"{key} was due at {item.due:.3f} in {item.queue}, and is not there")

    def may_be_lost(self, items: Iterable[Sent]) -> None:
        """No acknowledgement covers these, and their offsets are free."""
        queues = set()
        for item in items:
            if item.fate in (Fate.ACKNOWLEDGED, Fate.DAMAGED):
                item.fate = Fate.LOST
                if not item.anywhere:
                    self.at.pop((item.queue, item.offset), None)
                queues.add(item.queue)
        for queue in queues:
            kept = [item.offset for item in self.promised(queue)]
            self.greatest[queue] = max(kept, default=-1)
            for item in self.by_queue[queue].values():
                if item.fate is Fate.PENDING:
                    item.after = -1

    def damage(self, broker: str, items: list[Sent]) -> None:
        """Bytes of these records changed. What lies at the log's end cannot be told from a write that was torn.

        Of the last record of a queue, nothing but its own bytes may say that its offset was given out.
        """
        self.damaged.add(broker)
        sound = [
            item.pos
            for item in self.sent.values()
            if item.queue[0] == broker and item.fate is Fate.ACKNOWLEDGED and item not in items
        ]
        end = max(sound, default=-1)
        last: dict[Queue, int] = {}
        for item in self.sent.values():
            if item.fate is Fate.ACKNOWLEDGED and not item.anywhere and item not in items:
                last[item.queue] = max(item.offset, last.get(item.queue, -1))
        self.may_be_lost([item for item in items if item.pos > end or item.offset > last.get(item.queue, -1)])
        for item in items:
            if item.fate is Fate.ACKNOWLEDGED:
                item.fate = Fate.DAMAGED

    def damage_copies(self, broker: str, records: list[Record]) -> None:
        """These records were hit, and were sound before.

        The broker may have stored a record and died, with the yes on its way. Damage at the end of the log takes it.

        A delayed message and one of a transaction are stored twice: first in a topic of the broker's, and later as the
        copy that consumers read. A producer is told the place of the first one alone. A plain store has one copy of
        each record, so damage in the second one takes the message, although nothing happened to the place that its
        producer knows. The broker cannot make it again: what it did with the first record is done, and on record.
        """
        for record in records:
            key = properties.decode(record.properties).get(properties.UNIQ_KEY, "")
            item = self.sent.get(key)
            if item is not None and item.fate is Fate.PENDING:
                item.excused = True
            if item is None or not item.anywhere or item.queue != (broker, record.topic, record.queue_id):
                continue
            item.copy_at = record.queue_offset
            if item.fate is Fate.ACKNOWLEDGED:
                item.fate = Fate.DAMAGED

    def hit_header(self, queue: Queue, record: Record, begin: int, end: int) -> bool:
        """Whether damage changed the header of a record that was read, so that it names another place.

        No checksum of RocketMQ's format covers headers and properties; one covers the body.
        """
        if begin <= record.queue_offset < end and (record.topic, record.queue_id) == queue[1:]:
            return False
        return any(
            item.message.body == record.body and item.fate in (Fate.DAMAGED, Fate.LOST)
            for item in self.by_queue[queue].values()
        )
