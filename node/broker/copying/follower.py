"""A slave's copy of its master: finds the master, checks that the logs fit, connects, and continues after every end.

    find ─▶ check ─▶ connect ─▶ compare ─▶ copy ──────────────────────────┐ CopyError: the state has a name,
      ▲    28, 26      8 bytes   own end    records; tables, extent        │ nothing is cut off or overwritten,
      └──────────────────────────── a pause ◀───────────────────────────────┘ and the next attempt continues

Every attempt begins where this log ends, so it does not matter where the last one was interrupted. Problems that do not
pass by themselves are tried again as well, at the same pace: the owner may have repaired the master.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections import Counter
from collections.abc import Callable, Collection
from typing import TYPE_CHECKING, Any

from tallystick.node.broker.copying.link import MasterLink
from tallystick.node.broker.copying.master import Extent, Master, MasterError
from tallystick.node.broker.copying.other_slaves import OtherSlaves
from tallystick.node.broker.copying.protocol import (
    ALL_FROM,
    LASTING,
    Comparison,
    CopyError,
    CopyProblem,
    Parts,
    Records,
)
from tallystick.node.broker.copying.tables import PERIOD_S, CopiedTables
from tallystick.store.clock import steady_ms
from tallystick.store.engine.log_copy import LogCopy

if TYPE_CHECKING:
    from tallystick.node.broker.broker import Broker
    from tallystick.node.broker.copying.followed_log import FollowedComparison, FollowedLog
    from tallystick.node.remoting.client import RemotingClient

_logger = logging.getLogger("tallystick.broker")

_RETRY_S = 2.0
_LOOK_S = 0.25
_EXTENT_PERIOD_MS = 1000
_CONNECT_S = 5.0
_OLDEST_TABLES_MS = 60_000
_OTHERS_PERIOD_S = 10.0


class Follower:
    """The copy of one master. Owns the connection, and what is known of the master.

    `problem` and `reason`: why it does not copy now; None and "" while it does.
    """

    def __init__(
        self,
        broker: Broker,
        client: RemotingClient,
        tables: CopiedTables,
        log: LogCopy | FollowedLog,
        begin_at: Callable[[int], None],
    ) -> None:
        """`begin_at(pos)`: begins the empty log at `pos`, for the next attempt."""
        self._broker = broker
        self._begin_at = begin_at
        self._client = client
        self.tables = tables
        self.log = log
        self.others = OtherSlaves(broker, client, self._own_ids)
        self._conflict: str | None = None  # another slave has an id of ours
        self.problem: CopyProblem | None = CopyProblem.NO_MASTER
        self.reason = "the master is not known yet"
        self.problems: Counter[CopyProblem] = Counter()
        """Ended attempts, by reason."""
        self.extent: Extent | None = None
        """The master's log, as it was last told; None: never."""
        self.compared = False
        """Whether this log was compared with the master's on the present connection."""
        self._was_compared = False  # on an earlier connection of this process
        self._address = ""
        self._ha_address = ""
        self._link: MasterLink | None = None
        self._past_bytes = 0
        self._found = asyncio.Event()  # a name server told another address of the master
        self._tasks: list[asyncio.Task[None]] = []

    # -- start and stop ------------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Copies from now on."""
        loop = asyncio.get_running_loop()
        self._tell_safe(self._on_safe)
        self._tasks = [
            loop.create_task(self._follow(), name="copy log"),
            loop.create_task(self._copy_tables(), name="copy tables"),
            loop.create_task(self._look_at_others(), name="look at other slaves"),
        ]

    async def stop(self) -> None:
        """Takes nothing from the master from now on. `start` continues."""
        tasks, self._tasks = self._tasks, []
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self._tell_safe(None)

    def _tell_safe(self, callback: Callable[[], None] | None) -> None:
        """`callback` is called when more of the log is safe."""
        assert self._broker.store.copies is not None
        self._broker.store.copies.on_sendable = callback

    def _on_safe(self) -> None:
        if self._link is not None:
            self._link.report_soon()

    # -- state ---------------------------------------------------------------------------------------------------------

    @property
    def master(self) -> Master | None:
        """The master, if its address is known."""
        return Master(self._client, self._address) if self._address else None

    @property
    def is_copying(self) -> bool:
        """Whether it is connected and its log is equal to the master's as far as it goes."""
        return self.problem is None and self.compared

    @property
    def behind_bytes(self) -> int:
        """Bytes of the master's log that are not here yet, as far as its end is known."""
        return 0 if self.extent is None else max(0, self.extent.end - self.log.end)

    @property
    def received_bytes(self) -> int:
        """Bytes that were received from the master since the start."""
        return self._past_bytes + (0 if self._link is None else self._link.received_bytes)

    @property
    def state(self) -> str:
        """One word for what it does: a problem, `copying`, or `following` near the master's end."""
        if self.problem is not None:
            return self.problem.value
        near = self.behind_bytes < self._broker.store.settings.haSlaveFallbehindMax
        return "following" if self.compared and near else "copying"

    def unready(self) -> str | None:
        """Why this copy does not serve reads well; None if it follows closely."""
        if self.problem is not None:
            return f"{self.problem.value}: {self.reason}"
        if self.state != "following":
            return f"copying the log of the master: {self.behind_bytes} bytes are missing"
        if (age_ms := self.tables.age_ms) is None or age_ms > _OLDEST_TABLES_MS:
            return f"the tables of the master are not copied: {self.tables.error}"
        return None

    def to_json(self) -> dict[str, Any]:
        """For GET /node."""
        extent = self.extent
        return {
            "state": self.state,
            "reason": self.reason or None,
            "lasting": self.problem in LASTING,
            "master": self._address,
            "haAddress": self._copied_from(),
            "pos": self.log.end,
            "safePos": self.log.safe_end,
            "masterPos": None if extent is None else extent.end,
            "behindBytes": None if extent is None else self.behind_bytes,
            "receivedBytes": self.received_bytes,
            "tablesAgeMillis": self.tables.age_ms,
            "tablesError": self.tables.error,
            "problems": {problem.value: count for problem, count in sorted(self.problems.items(), key=str)},
        }

    def _own_ids(self) -> Collection[int]:
        """Broker ids that no other slave of the master may have."""
        return (self._broker.settings.brokerId,)

    async def _look_at_others(self) -> None:
        while True:
            self._conflict = await self.others.conflict()
            if self._conflict is not None and self._link is not None:
                self._link.end(CopyError(CopyProblem.UNSUPPORTED, self._conflict))
            await asyncio.sleep(_RETRY_S if self._conflict else _OTHERS_PERIOD_S)

    # -- the master ----------------------------------------------------------------------------------------------------

    def on_master(self, address: str, ha_address: str) -> None:
        """A name server told where the master is: for clients, and for slaves."""
        if address in (str(self._broker.advertised), self._broker.settings.externalAddress):
            return  # a name server still knows this broker as the master that it once was
        changed = (address, ha_address) != (self._address, self._ha_address)
        if changed and self._address:
            _logger.info("the master is now %s (copied from %s)", address, ha_address or "nowhere")
        self._address, self._ha_address = address, ha_address
        if changed:
            self._found.set()
        if changed and self._link is not None:
            self._link.end(CopyError(CopyProblem.UNREACHABLE, f"the master moved to {address}"))

    def _copied_from(self) -> str:
        return self._broker.store.settings.haMasterAddress or self._ha_address

    # -- the log -------------------------------------------------------------------------------------------------------

    async def _follow(self) -> None:
        while True:
            try:
                await self._attempt()
            except CopyError as error:
                self._note(error)
            except MasterError as error:
                self._note(CopyError(CopyProblem.UNREACHABLE, str(error)))
            except OSError as error:
                self._note(CopyError(CopyProblem.DISK, str(error)))
            finally:
                self._part()
            self._found.clear()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_RETRY_S):
                    await self._found.wait()

    def _note(self, error: CopyError) -> None:
        self.problems[error.problem] += 1
        if error.problem is not self.problem:
            level = logging.ERROR if error.problem in LASTING else logging.WARNING
            _logger.log(level, "the log of the master is not copied (%s): %s", error.problem.value, error)
        self.problem, self.reason = error.problem, str(error)

    def _part(self) -> None:
        link, self._link = self._link, None
        self.compared = False
        if link is not None:
            self._past_bytes += link.received_bytes
            if self.problem is None:
                self.problem, self.reason = CopyProblem.UNREACHABLE, "the copy was stopped"
            link.end(CopyError(CopyProblem.UNREACHABLE, "the copy was stopped"))

    async def _attempt(self) -> None:
        """Copies until something ends it: it always raises."""
        master, place = self.master, self._copied_from()
        if self._conflict is not None:
            raise CopyError(CopyProblem.UNSUPPORTED, self._conflict)
        if master is None or not place:
            self._broker.register_soon()  # the answer names the master
            name = self._broker.settings.brokerName
            known = f"the master of {name} accepts no slaves" if master else f"no name server knows a master of {name}"
            raise CopyError(CopyProblem.NO_MASTER, known)
        self.log.write()
        if (trouble := self.log.trouble()) is not None:
            raise CopyError(CopyProblem.DISK, trouble)
        theirs = await master.settings()
        await self._prepare(theirs)
        own_end = self.log.end  # before the master is asked: its log only grows
        self._check_extent(await master.extent(), own_end)
        while self.extent is not None and self.extent.end == 0:
            self._agree()  # there is nothing to copy, and nothing to differ
            await asyncio.sleep(_LOOK_S)
            self._check_extent(await master.extent(), own_end)
        link = await self._connect(place)
        _logger.info("copying the log of the master %s from %d on (%s)", master.address, own_end, place)
        asked_ms = steady_ms()
        while True:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_LOOK_S):
                    await asyncio.shield(link.ended)
            settings, now_ms = self._broker.store.settings, steady_ms()
            link.look(now_ms, settings.haSendHeartbeatInterval, settings.haHousekeepingInterval)
            self._go_on()
            if (trouble := self.log.trouble()) is not None:
                raise CopyError(CopyProblem.DISK, trouble)
            if now_ms - asked_ms >= _EXTENT_PERIOD_MS:
                asked_ms, end = now_ms, self.log.end
                with contextlib.suppress(MasterError):  # the connection tells whether the master is there
                    self._check_extent(await master.extent(), end)

    def _check_extent(self, extent: Extent, own_end: int) -> None:
        """CopyError: the two logs cannot be one. `own_end`: of this log before the master was asked."""
        self.extent = extent
        if self.log.is_empty and extent.begin > own_end:
            self._begin_at(extent.begin)
            raise CopyError(CopyProblem.DELETED, f"the master's log begins at {extent.begin}: starting again there")
        if own_end > extent.end:
            text = f"this log ends at {own_end}, and the log of the master {self._address} at {extent.end}"
            raise CopyError(CopyProblem.AHEAD, text)
        if own_end < extent.begin:
            text = f"this log ends at {own_end}, and the log of the master {self._address} begins at {extent.begin}"
            raise CopyError(CopyProblem.DELETED, text)
        self.log.keep_from(extent.begin)

    async def _prepare(self, theirs: dict[str, str]) -> None:
        """The master has these settings: CopyError if its log cannot be copied."""
        check_settings(self._broker, theirs, own_segment_bytes=self._segment_bytes)

    @property
    def _segment_bytes(self) -> int:
        return self._broker.store.settings.mappedFileSizeCommitLog

    async def _comparison(self) -> tuple[int, Comparison | FollowedComparison]:
        """Where the transfer begins, and what compares its first bytes."""
        assert isinstance(self.log, LogCopy)
        # To 0 a master answers with its newest segment.
        begin = max(ALL_FROM, self.log.compare_from(again=self._was_compared))
        return begin, Comparison(begin, self.log.end, self.log.read)

    def _go_on(self) -> None:
        """Called often while it copies."""

    async def _connect(self, place: str) -> MasterLink:
        begin, comparison = await self._comparison()
        end = self.log.end
        parts = Parts(begin, self._segment_bytes)
        records = self._records = Records(self.log.append, lambda: self.log.end)

        def take(data: bytes) -> None:
            rest = comparison.take(parts.receive(data))
            if comparison.is_done and not self.compared:
                self._agree()
            if rest:
                records.take(rest)
            self._took()

        if end == 0:
            records.take(b"\0")  # the byte before ALL_FROM
        host, _, port = place.rpartition(":")
        loop = asyncio.get_running_loop()
        link = MasterLink(begin, take, lambda: min(self.log.safe_end, parts.pos))
        try:
            async with asyncio.timeout(_CONNECT_S):
                await loop.create_connection(lambda: link, host.strip("[]"), int(port))
        except (OSError, TimeoutError) as error:
            reason = str(error) or "no answer"
            raise CopyError(CopyProblem.UNREACHABLE, f"{place} accepts no connection: {reason}") from error
        self._link = link
        if comparison.is_done:
            self._agree()
        return link

    def _took(self) -> None:
        """Called after each piece that was received."""

    def _agree(self) -> None:
        """The two logs are the same as far as this one goes: from now on it grows."""
        self.problem, self.reason, self.compared, self._was_compared = None, "", True, True

    # -- the tables ----------------------------------------------------------------------------------------------------

    async def copy_tables(self, master: Master) -> None:
        """Copies the tables now, for the last time. MasterError, OSError."""
        await self._copy_tables_once(master)

    async def _copy_tables_once(self, master: Master) -> None:
        await self.tables.copy(master, self._reach)

    async def _reach(self, pos: int) -> None:
        while self.log.end < pos or not self.is_copying:  # noqa: ASYNC110  # the log has no event
            await asyncio.sleep(_LOOK_S)
        await self._broker.store.flush()

    def _dispatched(self) -> int:
        """Everything before this position of the master is in the queues."""
        return self._broker.store.dispatched_pos

    async def _copy_tables(self) -> None:
        while True:
            pause_s = _RETRY_S
            if (master := self.master) is not None:
                with contextlib.suppress(MasterError, OSError):  # `tables.error` has it
                    await self._copy_tables_once(master)
                    pause_s = PERIOD_S
            for name in self.tables.deleted_topics(self._dispatched()):
                _logger.info("the master deleted topic %s: removing its queues", name)
                self._broker.store.queues.remove_topic(name)
            await asyncio.sleep(pause_s)


def check_settings(broker: Broker, theirs: dict[str, str], *, own_segment_bytes: int) -> None:
    """CopyError: the master's log cannot be copied here."""
    own = own_segment_bytes
    if theirs.get("enableDLegerCommitLog") == "true":
        text = "the master is a member of a DLedger group, which serves no slaves"
        raise CopyError(CopyProblem.UNSUPPORTED, text)
    size = theirs.get("mappedFileSizeCommitLog", "")
    if size != str(own):
        text = f"the master has mappedFileSizeCommitLog={size or 'unknown'}, this broker {own}: set it to the master's"
        raise CopyError(CopyProblem.SEGMENT_SIZE, text)
    levels = broker.store.settings.messageDelayLevel
    other = theirs.get("messageDelayLevel", levels)
    if other.split() != levels.split():
        text = f"the master has messageDelayLevel={other!r}, this broker {levels!r}: set it to the master's"
        raise CopyError(CopyProblem.UNSUPPORTED, text)
