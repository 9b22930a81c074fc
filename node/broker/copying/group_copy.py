"""A group that follows a master of RocketMQ, and takes its place: the part of one member.

    following ── leader: copies the log and the tables into the group's log ──▶ promoted ── a group like any other
                 other members: get them from the leader, as everything else

The state is a row of the group's log (`place_table`). So one entry decides the promotion, and a leader that is killed
before it leaves a group that follows, and one that is killed behind it a group that serves. `brokerRole=SLAVE` in the
settings of a member only says that a *new* group follows: the first leader decides, by the first table that it puts
into the log. A group whose log has, or had, tables of a leader that did not follow has served clients, and follows no
master from then on, whatever the settings of later leaders, and whatever has expired. Members with other settings than
the group's state report this, and forward requests to the leader like all others.

While it follows, no member serves as the master: the leader has the broker id of a follower, accepts no change of a
client, and runs no timer. Nothing is deleted from the log. The steps of a promotion are those of a slave's
(`promotion`); its record is in the group's log, too, so another leader can continue it or take it back.

A leader works with an object for its leadership alone (`GroupFollower`), which begins with what the log says.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from tallystick.node.broker.copying.followed_log import records
from tallystick.node.broker.copying.group_follower import GroupFollower
from tallystick.node.broker.copying.old_master import LATE_OFFSETS_S, OldMasterWatch
from tallystick.node.broker.copying.place_table import FOLLOWING, PROMOTED, CopyTable, ends_of, state_of
from tallystick.node.broker.copying.promotion import Promotion, PromotionError
from tallystick.node.broker.copying.protocol import CopyError
from tallystick.node.broker.copying.record import Record
from tallystick.node.broker.copying.slave_role import REFUSED
from tallystick.node.broker.services.rebuilding import all_queues, missing_topics
from tallystick.node.core.migration import OLD_MASTER_ID
from tallystick.node.remoting.client import RemotingClient
from tallystick.node.remoting.codes import ResponseCode
from tallystick.replication.member.errors import ReadError

if TYPE_CHECKING:
    from tallystick.node.broker.broker import Broker
    from tallystick.node.broker.group.group_role import BrokerGroup
    from tallystick.node.broker.tables.saving import ReplicatedTable
    from tallystick.node.remoting.command import Command
    from tallystick.node.remoting.connection import Connection
    from tallystick.node.remoting.endpoint import Handler
    from tallystick.replication.member.member import Member
    from tallystick.store.settings import StoreSettings

_logger = logging.getLogger("tallystick.broker")

_HAS_SERVED = "this group served clients before a member with brokerRole=SLAVE led it: it follows no master"


class GroupCopy:
    """The copy of a member. `wanted`: by its settings a new group follows a master.

    Call `join` before the group takes part. It is a `Promotable`, and a `CopyOfMaster` for the member's role.
    """

    broker: Broker
    group: BrokerGroup
    follower: GroupFollower
    _client: RemotingClient

    def __init__(self, *, wanted: bool) -> None:
        self.table = CopyTable()
        self.record_file = _GroupRecords(self)
        self._wanted = wanted
        self._copied: tuple[ReplicatedTable, ...] = ()
        self._master = ("", "")  # addresses for clients and for slaves, as a name server told them
        self._term: int | None = None  # of the leadership in which it copies
        self._promoting = asyncio.Lock()
        self._promoting_term = 0  # of the leadership in which the promotion began
        self._ending: set[asyncio.Task[None]] = set()
        self._opened = self._has_follower = False
        self._decides = False  # the promotion completes the copied tables
        self._begins = False  # this leader has decided that the new group follows; it is not committed yet

    def join(self, broker: Broker, group: BrokerGroup, copied: Iterable[ReplicatedTable]) -> None:
        """See `CopyOfMaster`."""
        self.broker, self.group = broker, group
        self._client = RemotingClient(name="broker.copy", sign=broker.sign, tls=broker.client_context)
        self._old_master = OldMasterWatch(broker, self._client, self.record_file)
        self._copied = tuple(copied)
        for table in self._copied:
            # A row that a heartbeat makes here, and that the master's older answer lacks, would look like one that the
            # master deleted, and its queues would go.
            table.is_copied = lambda: self.follows and not self._decides
        group.holds_back = lambda: self.follows
        broker.store.group.keeps_all = lambda: self.follows
        group.before_ready.append(self._before_ready)
        group.on_change.append(self._look)
        group.on_table.append(self._table_applied)
        group.member.on_abandoned.append(self._abandoned)
        self.broker.registration.on_master = self._on_master
        self._make_follower()
        self._count_from_ends()

    # -- state ---------------------------------------------------------------------------------------------------------

    @property
    def _committed_state(self) -> str | None:
        return state_of(self.group.tables.committed.picture(CopyTable.what))

    @property
    def follows(self) -> bool:
        """Whether the group follows a master: it is not the master of its name itself."""
        state = self._committed_state
        return state == FOLLOWING or (state is None and self._begins and self.group.leads)

    @property
    def concerns(self) -> bool:
        """Whether the group follows a master or ever did."""
        return self._wanted or self._committed_state is not None

    @property
    def is_master(self) -> bool:
        """Whether it does not follow: it was promoted, or never followed a master."""
        return not self.follows

    @property
    def copies(self) -> bool:
        """Whether this member copies, or tries to: it leads a group that follows."""
        return self.follows and self.group.leads

    @property
    def copied_end(self) -> int:
        """Where the log of the master ended when the group was promoted."""
        return self.table.promotion.ended_at

    @property
    def counterpart(self) -> str:
        """Address of the master that is copied, or whose place the group has taken; empty: it is not known."""
        if not self.follows:
            return self.table.promotion.master
        return self._master[0] or self.table.master[0]

    def unready(self) -> str | None:
        """Why the copy of this leader does not serve reads well; None if it follows closely."""
        return self.follower.unready()

    def to_json(self) -> dict[str, Any]:
        """For GET /node."""
        if not self.follows:
            if self._committed_state == PROMOTED:
                return {"state": "promoted", "reason": None, "lasting": False, "promotedAtPos": self.copied_end}
            return self._undecided()
        if self.group.leads:
            return self.follower.to_json() | {"fenced": bool(self.table.promotion.before)}
        leader = self.group.member.leader
        reason = "no leader is known" if leader is None else f"n{leader} leads and copies"
        return {"state": "member", "reason": reason, "lasting": False, "master": self._master[0]}

    def _undecided(self) -> dict[str, Any]:
        """`to_json` of a member with brokerRole=SLAVE in a group that does not follow, or not yet."""
        if self._has_served():
            return {"state": "unsupported", "reason": self._mismatch(), "lasting": True}
        return {"state": "member", "reason": "the group has no leader yet", "lasting": False, "master": ""}

    def _mismatch(self) -> str:
        leader = self.group.member.leader
        led = "" if leader is None or leader == self.group.number else f", now led by n{leader}"
        return (
            f"n{self.group.number} has brokerRole=SLAVE, but {_HAS_SERVED}{led}. Remove the setting from "
            f"n{self.group.number}. To follow a master, begin with empty stores and brokerRole=SLAVE at all members"
        )

    def _has_served(self) -> bool:
        """Whether the group's log has or had anything from a leader that did not follow. Only for a group without a
        state: a leader that follows puts the state into the log before all other tables."""
        member = self.group.member
        return bool(self.group.tables.committed.pictures()) or member.begin_pos > 0

    # -- requests ------------------------------------------------------------------------------------------------------

    def guard(self, routes: dict[int, Handler]) -> dict[int, Handler]:
        """See `CopyOfMaster`."""
        return {code: self._guarded(handler) if code in REFUSED else handler for code, handler in routes.items()}

    def _guarded(self, handler: Handler) -> Handler:
        def handle(connection: Connection, command: Command) -> object:
            if not self.follows:
                return handler(connection, command)
            remark = f"this group is a slave of {self._master[0] or 'a master that is not known'}"
            return command.reply(ResponseCode.SERVICE_NOT_AVAILABLE, ext={}, remark=remark)

        return handle  # type: ignore[return-value]  # whatever the handler returns

    # -- events of the group -------------------------------------------------------------------------------------------

    def _on_master(self, address: str, ha_address: str) -> None:
        if address in (str(self.broker.advertised), self.broker.settings.externalAddress) or not self.follows:
            return
        self._master = address, ha_address
        self.follower.on_master(address, ha_address)

    def _make_follower(self) -> None:
        if self._has_follower:
            self.follower.halt()
        self._has_follower = True
        self.follower = GroupFollower(self.broker, self.group, self._client, self.table, self._copied)
        # A name server forgets a master that died.
        known = self._master if self._master[0] else self.table.master
        if known[0]:
            self.follower.on_master(*known)

    def _before_ready(self) -> None:
        """This member leads, and its tables are staged next."""
        self._begins = False
        if self._committed_state is not None or not self._wanted:
            return
        if self._has_served() or has_messages(self.broker.store.settings, self.group.member):
            _logger.error("%s", self._mismatch())
            return
        self._begins = True
        self.table.follow()

    def _look(self) -> None:
        """Something changed: copies, or not, as is right now. Nothing is taken for an earlier leadership."""
        term = self.group.term if self.copies else None
        if not self.group.leads:
            self._old_master.end()  # the next leader watches
        elif not self._old_master.has_task:
            self._watch_again()
        if term == self._term:
            return
        if self._term is not None:
            self._end_copy()
        self._term = term
        if term is not None:
            self._make_follower()
            self.follower.start()

    def _end_copy(self) -> None:
        self.follower.halt()
        task = asyncio.get_running_loop().create_task(self.follower.stop(), name="end copy")
        self._ending.add(task)
        task.add_done_callback(self._ending.discard)

    def _table_applied(self, what: str) -> None:
        """A change of a table was committed."""
        if what != CopyTable.what:
            return
        self._count_from_ends()
        if self._committed_state == PROMOTED and not self._opened:
            self._open()

    def _open(self) -> None:
        """The group has decided that it is the master."""
        self._opened = True
        held_back = self._term is not None
        self._look()
        if held_back and self.group.leads:
            # Nothing was put since the copy was settled: counting again is safe only now.
            self.broker.store.group.take_lead(self.group.term)  # the next put continues every queue
            self.table.forget_places()
            self.group.open()

    def _abandoned(self, _: int) -> None:
        self.table.drop_behind(self.group.member.log.staged)
        self.follower.cut()

    def _count_from_ends(self) -> None:
        ends = ends_of(self.group.tables.committed.picture(CopyTable.what))
        if ends:
            self.broker.store.group.also_count_from(ends)

    # -- life ----------------------------------------------------------------------------------------------------------

    async def leave(self) -> None:
        """A promotion in progress is completed first."""
        async with self._promoting:
            pass

    async def stop(self) -> None:
        """Ends the copy. It cannot begin again."""
        self.group.on_change.remove(self._look)
        self._old_master.end()
        self.follower.halt()
        await self.follower.stop()
        await asyncio.gather(*self._ending, return_exceptions=True)
        await self._client.close(grace_s=0.0)

    # -- promotion -----------------------------------------------------------------------------------------------------

    async def promote(self, *, master_is_stopped: bool = False) -> dict[str, object]:
        """Takes the master's place, or what is left to do of it. Returns figures. PromotionError."""
        async with self._promoting:
            self._must_lead()
            if self.is_master:
                if self._committed_state != PROMOTED:
                    raise PromotionError(_HAS_SERVED)
                return {"end": self.copied_end, "strayBytes": await self.hand_over()}
            self._promoting_term = self.group.term
            try:
                return await Promotion(self).run(master_is_stopped=master_is_stopped)
            finally:
                if self.copies and not self.follower.is_started:
                    self.follower.start()

    async def take_back(self) -> dict[str, object]:
        """See `Promotion.take_back`."""
        async with self._promoting:
            self._must_lead()
            if self.is_master:
                raise PromotionError("this group is the master: RocketMQ cannot take its place as a slave of a group")
            return await Promotion(self).take_back()

    def _must_lead(self) -> None:
        if not self.group.leads:
            leader = self.group.member.leader
            who = "no leader is known" if leader is None else f"n{leader} leads"
            raise PromotionError(f"this member does not lead its group, {who}: ask the leader")

    async def become_master(self, master: str) -> None:
        """Decides that the group takes the place of `master`: one entry. The copy is stopped and settled. OSError: it
        was not decided; PromotionError: it is not known whether it was."""
        self._must_lead()
        if self.group.term != self._promoting_term:  # another leader may have taken the fence back, or decided
            raise PromotionError("leadership was lost meanwhile, and is here again: promote again")
        if not self.group.member.accepting:
            raise OSError(self.group.refusal() or "the group accepts nothing now")
        record = replace(
            self.table.promotion, master=master, number=OLD_MASTER_ID, ended_at=self.follower.log.end, handed_over=False
        )
        if not record.before:
            self._decides = True
            try:
                self._add_missing_topics()
            finally:
                self._decides = False
        self.table.set_promotion(record, decided=True)
        try:
            await self.table.saved()
        except OSError as error:
            text = "it is not known whether the group is the master: ask again. The master stays fenced until then"
            raise PromotionError(f"{text} ({error})") from error
        if not self._opened or self._committed_state != PROMOTED:
            raise PromotionError("leadership was lost: ask the leader")
        self._old_master.begin(self.table.promotion, late_offsets_s=LATE_OFFSETS_S)

    def _add_missing_topics(self) -> None:
        """The master died: topics that it made since the tables were copied last have messages and no row."""
        topics, default = self.broker.topics, self.broker.settings.defaultTopicQueueNums
        topics.update(*missing_topics(topics, all_queues(self.broker), {}, default))

    def _watch_again(self) -> None:
        """This member leads: watches the old master of a promoted group, unless that is done."""
        record = self.table.promotion
        if self._committed_state == PROMOTED and record.master and not record.handed_over:
            self._old_master.begin(record, late_offsets_s=0.0)

    async def hand_over(self) -> int:
        """See `OldMasterWatch.hand_over`."""
        if self._old_master.record is None and self.table.promotion.master:
            self._old_master.begin(self.table.promotion, late_offsets_s=0.0)
        return await self._old_master.hand_over()


