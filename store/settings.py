# ruff: noqa: N815
"""The settings of a store, with the names, units and defaults of RocketMQ 4.8 (`MessageStoreConfig`) where it has them.

Each field is declared by `setting` (see `setting.py`); `docs/settings.md` is made from these declarations. `validate()`
checks types, ranges, and conditions between settings; no other code of the store checks them again.

The store's address is an argument of `MessageStore.open`: it belongs to the broker, not to the files.

Source: store/config/MessageStoreConfig.java of RocketMQ 4.8.0, and the system properties `rocketmq.broker.*`.
"""

from __future__ import annotations

import enum
import re
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Self

from tallystick.store.setting import Change, SettingsError, check, setting

__all__ = ["BrokerRole", "FlushDiskType", "SettingsError", "SettingsInUse", "StoreSettings", "refuse_unsupported"]

_INT = 2**31 - 1
_LONG = 2**63 - 1
_UNIT_BYTES = 20  # one unit of a ConsumeQueue; the file format fixes it
_DELAY_UNITS_MS = {"s": 1000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}
_DELAY = re.compile(r"([0-9]{1,9})([smhd])")

_RUNNING = Change.RUNNING
_INTERVAL = (1, _INT)
_COUNT = (0, _INT)
_ONE_APPENDER = "one thread appends to the log, so there is no lock"


class FlushDiskType(enum.Enum):
    """When the broker acknowledges a message: when the page cache has it (ASYNC_FLUSH) or the disk (SYNC_FLUSH)."""

    ASYNC_FLUSH = "ASYNC_FLUSH"
    SYNC_FLUSH = "SYNC_FLUSH"


class BrokerRole(enum.Enum):
    """A master accepts messages (SYNC_MASTER also waits for a slave); a slave accepts none."""

    ASYNC_MASTER = "ASYNC_MASTER"
    SYNC_MASTER = "SYNC_MASTER"
    SLAVE = "SLAVE"


def _home_store() -> str:
    return str(Path("~/store").expanduser())


