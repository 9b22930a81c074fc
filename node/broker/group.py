"""A broker as a member of a replicated group: what it is at the moment, and what changes when that does.

    undecided ──leader known──▶ follower ──elected, ready──▶ leader
    brokerId -1                 number + 1 ◀──lost────────── 0

A follower serves reads of what is committed, refuses everything that changes something, and takes the tables that the
group has. A leader serves as master once it has committed an entry of its own term (S11): then its tables go into the
log, sends are taken, delayed messages delivered and transactions checked, and the name servers are told.

When leadership is lost, the order is the other way round, and all of it happens within the callback that says so: no
send is taken, the timers are told to end, the tables go back, the broker id changes; only then is anybody told (B7).
What takes time (waiting for the timers' last step, asking name servers) is done behind that by one task, in order.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from tallystick.node.broker.leader_place import LeaderPlace, NoFile, Place
from tallystick.node.broker.replicated import SAVE_PERIOD_S, GroupTables
from tallystick.node.broker.saving import ReplicatedTable, TableFile
from tallystick.node.settings import UNDECIDED, BrokerSettings
from tallystick.replication.effects import Role
from tallystick.replication.member.errors import MemberError, ReadError
from tallystick.replication.metadata.tables import ReplicatedTables
from tallystick.store.ledger_format import EntryKind
from tallystick.store.limited_log import LimitedLog
from tallystick.store.message import PutStatus

if TYPE_CHECKING:
    from tallystick.node.broker.topics import TopicTable
    from tallystick.replication.member.member import Member
    from tallystick.replication.member.status import GroupStatus
    from tallystick.store._kernel import Door
    from tallystick.store.engine import MessageStore

_logger = logging.getLogger("tallystick.broker.group")

OUTCOME_UNKNOWN = 1
"""Answer to sends of which nobody knows whether they will be committed (B2): SYSTEM_ERROR, as RocketMQ's DLedger mode
answers TERM_CHANGED. A client sends again, and may make a second message with the same UNIQ_KEY."""
SYNC_PERIOD_S, SYNC_LIMIT_S = 0.5, 2.0
"""How often a follower looks whether it is in sync, and within what time it must get what is committed."""


class Service(Protocol):
    """A timer that only a leader runs."""

    async def start(self) -> None: ...

    async def stop(self) -> None: ...

    def halt(self) -> None:
        """Begin nothing more, from now on; `stop` waits for what is under way."""


class GroupedBroker(Protocol):
    """What a group changes in its broker."""

    settings: BrokerSettings

    @property
    def store(self) -> MessageStore: ...

    @property
    def topics(self) -> TopicTable: ...

    def take_role(self, broker_id: int, term: int) -> None:
        """Be this from now on, in all that is answered."""

    def serve(self, serving: bool) -> None:
        """Take sends, or do not."""

    async def tell_name_servers(self) -> None:
        """Register as what it is now, with all of them at once."""

    async def leave_name_servers(self) -> None:
        """Be nothing that clients should find, and tell them so."""


class BrokerGroup:
    """One broker's part in its group. Made when the member's disk is recovered; `start` takes part."""

    def __init__(
        self,
        broker: GroupedBroker,
        member: Member,
        committed: ReplicatedTables,
        tables: Iterable[tuple[ReplicatedTable, TableFile]],
        services: Iterable[Service],
        *,
        door: Door,
        folder: Path,
        address: str = "",
    ) -> None:
        """`folder`: of the tables' snapshot; `address`: where members reach this broker, as clients do.

        ValueError, TypeError: a table in it cannot be.
        """
        self.member = member
        self._place = LeaderPlace(member.identity.member, address)
        self.tables = GroupTables(member, committed, [*tables, (self._place, NoFile())], door=door, folder=folder)
        self.term = 0
        self.leads = False
        self.fatal: str | None = None
        self.on_fatal: list[Callable[[str], None]] = []
        self.on_restart: list[Callable[[], None]] = []
        """The broker has to be stopped and started again."""
        self.on_change: list[Callable[[], None]] = []
        """Who leads, whether it takes anything, or where it is, may be another now."""
        self._broker = broker
        self._services = tuple(services)
        self._services_term: int | None = None
        self._changed = asyncio.Event()
        self._tasks: list[asyncio.Task[None]] = []
        self._say: asyncio.Task[None] | None = None
        self._saved_error = ""
        self._limited = LimitedLog(_logger, time.monotonic, interval_s=60.0)
        self._superseded = False  # the store stands on a log that is no more
        self._no_room: str | None = None
        self._behind: str | None = "not known to be in sync yet"
        member.on_role.append(self._on_role)
        member.on_ready.append(self._on_ready)
        member.on_accepting.append(self._on_accepting)
        member.on_commit.append(self._on_commit)
        member.on_apply.append(self._on_apply)
        member.on_truncate.append(lambda pos, was_end: broker.store.forget_cut(was_end))
        member.on_unknown.append(lambda: broker.store.give_up(OUTCOME_UNKNOWN, PutStatus.UNKNOWN_ERROR))
        member.on_refused.append(broker.store.deliver)
        member.on_abandoned.append(self.tables.on_abandoned)
        member.on_installed.append(self._on_installed)
        member.on_repaired.append(broker.store.take_repaired)
        member.on_fatal.append(self._on_fatal)
        broker.store.media.on_damage.append(lambda pos, end: member.damaged(pos, end))
        broker.store.media.is_being_repaired = member.is_being_repaired
        for pos, end in broker.store.recovered.damaged_ranges():
            # Queues and index were made past it: offsets that were given out may be missing from them.
            member.damaged(pos, end, blocks=True)
        member.on_removed.append(self._on_removed)
        self._place.on_taken.append(self._tell_change)

    # -- life ----------------------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Begins to follow what the member says. The member itself is started by its owner."""
        loop = asyncio.get_running_loop()
        self._tasks = [
            loop.create_task(self._follow_roles(), name="group role"),
            loop.create_task(self._save_forever(), name="group tables"),
            loop.create_task(self._look_for_lag(), name="group lag"),
        ]

    async def hand_over(self) -> int | None:
        """A leader that is to stop writes its offsets once more and lets another lead (T7); who leads then, None if
        nobody is known to. Nothing of it must work."""
        if not self.leads:
            return None
        try:
            if len(self.member.status().voters) > 1:
                return await self.transfer(None, go_on=False)
            await self._end_services()
            for table in self.tables.all():
                await table.saved()
        except (OSError, MemberError) as error:
            _logger.warning("stopping as leader without a successor: %s", error)
        return None

    async def transfer(self, target: int | None, *, go_on: bool = True) -> int:
        """Hands leadership over, to this member or to whoever is furthest; who leads then. As `Member.transfer`.

        The successor has everything: what the timers delivered last, and offsets up to the moment from which on nothing
        is taken here. `go_on`: if it fails, the timers run again.
        """
        if self.leads:
            await self._end_services()
            self.tables.stage_rest()  # and nothing may be waited for from here to the transfer
        try:
            return await self.member.transfer(target)
        finally:
            if go_on and self.leads:
                self._changed.set()

    async def _end_services(self) -> None:
        for service in self._services:
            service.halt()
        for service in self._services:
            await service.stop()
        self._services_term = None

    async def stop(self) -> None:
        """Ends the tasks, the timers and the member; then the tables' files are written. Before the store is closed."""
        tasks = [*self._tasks, *([self._say] if self._say is not None else [])]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for service in self._services:
            service.halt()
        await self.member.close(transfer=False)
        for service in self._services:
            await service.stop()
        try:
            await self.tables.save()
        except OSError as error:
            _logger.error("the group's tables are not saved, a start applies more of the log: %s", error)

    # -- what others ask -----------------------------------------------------------------------------------------------

    @property
    def number(self) -> int:
        """This member's, from 0."""
        return self.member.identity.member

    def refusal(self) -> str | None:
        """Why requests that change something are refused now; None: they are not."""
        if self.leads and self.member.accepting:
            return None
        leader = self.member.leader
        if self.fatal is not None:
            return f"this member of the group has stopped: {self.fatal}"
        if self.leads:
            return "the leader takes nothing at the moment: it hands over, its disk is full, or too much is under way"
        if leader == self.number:
            return "this member was elected and is not ready yet"
        return "this member follows, " + (f"n{leader} leads" if leader is not None else "no leader is known")

    def place(self) -> Place | None:
        """Where another member leads; None: this one leads, or nobody has said so in this term."""
        place = None if self.leads else self._place.of_term(self.term)
        return None if place is None or place.member == self.number else place

    @property
    def key(self) -> str:
        """By which this member as a leader knows others."""
        return self._place.key

    def hopeless(self) -> bool:
        """Whoever waits for changes to be taken again waits in vain, or for long."""
        if not self.leads:
            return self.fatal is not None
        status = self.member.status()
        return status.transfer_target is None and not status.disk.can_write

    async def read(self) -> None:
        """Returns when all that was committed by now is applied here. ReadError."""
        await self.member.read()

    def unready(self) -> str | None:
        """Why this member is none to count on: it neither leads nor follows closely. None: it does."""
        if self.fatal is not None:
            return f"this member of the group has stopped: {self.fatal}"
        if not self.is_member:
            return "this is no member of the group, not yet or not any more"
        if self.leads:
            return None if self.member.accepting else self.refusal()
        if (unreadable := self.member.unreadable) is not None:
            return unreadable
        if self.member.leader is None:
            return "no leader is known"
        if self.member.leader == self.number:
            return "elected, and not ready yet"
        if self._services_term is not None:
            return "steps down"
        if self._superseded:
            return "the log begins anew: the broker starts again"
        return self._behind

    @property
    def is_member(self) -> bool:
        """It belongs to the group, with a vote or without."""
        status = self.member.status()
        # Its own log may end before the entry that left it out: others told of that one.
        return not status.removed and (self.number in status.voters or self.number in status.learners)

    def status(self) -> GroupStatus:
        return self.member.status()

    def runtime_info(self) -> dict[str, str]:
        """Keys of our own in GET_BROKER_RUNTIME_INFO."""
        member = self.member
        return {
            "groupMember": f"n{self.number}",
            "groupRole": "leader" if self.leads else member.role.value,
            "groupTerm": str(self.term),
            "groupLeader": "" if member.leader is None else f"n{member.leader}",
            "groupCommittedIndex": str(member.committed_index),
        }

    # -- what the member says ------------------------------------------------------------------------------------------

    def _on_role(self, role: Role, term: int, leader: int | None) -> None:
        self.term = term
        led, self.leads = self.leads, False
        if led:
            for service in self._services:
                service.halt()
            self.tables.on_lost()
        if role is Role.LEADER:
            self._broker.store.take_lead(term)
        elif led or leader is not None:
            self._broker.take_role(self.number + 1, term)
        elif self._broker.settings.brokerId != UNDECIDED:
            self._broker.take_role(self._broker.settings.brokerId, term)
        self._changed.set()
        self._tell_change()

    def _on_ready(self, term: int) -> None:
        self.term, self.leads = term, True
        self._broker.take_role(0, term)
        self._place.announce(term)
        self.tables.on_ready()
        self._broker.store.refuse_messages(self.member.message_refusal())
        self._on_accepting(self.member.accepting)
        self._changed.set()

    def _on_accepting(self, accepting: bool) -> None:
        # What waits for the log goes in before the next send, which may need it.
        self._broker.serve(accepting and self.leads and self.tables.stage_all())
        self._tell_change()

    def _tell_change(self) -> None:
        for callback in self.on_change:
            callback()

    def _on_apply(self, index: int, kind: EntryKind, body: bytes) -> None:
        change = self.tables.on_apply(index, kind, body)
        if change is not None and self.leads and change.table == self._place.what:
            self._say = asyncio.get_running_loop().create_task(self._say_committed(), name="group place")
        topics = self._broker.topics
        if change is None or change.table != topics.what or self.leads:
            return
        gone = [name for name, row in (change.patch.get(topics.rows_field) or {}).items() if row is None]
        store, pos = self._broker.store, self.member.ledger.pos_of(index)
        # A start applies again what was applied since the snapshot: queues that are beyond may be a new topic's.
        if gone and store.dispatched_pos <= pos:
            store.commit(pos)
            for name in gone:
                store.remove_topic(name)

    async def _say_committed(self) -> None:
        """The others hold requests until they know where this leader is: a round of heartbeats at once tells them that
        it is committed, where the next one would come a tenth of a second later."""
        try:
            await self.member.read()
        except ReadError:
            pass  # then the next one has to do

    def _on_commit(self, pos: int) -> None:
        if not self._superseded:
            self._broker.store.commit(pos)

    def _on_installed(self, index: int, pos: int) -> None:
        # Queues and index are of a log that is no more: the store is opened anew on the one that is.
        self._superseded = True
        self.tables.on_installed()
        _logger.warning("the log begins anew behind entry %d: the broker starts again", index)
        for callback in self.on_restart:
            callback()

    def _on_fatal(self, reason: str) -> None:
        self.fatal = reason
        if self.leads:
            self._on_role(Role.FOLLOWER, self.term, None)
        self._tell_change()
        for callback in self.on_fatal:
            callback(reason)

    def _on_removed(self, index: int) -> None:
        self._limited.warning("removed", "removed from the group as of entry %d; this process can be stopped", index)
        self._changed.set()

    # -- behind it -----------------------------------------------------------------------------------------------------

    async def _follow_roles(self) -> None:
        """Timers and name servers, after every change. What changed meanwhile is seen in the next round."""
        while True:
            await self._changed.wait()
            self._changed.clear()
            try:
                wanted = self.term if self.leads else None
                if self._services_term not in (None, wanted):
                    for service in self._services:
                        await service.stop()
                    self._services_term = None
                if wanted is not None and self._services_term is None and self.leads and self.term == wanted:
                    self._services_term = wanted
                    for service in self._services:
                        await service.start()
                    if not self.leads or self.term != wanted:  # lost meanwhile: they did not hear of it
                        for service in self._services:
                            service.halt()
                        continue
                if self.is_member:
                    await self._broker.tell_name_servers()
                else:
                    await self._broker.leave_name_servers()
            except Exception:  # a service or name server that fails must not keep the next change from being told
                _logger.exception("a change of role was not carried out whole")

    def look_at_disk(self) -> None:
        """Once a second. A member whose store finds little room says so to its group (L10); a leader takes no messages
        where too few members have room, and goes on to take what is small: offsets, locks, topics, groups."""
        reason = self._broker.store.no_room()
        if (reason is None) != (self._no_room is None):
            self.member.disk_low(reason)
        self._no_room = reason
        self._broker.store.refuse_messages(self.member.message_refusal())

    async def _look_for_lag(self) -> None:
        """In sync is who gets, soon, all that was committed when it asked the leader (R2)."""
        while True:
            await asyncio.sleep(SYNC_PERIOD_S)
            if self.leads:
                self._behind = None
                continue
            if self._superseded:
                continue
            try:
                async with asyncio.timeout(SYNC_LIMIT_S):
                    await self.member.read()
                self._behind = None
                if self._broker.settings.brokerId == UNDECIDED and self.is_member:  # let in, or let in again
                    self._broker.take_role(self.number + 1, self.term)
                    self._changed.set()
            except ReadError as error:
                self._behind = f"not in sync: {error}"
            except TimeoutError:
                self._behind = f"not in sync: lacks what was committed {SYNC_LIMIT_S:g} s ago"

    async def _save_forever(self) -> None:
        while True:
            await asyncio.sleep(SAVE_PERIOD_S)
            try:
                await self.tables.save()
                self._saved_error = ""
            except OSError as error:
                if str(error) != self._saved_error:
                    _logger.error("the group's tables are not saved, a start applies more of the log: %s", error)
                self._saved_error = str(error)


def with_role(settings: BrokerSettings, broker_id: int) -> BrokerSettings:
    """The same broker as another one of its group."""
    return settings if settings.brokerId == broker_id else replace(settings, brokerId=broker_id)