def has_messages(settings: StoreSettings, member: Member) -> bool:
    """Whether the log of a member has a message. Reads up to the first one: of a new group this is little."""
    begin, end = member.begin_pos, member.log.written
    try:
        return next(records(settings.log_folder, settings.mappedFileSizeCommitLog, begin, end), None) is not None
    except (CopyError, OSError) as error:
        _logger.error("it is not known whether the group has messages, so it follows no master: %s", error)
        return True


class _GroupRecords:
    """The record of the promotion in the group's log. See `record.Records`."""

    def __init__(self, copy: GroupCopy) -> None:
        self._copy = copy

    async def loaded(self) -> Record:
        """See `Records`. OSError: this member does not lead, or the group is the master. In both cases a promotion that
        has failed must not take back what was changed at the old master."""
        try:
            await self._copy.group.read()
        except ReadError as error:
            raise OSError(f"this member does not know whether it leads: {error}") from error
        if not self._copy.group.leads:
            raise OSError("this member does not lead its group any longer")
        if self._copy.is_master:
            raise OSError("the group has become the master, by a promotion at another leader")
        return self._copy.table.promotion

    async def saved(self, record: Record) -> None:
        """See `Records`."""
        if not self._copy.group.leads or not self._copy.group.member.accepting:
            raise OSError("this member's group accepts nothing now")
        self._copy.table.set_promotion(record)
        await self._copy.table.saved()