@dataclass(frozen=True, slots=True)
class StoreSettings:
    """The settings of one store."""

    storePathRootDir: str = setting(
        _home_store,
        "Folder of the store. A lock file prevents that two processes use one folder.",
        operator=True,
        default_text="`~/store`",
    )
    storePathCommitLog: str = setting(
        "",
        "Folder of the commit log. Empty: `commitlog` in `storePathRootDir` (RocketMQ: `$HOME/store/commitlog`).",
        operator=True,
    )

    # -- sizes ---------------------------------------------------------------------------------------------------------
    mappedFileSizeCommitLog: int = setting(
        1 << 30,
        "Size of a segment of the log.",
        unit="bytes",
        # A segment holds at least one small record and its filler. The index and tools use 32-bit positions in it.
        range=(256, _INT),
        change=Change.NEVER,
        operator=True,
        same_in_group=True,
    )
    mappedFileSizeConsumeQueue: int = setting(
        300_000 * _UNIT_BYTES,
        "Size of a ConsumeQueue segment, rounded up to whole units of 20 bytes.",
        unit="bytes",
        range=(_UNIT_BYTES, _INT - _UNIT_BYTES),
        change=Change.NEVER,
    )
    enableConsumeQueueExt: bool = setting(
        False,
        "Write extension units (tags code, store time, bit map of SQL92 filters) beside the ConsumeQueues.",
    )
    mappedFileSizeConsumeQueueExt: int = setting(
        48 << 20, "Size of a segment of a ConsumeQueue extension.", unit="bytes", range=(64, _INT), change=Change.NEVER
    )
    bitMapLengthConsumeQueueExt: int = setting(
        64,
        "Length of the filter bit map of an extension unit.",
        unit="bits",
        range=(0, 8 * 32_000),
        no_effect="`expectConsumerNumUseFilter` and `maxErrorRateOfBloomFilter` determine the length, in RocketMQ too",
    )
    maxMessageSize: int = setting(
        4 << 20,
        "Largest record (the whole record, not only the body) and largest batch. The broker also refuses a record "
        "that does not fit in a segment. A member of a replicated group takes a change at the next start.",
        unit="bytes",
        range=(128, _INT),
        change=_RUNNING,
        same_in_group=True,
    )

    # -- flushing ------------------------------------------------------------------------------------------------------
    flushDiskType: FlushDiskType = setting(
        FlushDiskType.ASYNC_FLUSH,
        "With ASYNC_FLUSH, messages that were not flushed yet are lost when the machine (not only the process) fails. "
        "A member of a replicated group has the default SYNC_FLUSH.",
        operator=True,
    )
    syncFlushTimeout: int = setting(
        5_000,
        "Longest time that a SYNC_FLUSH send waits for the disk before it gets an error.",
        unit="ms",
        range=_INTERVAL,
        change=_RUNNING,
    )
    flushIntervalCommitLog: int = setting(
        500,
        "ASYNC_FLUSH: longest time between two checks for data to flush.",
        unit="ms",
        range=_INTERVAL,
        change=_RUNNING,
    )
    flushCommitLogTimed: bool = setting(
        False,
        "ASYNC_FLUSH: wait for the whole interval between two flushes, even when messages arrive.",
        change=_RUNNING,
    )
    flushCommitLogLeastPages: int = setting(
        4,
        "ASYNC_FLUSH: flush when so many pages of 4096 bytes are dirty. 0: always.",
        unit="pages",
        range=_COUNT,
        change=_RUNNING,
    )
    flushCommitLogThoroughInterval: int = setting(
        10_000, "ASYNC_FLUSH: flush after this time, however little is dirty.", unit="ms", range=_COUNT, change=_RUNNING
    )
    commitIntervalCommitLog: int = setting(
        200,
        "With `transientStorePoolEnable`: longest time between two checks for data to write to the file.",
        unit="ms",
        range=_INTERVAL,
        change=_RUNNING,
    )
    commitCommitLogLeastPages: int = setting(
        4,
        "With `transientStorePoolEnable`: write when so many pages of 4096 bytes wait. 0: always.",
        unit="pages",
        range=_COUNT,
        change=_RUNNING,
    )
    commitCommitLogThoroughInterval: int = setting(
        200,
        "With `transientStorePoolEnable`: write after this time, however little waits. Consumers see a message when "
        "it is written.",
        unit="ms",
        range=_COUNT,
        change=_RUNNING,
    )
    flushIntervalConsumeQueue: int = setting(
        1_000,
        "Time between two writes of the ConsumeQueues and the progress mark.",
        unit="ms",
        range=_INTERVAL,
        change=_RUNNING,
    )
    flushConsumeQueueLeastPages: int = setting(
        2,
        "Flush a ConsumeQueue when so many pages are dirty.",
        unit="pages",
        range=_COUNT,
        no_effect="each flush covers all ConsumeQueues; flushConsumeQueueThoroughInterval says how often",
    )
    flushConsumeQueueThoroughInterval: int = setting(
        60_000,
        "Time after which the broker flushes all ConsumeQueues and the checkpoint. A recovery reads the log from the "
        "last flush.",
        unit="ms",
        range=_COUNT,
        change=_RUNNING,
    )

    # -- sending -------------------------------------------------------------------------------------------------------
    useReentrantLockWhenPutMessage: bool = setting(
        False, "Lock for sends: reentrant or spinning.", no_effect=_ONE_APPENDER
    )
    osPageCacheBusyTimeOutMills: int = setting(
        1_000,
        "If a write to the log takes longer, the broker refuses other sends as busy.",
        unit="ms",
        range=_INTERVAL,
        change=_RUNNING,
    )
    debugLockEnable: bool = setting(False, "Log threads that wait for the lock of sends.", no_effect=_ONE_APPENDER)
    transientStorePoolEnable: bool = setting(
        False,
        "Collect messages in a buffer that is locked in memory, and write them to the file later. Only with "
        "ASYNC_FLUSH, and not as SLAVE.",
    )
    transientStorePoolSize: int = setting(
        5, "Size of that buffer, in segments of the log.", unit="segments", range=(1, 1024)
    )
    fastFailIfNoBufferInStorePool: bool = setting(
        False,
        "Refuse sends as busy (2) while the buffer of `transientStorePoolEnable` is full. Off: the broker writes a "
        "full buffer to the file at once, and the sends wait for that.",
        change=_RUNNING,
    )
    warmMapedFileEnable: bool = setting(
        False,
        "Touch every page of a new segment and lock it in memory, so that no send waits for a page.",
        change=_RUNNING,
    )
    flushLeastPagesWhenWarmMapedFile: int = setting(
        4096,
        "While a segment is touched with SYNC_FLUSH: sync after so many pages.",
        unit="pages",
        range=(1, _INT),
        change=_RUNNING,
    )

    # -- reading -------------------------------------------------------------------------------------------------------
    maxTransferBytesOnMessageInMemory: int = setting(
        256 << 10,
        "Size of the answer to a pull of recent messages. An answer always contains at least one message.",
        unit="bytes",
        range=(1, _INT),
        change=_RUNNING,
    )
    maxTransferCountOnMessageInMemory: int = setting(
        32,
        "Number of messages in the answer to a pull of recent messages.",
        unit="messages",
        range=(1, _INT),
        change=_RUNNING,
    )
    maxTransferBytesOnMessageInDisk: int = setting(
        64 << 10,
        "Size of the answer to a pull of old messages, which may have to come from the disk.",
        unit="bytes",
        range=(1, _INT),
        change=_RUNNING,
    )
    maxTransferCountOnMessageInDisk: int = setting(
        8,
        "Number of messages in the answer to a pull of old messages.",
        unit="messages",
        range=(1, _INT),
        change=_RUNNING,
    )
    accessMessageInMemoryMaxRatio: int = setting(
        40,
        "Part of the machine's memory that the newest part of the log is assumed to fill. Older messages count as old "
        "for the four settings above.",
        unit="%",
        range=(0, 100),
        change=_RUNNING,
    )
    offsetCheckInSlave: bool = setting(False, "A slave also corrects the offsets of pulls that are out of range.")
    diskFallRecorded: bool = setting(
        True,
        "Count for each group how many bytes behind the end of the log it reads (`GROUP_GET_FALL_SIZE`).",
        change=_RUNNING,
    )

    # -- the index -----------------------------------------------------------------------------------------------------
    messageIndexEnable: bool = setting(True, "Index messages by their keys. Without it, queries by key find nothing.")
    messageIndexSafe: bool = setting(
        False,
        "After a kill, recover from a position where the index was durable as well. Without it, the broker rebuilds "
        "an incomplete index file from the log.",
    )
    # 2^31 - 1 entries would leave no room in the signed 32-bit counters of the file's header.
    maxHashSlotNum: int = setting(
        5_000_000, "Number of slots of an index file.", unit="slots", range=(1, 500_000_000), change=Change.NEVER
    )
    maxIndexNum: int = setting(
        5_000_000 * 4,
        "Number of entries of an index file. The format does not use the first one.",
        unit="entries",
        range=(2, 500_000_000),
        change=Change.NEVER,
    )
    maxMsgsNumBatch: int = setting(
        64,
        "Largest number of messages in the answer to a query by key.",
        unit="messages",
        range=(1, _INT),
        change=_RUNNING,
    )
    defaultQueryMaxNum: int = setting(
        32,
        "Number of messages in the answer to a query by unique key.",
        unit="messages",
        range=(1, _INT),
        change=_RUNNING,
    )

    # -- cleaning ------------------------------------------------------------------------------------------------------
    cleanResourceInterval: int = setting(
        10_000,
        "Time between two checks for segments to delete, and for messages that expire by the retention of their topic.",
        unit="ms",
        range=_INTERVAL,
        change=_RUNNING,
    )
    deleteCommitLogFilesInterval: int = setting(
        100,
        "Pause after each deleted segment of the log: the file system may need some time for a large file.",
        unit="ms",
        range=_COUNT,
        change=_RUNNING,
    )
    deleteConsumeQueueFilesInterval: int = setting(
        100,
        "Pause after each deleted segment of a ConsumeQueue.",
        unit="ms",
        range=_COUNT,
        no_effect="the broker deletes the old segments of all ConsumeQueues in one step; they are small",
    )
    destroyMapedFileIntervalForcibly: int = setting(
        120_000,
        "Time after which a segment is deleted although it is read.",
        unit="ms",
        range=_COUNT,
        no_effect="a segment can be deleted at any time: the system keeps its data until the last reader ends",
    )
    redeleteHangedFileInterval: int = setting(
        120_000,
        "Time until the broker tries again to delete a segment after an error.",
        unit="ms",
        range=_COUNT,
        change=_RUNNING,
    )
    deleteWhen: str = setting(
        "04",
        "Hours of the day (local time, separated by `;`) in which the broker deletes expired segments.",
        change=_RUNNING,
    )
    fileReservedTime: int = setting(
        72,
        "Time after its last change when a segment expires.",
        unit="hours",
        range=(0, 24 * 366 * 100),
        change=_RUNNING,
    )
    diskMaxUsedSpaceRatio: int = setting(
        75,
        "Used part of the disk above which the broker deletes expired segments at any hour. Values below 10 count as "
        "10, values above 95 as 95.",
        unit="%",
        range=(0, 100),
        change=_RUNNING,
    )
    cleanFileForciblyEnable: bool = setting(
        True,
        "On a nearly full disk, delete the oldest segments before they expire. Off: the broker refuses sends until "
        "segments expire.",
        change=_RUNNING,
    )
    diskSpaceWarningLevelRatio: float = setting(
        0.90,
        "Used part of the disk above which the broker refuses sends. (In RocketMQ a system property.)",
        range=(0.0, 1.0),
        change=_RUNNING,
    )
    diskSpaceCleanForciblyRatio: float = setting(
        0.85,
        "Used part of the disk above which the broker deletes the oldest segments at once. Below it the broker "
        "accepts sends again.",
        range=(0.0, 1.0),
        change=_RUNNING,
    )

    # -- scrubbing -----------------------------------------------------------------------------------------------------
    scrubBytesPerSecond: int = setting(
        -1,
        "Rate at which the broker reads the log again in the background to find damage. -1: twice the rate that reads "
        "the whole store once a week, and at least 262144. 0: no scrubbing.",
        unit="bytes/s",
        range=(-1, _LONG),
        own=True,
    )

    # -- recovery ------------------------------------------------------------------------------------------------------
    checkCRCOnRecover: bool = setting(
        True, "Recovery checks the CRC of bodies. Off: an incomplete body can become a message."
    )
    duplicationEnable: bool = setting(
        False, "Dispatch only messages below a confirmed offset. The broker refuses true: use a replicated group."
    )

    # -- delayed messages ----------------------------------------------------------------------------------------------
    messageDelayLevel: str = setting(
        "1s 5s 10s 30s 1m 2m 3m 4m 5m 6m 7m 8m 9m 10m 20m 30m 1h 2h",
        "Delays of level 1, 2, and so on: a number and s, m, h or d. Messages store the level, not the delay: a "
        "change applies to messages that wait.",
        same_in_group=True,
    )
    flushDelayOffsetInterval: int = setting(
        10_000,
        "Time between two writes of the delivery offsets. After a crash the broker delivers messages of this time "
        "twice. A member of a replicated group has the default 1000.",
        unit="ms",
        range=_INTERVAL,
    )

    # -- timers --------------------------------------------------------------------------------------------------------
    timerWheelEnable: bool = setting(
        True,
        "Deliver messages at any time (properties `TIMER_DELIVER_MS`, `TIMER_DELAY_MS`, `TIMER_DELAY_SEC`; the name is "
        "RocketMQ 5's). Off: the broker refuses such messages, does not deliver those that wait, and does not keep "
        "their segments.",
        same_in_group=True,
    )
    timerMaxDelaySec: int = setting(
        3 * 86_400,
        "Longest time until the delivery of a message. The broker refuses a longer one. (The name is RocketMQ 5's.)",
        unit="s",
        range=(1, _INT),
    )
    timerPrecisionMs: int = setting(
        1_000,
        "Unit to which `TIMER_OUT_MS` is rounded down, as RocketMQ 5 needs it. This broker delivers at the exact "
        "millisecond. A message that RocketMQ 5 stored without its exact time is delivered so much later. (The name is "
        "RocketMQ 5's.)",
        unit="ms",
        range=(1, 60_000),
        same_in_group=True,
    )

    # -- replication ---------------------------------------------------------------------------------------------------
    brokerRole: BrokerRole = setting(
        BrokerRole.ASYNC_MASTER,
        "Whether a send waits for a slave. ASYNC_MASTER: it does not. SYNC_MASTER: it is answered with "
        "FLUSH_SLAVE_TIMEOUT (12) if no slave has the message after syncFlushTimeout, and with SLAVE_NOT_AVAILABLE "
        "(11) if no slave is near enough. SLAVE: the broker copies the log and the tables of the master with its "
        "`brokerName`, serves reads, and refuses changes until `tally promote`; it needs a `brokerId` above 0, except "
        "in a replicated group (`enableDLegerCommitLog`): a new group with SLAVE follows the master as a whole. A "
        "group cannot have SYNC_MASTER.",
        operator=True,
    )
    haListenPort: int = setting(
        -1,
        "Port at which slaves of RocketMQ 4.8 copy the log. 0: none. The default is the port after `listenPort`; if it "
        "is in use, the broker starts without it. A slave can read all messages: see `haAllowedAddresses`. A member of "
        "a replicated group has no such port.",
        range=(-1, 65_535),
        operator=True,
        default_text="`listenPort` + 1",
    )
    haMasterAddress: str = setting(
        "",
        "Where a slave copies the log: `host:port` of its master's port for slaves. Only a slave uses it.",
        operator=True,
        default_text="what the name servers know of the master with the same `brokerName`",
    )
    haSendHeartbeatInterval: int = setting(
        5_000,
        "Time without data after which a master sends a heartbeat to a slave, and a slave a report to its master.",
        unit="ms",
        range=_INTERVAL,
    )
    haHousekeepingInterval: int = setting(
        20_000,
        "Time without a word of the other side after which master and slave close their connection.",
        unit="ms",
        range=_INTERVAL,
    )
    haTransferBatchSize: int = setting(
        32 << 10,
        "Largest part of the log that is sent to a slave at once. RocketMQ's slaves accept at most 4 MiB, so larger "
        "values mean 4 MiB.",
        unit="bytes",
        range=(1, _INT),
    )
    haSlaveFallbehindMax: int = setting(
        256 << 20,
        "SYNC_MASTER: sends do not wait for a slave that is this far behind; they are answered with "
        "SLAVE_NOT_AVAILABLE (11).",
        unit="bytes",
        range=(0, _LONG),
    )
    enableDLegerCommitLog: bool = setting(
        False,
        "Keep the log in the layout of DLedger and replicate it through Raft. (The spelling is RocketMQ's.)",
        change=Change.NEVER,
        operator=True,
        same_in_group=True,
    )
    dLegerGroup: str = setting(
        "", "Name of the replicated group: the broker's name.", operator=True, same_in_group=True
    )
    dLegerPeers: str = setting("", "Members of the group: `n0-host:port;n1-host:port;...`.", operator=True)
    dLegerSelfId: str = setting("", "This member, such as `n0`.", change=Change.NEVER, operator=True)
    preferredLeaderId: str = setting(
        "", "The member that becomes leader when it has all entries.", operator=True, same_in_group=True
    )
    isEnableBatchPush: bool = setting(
        False,
        "Send several entries in one request to a follower.",
        no_effect="the leader always sends several entries in one request",
    )

    # -- limits --------------------------------------------------------------------------------------------------------
    maxOpenQueueFiles: int = setting(
        4096,
        "Number of ConsumeQueue files that the broker keeps open. With more queues in use, each write opens and "
        "closes a file.",
        unit="files",
        range=(1, _INT),
        own=True,
    )
    dispatchMaxBytes: int = setting(
        1 << 20,
        "Part of the log that the broker dispatches in one step. Pulls of the queues wait meanwhile.",
        unit="bytes",
        range=(1, _INT),
        own=True,
    )

    def validate(self) -> None:
        """Checks every field. SettingsError: names the first setting that cannot be used."""
        check(self)
        if not self.storePathRootDir:
            raise SettingsError("storePathRootDir", "must name a folder")
        if self.diskSpaceCleanForciblyRatio > self.diskSpaceWarningLevelRatio:
            raise SettingsError(
                "diskSpaceCleanForciblyRatio",
                f"{self.diskSpaceCleanForciblyRatio} is above diskSpaceWarningLevelRatio="
                f"{self.diskSpaceWarningLevelRatio}: the broker would refuse sends before it deletes a segment",
            )
        self.delay_levels_ms()
        self.delete_hours()

    @property
    def root(self) -> Path:
        """The store's folder; `~` is the home directory."""
        return Path(self.storePathRootDir).expanduser()

    @property
    def commit_log_folder(self) -> Path:
        """The folder of the commit log's segments."""
        return Path(self.storePathCommitLog).expanduser() if self.storePathCommitLog else self.root / "commitlog"

    @property
    def log_folder(self) -> Path:
        """The folder of the log's segments, in RocketMQ's layout or in DLedger's."""
        if self.enableDLegerCommitLog:
            return self.root / f"dledger-{self.dLegerSelfId}" / "data"
        return self.commit_log_folder

    @property
    def queue_segment_bytes(self) -> int:
        """`mappedFileSizeConsumeQueue`, rounded up to whole units."""
        return -(-self.mappedFileSizeConsumeQueue // _UNIT_BYTES) * _UNIT_BYTES

    @property
    def index_file_bytes(self) -> int:
        """Bytes of one index file: header, slots and entries."""
        return 40 + 4 * self.maxHashSlotNum + 20 * self.maxIndexNum

    @property
    def transient_pool_enabled(self) -> bool:
        """Whether the write buffer is used: it is enabled, and the broker has neither SYNC_FLUSH nor the role SLAVE.

        RocketMQ ignores the setting in those cases. A SYNC_MASTER does not use it here: what is only in the buffer
        cannot be sent to a slave.
        """
        return (
            self.transientStorePoolEnable
            and self.flushDiskType is FlushDiskType.ASYNC_FLUSH
            and self.brokerRole is BrokerRole.ASYNC_MASTER
        )

    def delay_levels_ms(self) -> tuple[int, ...]:
        """Returns the delay of each level: level 1 at index 0. SettingsError: `messageDelayLevel` cannot be parsed."""
        delays = []
        for part in self.messageDelayLevel.split():
            match = _DELAY.fullmatch(part)
            if match is None:
                raise SettingsError("messageDelayLevel", f"{part!r} is not a number followed by s, m, h or d")
            delays.append(int(match[1]) * _DELAY_UNITS_MS[match[2]])
        return tuple(delays)

    def delete_hours(self) -> frozenset[int]:
        """Returns the hours of `deleteWhen`. SettingsError: one of them is not an hour."""
        hours = set()
        for part in filter(None, (piece.strip() for piece in self.deleteWhen.split(";"))):
            if not (part.isascii() and part.isdigit() and int(part) <= 23):
                raise SettingsError("deleteWhen", f"{part!r} is not an hour from 00 to 23")
            hours.add(int(part))
        return frozenset(hours)


class SettingsInUse(StoreSettings):
    """The settings of an open store. Its parts share this object, and read a setting when they need it.

    Parts that derive something from a setting have a method `settings_changed`.
    """

    __slots__ = ()

    @classmethod
    def of(cls, settings: StoreSettings) -> Self:
        """Returns a copy that can change."""
        return cls(**{item.name: getattr(settings, item.name) for item in fields(settings)})

    def take(self, changed: StoreSettings) -> None:
        """Changes all settings to those of `changed`, which were checked."""
        for item in fields(changed):
            object.__setattr__(self, item.name, getattr(changed, item.name))


_USE_A_GROUP = "use a replicated group (enableDLegerCommitLog) for copies on other machines"


def refuse_unsupported(settings: StoreSettings) -> None:
    """SettingsError: names the first setting of RocketMQ that a broker cannot have here, and what to use instead."""
    role = settings.brokerRole
    if role is BrokerRole.SYNC_MASTER and settings.enableDLegerCommitLog:
        raise SettingsError("brokerRole", f"{role.name} is not supported in a replicated group, which has no slaves")
    if role is BrokerRole.SYNC_MASTER and settings.haListenPort == 0:
        raise SettingsError("haListenPort", "must not be 0 with brokerRole=SYNC_MASTER: no slave could connect")
    address = settings.haMasterAddress
    host, _, port = address.rpartition(":")
    if address and not (host and port.isascii() and port.isdigit() and 0 < int(port) < 65_536):
        raise SettingsError("haMasterAddress", f"{address!r} is not an address of the form host:port")
    if settings.duplicationEnable:
        raise SettingsError("duplicationEnable", f"{settings.duplicationEnable!r} is not supported: {_USE_A_GROUP}")
