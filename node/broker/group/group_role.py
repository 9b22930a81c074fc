"""A broker as a member of a replicated group: its role, and what changes with the role.

    undecided ──leader known──▶ follower ──elected, ready──▶ leader
    brokerId -1                 number + 1 ◀──lost────────── 0

A follower serves reads of what is committed, refuses changes, and has the tables of the group. A leader serves as
master once it has committed an entry of its current term (S11): it then puts its tables into the log, accepts sends,
delivers delayed messages, checks transactions, and informs the name servers.

When leadership is lost, the order is reversed, and all of it happens within the callback: sends are refused, the timers
are told to stop, the tables return to the committed state, the broker id changes; only then are others informed (B7).
One task does afterwards, in order, what takes time: it waits for the timers' last step and informs the name servers.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from tallystick.node.broker.group.leader_place import LeaderPlace, Place
from tallystick.node.broker.group.replicated import SAVE_PERIOD_S, GroupTables
from tallystick.node.broker.tables.saving import NoFile, ReplicatedTable, TableFile
from tallystick.node.core.settings import UNDECIDED, BrokerSettings
from tallystick.replication.effects import Role
from tallystick.replication.member.errors import MemberError, ReadError
from tallystick.replication.metadata.tables import ReplicatedTables
from tallystick.store.formats.ledger_format import EntryKind
from tallystick.store.formats.message import PutStatus
from tallystick.store.limited_log import LimitedLog, RepeatedError

if TYPE_CHECKING:
    from tallystick.node.broker.tables.topics import TopicTable
    from tallystick.replication.member.member import Member
    from tallystick.replication.member.status import GroupStatus, PeerProgress
    from tallystick.store._kernel import Door
    from tallystick.store.engine.message_store import MessageStore

_logger = logging.getLogger("tallystick.broker.group")

OUTCOME_UNKNOWN = 1
"""The answer to sends whose commit is unknown (B2): SYSTEM_ERROR, which RocketMQ's DLedger mode answers for
TERM_CHANGED. A client then retries, and may create a second message with the same UNIQ_KEY."""
SYNC_PERIOD_S, SYNC_LIMIT_S = 0.5, 2.0
"""How often a follower checks whether it is in sync, and the time in which it must receive what is committed."""


class Service(Protocol):
    """A timer that only a leader runs."""

    async def start(self) -> None: ...

    async def stop(self) -> None: ...

    def halt(self) -> None:
        """Begins nothing more from now on; `stop` waits for what is in progress."""


class GroupedBroker(Protocol):
    """What a group changes in its broker."""

    settings: BrokerSettings

    @property
    def store(self) -> MessageStore: ...

    @property
    def topics(self) -> TopicTable: ...

    def take_role(self, broker_id: int, term: int) -> None:
        """Takes this role from now on, in all answers."""

    def serve(self, serving: bool) -> None:
        """Accepts sends, or refuses them."""

    def tell_name_servers_soon(self) -> None:
        """Registers with the present role, with all name servers at once, without waiting for their answers."""

    async def leave_name_servers(self) -> None:
        """Unregisters from all name servers."""


class BrokerGroup:
    """One broker's part in its group. Created when the member's disk is recovered; `start` takes part."""

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
        """`folder`: for the tables' snapshot; `address`: where members reach this broker, as clients do.

        Raises ValueError or TypeError for an invalid table in the folder.
        """
        self.member = member
        self._place = LeaderPlace(member.identity.member, address)
        self.tables = GroupTables(member, committed, [*tables, (self._place, NoFile())], door=door, folder=folder)
        self.term = 0
        self.leads = False
        self.fatal: str | None = None
        self.on_fatal: list[Callable[[str], None]] = []
        self.on_restart: list[Callable[[], None]] = []
        """Called when the broker must be stopped and started again."""
        self.on_change: list[Callable[[], None]] = []
        """Called when the leader, its place, or whether it accepts changes may have changed."""
        self.holds_back: Callable[[], bool] = lambda: False
        """Whether the leader does not serve as the master: the group follows one. `open` ends it."""
        self.before_ready: list[Callable[[], None]] = []
        """Called when this member leads, before it stages its tables."""
        self.on_table: list[Callable[[str], None]] = []
        """Called with the name of a table of which a change was committed."""
        self._broker = broker
        self._log = broker.store.group
        self._services = tuple(services)
        self._services_term: int | None = None
        self._changed = asyncio.Event()
        self._tasks: list[asyncio.Task[None]] = []
        self._say: asyncio.Task[None] | None = None
        self._save_errors = RepeatedError(
            _logger, "cannot save the group's tables; the next start applies more of the log"
        )
        self._limited = LimitedLog(_logger, time.monotonic, interval_s=60.0)
        self._superseded = False  # a snapshot replaced the log of the store
        self._no_room: str | None = None
        self._behind: str | None = "not known to be in sync yet"
        member.on_role.append(self._on_role)
        member.on_ready.append(self._on_ready)
        member.on_accepting.append(self._on_accepting)
        member.on_commit.append(self._on_commit)
        member.on_apply.append(self._on_apply)
        member.on_truncate.append(lambda pos, was_end: self._log.forget_cut(was_end))
        member.on_unknown.append(lambda: self._log.give_up(OUTCOME_UNKNOWN, PutStatus.UNKNOWN_ERROR))
        member.on_refused.append(broker.store.connections.deliver)
        member.on_abandoned.append(self.tables.on_abandoned)
        member.on_installed.append(self._on_installed)
        member.on_repaired.append(broker.store.log_repair.take_repaired)
        member.on_fatal.append(self._on_fatal)
        broker.store.media.on_damage.append(lambda pos, end: member.damaged(pos, end))
        broker.store.media.is_being_repaired = member.is_being_repaired
        for pos, end in broker.store.recovered.damaged_ranges():
            # Queues and index were built with later records: offsets that were assigned may be missing from them.
            member.damaged(pos, end, blocks=True)
        member.on_removed.append(self._on_removed)
        self._place.on_taken.append(self._tell_change)

    # -- start and stop ------------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Begins to follow the member's events. The owner starts the member itself."""
        loop = asyncio.get_running_loop()
        self._tasks = [
            loop.create_task(self._follow_roles(), name="group role"),
            loop.create_task(self._save_forever(), name="group tables"),
            loop.create_task(self._look_for_lag(), name="group lag"),
        ]

    async def hand_over(self) -> int | None:
        """A leader that will stop stages its offsets once more and transfers its leadership (T7). Returns the new
        leader, or None if none is known. It ignores failures."""
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
        """Transfers leadership to this member or to the voter with the longest log; returns the new leader. See
        `Member.transfer`.

        The successor has everything: the last deliveries of the timers, and offsets up to the moment from which this
        member accepts nothing. `go_on`: if the transfer fails, the timers continue.
        """
        if self.leads:
            await self._end_services()
            self.tables.stage_rest()  # nothing may be awaited between here and the transfer
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
        """Ends the tasks, the timers and the member, then writes the tables' files. Call it before the store is
        closed."""
        tasks = [*self._tasks, *([self._say] if self._say is not None else [])]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for service in self._services:
            service.halt()
        await self.member.stop(transfer=False)
        for service in self._services:
            await service.stop()
        try:
            await self.tables.save()
        except OSError as error:
            _logger.error("cannot save the group's tables; the next start applies more of the log: %s", error)

    # -- state for others ----------------------------------------------------------------------------------------------

    @property
    def number(self) -> int:
        """This member's number, from 0."""
        return self.member.identity.member

    def refusal(self) -> str | None:
        """Why requests that change something are refused now; None if they are accepted."""
        if self.leads and self.member.accepting:
            return None
        leader = self.member.leader
        if self.fatal is not None:
            return f"this member of the group has stopped: {self.fatal}"
        if self.leads:
            return (
                "it accepts no changes: leadership is being transferred, its disk is full, or too much is not committed"
            )
        if leader == self.number:
            return "this member was elected and is not ready yet"
        return "this member is a follower, " + (f"n{leader} leads" if leader is not None else "no leader is known")

    def place(self) -> Place | None:
        """Where another member leads; None if this one leads, or no leader has announced itself in this term."""
        place = None if self.leads else self._place.of_term(self.term)
        return None if place is None or place.member == self.number else place

    @property
    def key(self) -> str:
        """The key by which this member, as leader, recognizes other members."""
        return self._place.key

    def hopeless(self) -> bool:
        """Whether callers that wait until changes are accepted again would wait without success, or for long."""
        if not self.leads:
            return self.fatal is not None
        status = self.member.status()
        return status.transfer_target is None and not status.disk.can_write

    async def read(self) -> None:
        """Waits until everything that is committed now is applied here. Raises ReadError."""
        await self.member.read()

    def unready(self) -> str | None:
        """Why this member is not usable: it neither leads nor follows closely. None if it does."""
        if self.fatal is not None:
            return f"this member of the group has stopped: {self.fatal}"
        if not self.is_member:
            return "this is not a member of the group: not yet, or no longer"
        if self.leads:
            return None if self.member.accepting else self.refusal()
        if (unreadable := self.member.unreadable) is not None:
            return unreadable
        if self.member.leader is None:
            return "no leader is known"
        if self.member.leader == self.number:
            return "elected, but not ready yet"
        if self._services_term is not None:
            return "this member is giving up leadership"
        if self._superseded:
            return "a snapshot replaced the log: the broker restarts"
        return self._behind

    @property
    def is_member(self) -> bool:
        """Whether it is in the group, as a voter or a learner."""
        status = self.member.status()
        # Its own log may end before the entry that removed it, of which other members informed it.
        return not status.removed and (self.number in status.voters or self.number in status.learners)

    def status(self) -> GroupStatus:
        return self.member.status()

    def peers(self) -> Sequence[PeerProgress]:
        """The other members, with what this one knows of them."""
        return self.member.status().peers

    def runtime_info(self) -> dict[str, str]:
        """The additional keys of GET_BROKER_RUNTIME_INFO."""
        member = self.member
        return {
            "groupMember": f"n{self.number}",
            "groupRole": "leader" if self.leads else member.role.value,
            "groupTerm": str(self.term),
            "groupLeader": "" if member.leader is None else f"n{member.leader}",
            "groupCommittedIndex": str(member.committed_index),
        }

    # -- events of the member ------------------------------------------------------------------------------------------

    def _on_role(self, role: Role, term: int, leader: int | None) -> None:
        self.term = term
        led, self.leads = self.leads, False
        if led:
            for service in self._services:
                service.halt()
            self.tables.on_lost()
        if role is Role.LEADER:
            self._log.take_lead(term)
        elif led or leader is not None:
            self._broker.take_role(self.number + 1, term)
        elif self._broker.settings.brokerId != UNDECIDED:
            self._broker.take_role(self._broker.settings.brokerId, term)
        self._changed.set()
        self._tell_change()

    def _on_ready(self, term: int) -> None:
        self.term, self.leads = term, True
        for callback in self.before_ready:
            callback()
        self._broker.take_role(self.number + 1 if self.holds_back() else 0, term)
        self._place.announce(term)
        self.tables.on_ready()
        self._log.refuse_messages(self.member.message_refusal())
        self._on_accepting(self.member.accepting)
        self._changed.set()

    def _on_accepting(self, accepting: bool) -> None:
        # What waits for the log is staged before the next send, which may depend on it.
        self._broker.serve(accepting and self.leads and self.tables.stage_all() and not self.holds_back())
        self._tell_change()

    def open(self) -> None:
        """This leader, which was held back, serves as the master from now on."""
        self._broker.take_role(0, self.term)
        self._on_accepting(self.member.accepting)
        self._changed.set()

    def _tell_change(self) -> None:
        for callback in self.on_change:
            callback()

    def _on_apply(self, index: int, kind: EntryKind, body: bytes) -> None:
        change = self.tables.on_apply(index, kind, body)
        if change is not None:
            for callback in self.on_table:
                callback(change.table)
        if change is not None and self.leads and change.table == self._place.what:
            self._say = asyncio.get_running_loop().create_task(self._say_committed(), name="group place")
        topics = self._broker.topics
        if change is None or change.table != topics.what or self.leads:
            return
        gone = [name for name, row in (change.patch.get(topics.rows_field) or {}).items() if row is None]
        store, pos = self._broker.store, self.member.ledger.pos_of(index)
        # A restart applies again what was applied since the snapshot: queues that are further may belong to a new
        # topic.
        if gone and store.dispatched_pos <= pos:
            self._log.commit(pos)
            for name in gone:
                store.queues.remove_topic(name)

    async def _say_committed(self) -> None:
        """Sends a round of heartbeats at once: the others hold requests until they know the place of this leader, which
        is now committed. The next regular round would come up to a tenth of a second later."""
        try:
            await self.member.read()
        except ReadError:
            pass  # the next regular round informs them

    def _on_commit(self, pos: int) -> None:
        if not self._superseded:
            self._log.commit(pos)

    def _on_installed(self, index: int, pos: int) -> None:
        # Queues and index belong to the replaced log: the store must be opened again on the new one.
        self._superseded = True
        self.tables.on_installed()
        _logger.warning("installed a snapshot at entry %d; restarting the broker", index)
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

    # -- background tasks ----------------------------------------------------------------------------------------------

    async def _follow_roles(self) -> None:
        """Starts and stops timers and informs name servers after every change. Later changes are seen in the next
        round."""
        while True:
            await self._changed.wait()
            self._changed.clear()
            try:
                wanted = self.term if self.leads and not self.holds_back() else None
                if self._services_term not in (None, wanted):
                    for service in self._services:
                        await service.stop()
                    self._services_term = None
                if wanted is not None and self._services_term is None and self.leads and self.term == wanted:
                    self._services_term = wanted
                    for service in self._services:
                        await service.start()
                    if not self.leads or self.term != wanted:  # leadership was lost meanwhile
                        for service in self._services:
                            service.halt()
                        continue
                if self.is_member:
                    self._broker.tell_name_servers_soon()
                else:
                    await self._broker.leave_name_servers()
            except Exception:  # a failure must not prevent the handling of the next change
                _logger.exception("a change of role was not completed")

    def look_at_disk(self) -> None:
        """Runs once a second. A member whose store has little space reports this to its group (L10). A leader accepts
        no messages if too few members have space, but still accepts small changes: offsets, locks, topics, groups."""
        reason = self._broker.store.admission.no_room()
        if (reason is None) != (self._no_room is None):
            self.member.disk_low(reason)
        self._no_room = reason
        self._log.refuse_messages(self.member.message_refusal())

    async def _look_for_lag(self) -> None:
        """A member is in sync if it soon receives everything that was committed when it asked the leader (R2)."""
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
                if self._broker.settings.brokerId == UNDECIDED and self.is_member:  # added, or added again
                    self._broker.take_role(self.number + 1, self.term)
                    self._changed.set()
            except ReadError as error:
                self._behind = f"not in sync: {error}"
            except TimeoutError:
                self._behind = f"not in sync: does not have the entries committed {SYNC_LIMIT_S:g} s ago"

    async def _save_forever(self) -> None:
        while True:
            await asyncio.sleep(SAVE_PERIOD_S)
            await self._save_errors.attempt(self.tables.save)


def with_role(settings: BrokerSettings, broker_id: int) -> BrokerSettings:
    """The settings of the same broker with another broker id."""
    return settings if settings.brokerId == broker_id else replace(settings, brokerId=broker_id)
