# ruff: noqa: N815
"""What a store may be told; names, units and defaults are RocketMQ 4.8's (`MessageStoreConfig`) where it has them.

Intervals are milliseconds and sizes bytes unless the docstring says otherwise. A field whose behaviour is our own says
so. `validate()` checks types, ranges and what fields ask of each other; nothing else in the store checks them again.

The store's address is an argument of `MessageStore.open`: it belongs to the broker, not to the files.

Source: store/config/MessageStoreConfig.java of RocketMQ 4.8.0, and the system properties `rocketmq.broker.*`.
"""

from __future__ import annotations

import enum
import re
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

_INT = 2**31 - 1
_LONG = 2**63 - 1
_UNIT_BYTES = 20  # fixed: it is on disks. One unit of a ConsumeQueue
_DELAY_UNITS_MS = {"s": 1000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}
_DELAY = re.compile(r"([0-9]{1,9})([smhd])")


class SettingsError(ValueError):
    """A setting cannot be used; `key` is its name, `reason` what is wrong with it."""

    def __init__(self, key: str, reason: str) -> None:
        super().__init__(f"{key}: {reason}")
        self.key = key
        self.reason = reason


class FlushDiskType(enum.Enum):
    """When a put is answered: after the page cache has it (ASYNC_FLUSH) or after the disk has it (SYNC_FLUSH)."""

    ASYNC_FLUSH = "ASYNC_FLUSH"
    SYNC_FLUSH = "SYNC_FLUSH"


class BrokerRole(enum.Enum):
    """A master takes puts (SYNC_MASTER: and waits for a slave); a slave takes none."""

    ASYNC_MASTER = "ASYNC_MASTER"
    SYNC_MASTER = "SYNC_MASTER"
    SLAVE = "SLAVE"


def _home_store() -> str:
    return str(Path("~/store").expanduser())


@dataclass(frozen=True, slots=True)
class StoreSettings:
    """Settings of one store. They hold from `open` to `close`; sizes of segments hold for the store's whole life."""

    storePathRootDir: str = field(default_factory=_home_store)
    """Folder of everything but, perhaps, the commit log. Two processes must not share one: its lock file sees to it."""
    storePathCommitLog: str = ""
    """Folder of the commit log; empty: `commitlog` under the root. (RocketMQ: always $HOME/store/commitlog.)"""

    # -- sizes ---------------------------------------------------------------------------------------------------------
    mappedFileSizeCommitLog: int = 1 << 30
    """Bytes of one segment of the log. A store opened with another size than it was written with does not load."""
    mappedFileSizeConsumeQueue: int = 300_000 * _UNIT_BYTES
    """Bytes of one ConsumeQueue segment; rounded up to whole units of 20 bytes, see `queue_segment_bytes`."""
    enableConsumeQueueExt: bool = False
    """Write extension units with bit maps beside the queues."""
    mappedFileSizeConsumeQueueExt: int = 48 << 20
    """Bytes of one segment of the queues' extension."""
    bitMapLengthConsumeQueueExt: int = 64
    """Bits of the filter map of an extension unit. 0: none."""
    maxMessageSize: int = 4 << 20
    """Bytes of the largest record (the whole record, not the body), and of the largest batch. One that does not fit
    into a segment is refused as well."""

    # -- flushing ------------------------------------------------------------------------------------------------------
    flushDiskType: FlushDiskType = FlushDiskType.ASYNC_FLUSH
    """ASYNC_FLUSH loses what was not yet flushed when the machine (not only the process) dies."""
    syncFlushTimeout: int = 5_000
    """How long a SYNC_FLUSH put waits for the disk, and a SYNC_MASTER put for the slave, before it says so."""
    flushIntervalCommitLog: int = 500
    """ASYNC_FLUSH: at most this long between looks at what there is to flush."""
    flushCommitLogTimed: bool = False
    """ASYNC_FLUSH: sleep the whole interval, even when puts come."""
    flushCommitLogLeastPages: int = 4
    """ASYNC_FLUSH: flush when this many pages of 4096 bytes are dirty. 0: always."""
    flushCommitLogThoroughInterval: int = 10_000
    """ASYNC_FLUSH: after this long, flush however little there is."""
    commitIntervalCommitLog: int = 200
    """With the write buffer: at most this long between looks at what there is to write to the file."""
    commitCommitLogLeastPages: int = 4
    """With the write buffer: write when this many pages of 4096 bytes wait. 0: always."""
    commitCommitLogThoroughInterval: int = 200
    """With the write buffer: after this long, write however little there is. Readers do not see it earlier."""
    flushIntervalConsumeQueue: int = 1_000
    """Between flushes of the ConsumeQueues."""
    flushConsumeQueueLeastPages: int = 2
    """Flush a queue when this many pages of 4096 bytes are dirty. 0: always."""
    flushConsumeQueueThoroughInterval: int = 60_000
    """After this long, flush every queue and the checkpoint: the longer, the more there is to recover."""

    # -- the put path --------------------------------------------------------------------------------------------------
    useReentrantLockWhenPutMessage: bool = False
    """Taken for compatibility: puts are made by one thread, there is no lock to choose."""
    osPageCacheBusyTimeOutMills: int = 1_000
    """A put that holds the log longer than this makes others be refused as busy."""
    debugLockEnable: bool = False
    """Taken for compatibility."""
    transientStorePoolEnable: bool = False
    """Puts go to a locked buffer first. Only with ASYNC_FLUSH and not as SLAVE; see `transient_pool_enabled`."""
    transientStorePoolSize: int = 5
    """Buffers of one segment's size. All are locked in memory: with 1 GiB segments, five are 5 GiB."""
    fastFailIfNoBufferInStorePool: bool = False
    """Refuse puts at once, instead of waiting, when no buffer is free."""
    warmMapedFileEnable: bool = False
    """Touch every page of a new segment and lock it in memory, so that no put waits for a page."""
    flushLeastPagesWhenWarmMapedFile: int = 4096
    """While warming with SYNC_FLUSH: sync each time this many pages were touched."""

    # -- reading -------------------------------------------------------------------------------------------------------
    maxTransferBytesOnMessageInMemory: int = 256 << 10
    """Bytes of one answer to a pull of recent messages. One message is always given, however large."""
    maxTransferCountOnMessageInMemory: int = 32
    """Messages of one answer to a pull of recent messages."""
    maxTransferBytesOnMessageInDisk: int = 64 << 10
    """Bytes of one answer to a pull of old messages, which may have to come from the disk."""
    maxTransferCountOnMessageInDisk: int = 8
    """Messages of one answer to a pull of old messages."""
    accessMessageInMemoryMaxRatio: int = 40
    """Percent of the machine's memory that the newest part of the log is taken to fill: what is older is "on disk"."""
    offsetCheckInSlave: bool = False
    """Also a slave corrects the offsets of pulls that are out of range."""
    diskFallRecorded: bool = True
    """Count for each group how far behind the log's end it reads."""

    # -- the index -----------------------------------------------------------------------------------------------------
    messageIndexEnable: bool = True
    """Index messages by their keys. Without it, queries by key find nothing."""
    messageIndexSafe: bool = False
    """After a kill, recover from where also the index was durable. (Ours rebuilds a dropped index file anyway.)"""
    maxHashSlotNum: int = 5_000_000
    """Slots of an index file. Files of another geometry cannot be read: the name does not say it."""
    maxIndexNum: int = 5_000_000 * 4
    """Entries of an index file, of which the first is never used."""
    maxMsgsNumBatch: int = 64
    """Most messages of one answer to a query by key."""
    defaultQueryMaxNum: int = 32
    """Messages of an answer to a query by key that names no number."""

    # -- cleaning ------------------------------------------------------------------------------------------------------
    cleanResourceInterval: int = 10_000
    """Between looks at what there is to delete."""
    deleteCommitLogFilesInterval: int = 100
    """Pause after each deleted segment of the log: the file system may need a while for a large file."""
    deleteConsumeQueueFilesInterval: int = 100
    """Pause after each queue that lost a segment."""
    destroyMapedFileIntervalForcibly: int = 120_000
    """Taken for compatibility: a segment can be removed while it is read, the system keeps it until the last reader."""
    redeleteHangedFileInterval: int = 120_000
    """Until a segment that could not be removed is tried again."""
    deleteWhen: str = "04"
    """Hours of the local day, `;` between, in which expired segments are deleted."""
    fileReservedTime: int = 72
    """Hours after its last change that a segment expires."""
    diskMaxUsedSpaceRatio: int = 75
    """Percent of the disk from which expired segments are deleted at any hour; taken as 10 at least, 95 at most."""
    cleanFileForciblyEnable: bool = True
    """On a nearly full disk delete the oldest segments before they expire. Off: puts are refused until some do."""
    diskSpaceWarningLevelRatio: float = 0.90
    """Used part of the disk above which puts are refused (system property `rocketmq.broker.…` in RocketMQ)."""
    diskSpaceCleanForciblyRatio: float = 0.85
    """Used part of the disk above which segments are deleted at once; below it puts are taken again."""

    # -- scrubbing -----------------------------------------------------------------------------------------------------
    scrubBytesPerSecond: int = -1
    """Own setting. Bytes of the log a second that are read again in the background to find damage. -1: as many as it
    takes to read everything once a week, twice over, and 262144 at least. 0: none."""

    # -- recovery ------------------------------------------------------------------------------------------------------
    checkCRCOnRecover: bool = True
    """Check the CRC of bodies when the log's end is looked for. Off: a torn body may become a message."""
    duplicationEnable: bool = False
    """Never dispatch what is above the confirmed offset."""

    # -- delayed messages ----------------------------------------------------------------------------------------------
    messageDelayLevel: str = "1s 5s 10s 30s 1m 2m 3m 4m 5m 6m 7m 8m 9m 10m 20m 30m 1h 2h"
    """Delays of level 1, 2, ...: a number and s, m, h or d. Do not change it while messages wait: levels are stored."""
    flushDelayOffsetInterval: int = 10_000
    """Between writes of the delivered offsets: what a crash delivers twice."""

    # -- replication ---------------------------------------------------------------------------------------------------
    brokerRole: BrokerRole = BrokerRole.ASYNC_MASTER
    """What this store is in its group."""
    haListenPort: int = 10912
    """Port for slaves."""
    haMasterAddress: str = ""
    """host:port of the master's haListenPort; empty: the name server tells."""
    haSendHeartbeatInterval: int = 5_000
    """Between a slave's reports on an idle connection."""
    haHousekeepingInterval: int = 20_000
    """Silence after which either side closes the connection."""
    haTransferBatchSize: int = 32 << 10
    """Bytes of one transfer to a slave."""
    haSlaveFallbehindMax: int = 256 << 20
    """SYNC_MASTER: a slave further behind than this counts as none."""
    enableDLegerCommitLog: bool = False
    """Keep the log in the layout of DLedger, replicated by Raft. (The spelling is RocketMQ's.)"""
    dLegerGroup: str = ""
    """Name of the Raft group: the broker's name."""
    dLegerPeers: str = ""
    """Members, `n0-host:port;n1-host:port;...`."""
    dLegerSelfId: str = ""
    """Which of the members this is."""
    preferredLeaderId: str = ""
    """Member that takes the lead when it has caught up."""
    isEnableBatchPush: bool = False
    """Ship several entries in one request."""

    # -- our own -------------------------------------------------------------------------------------------------------
    maxOpenQueueFiles: int = 4096
    """Own: files of ConsumeQueues kept open. Fewer than queues in use costs an open and a close for each write."""
    dispatchMaxBytes: int = 1 << 20
    """Own: bytes of the log dispatched in one go. Pulls wait meanwhile."""

    def validate(self) -> None:
        """Checks every field. SettingsError names the first that cannot be used."""
        for item in fields(self):
            _check_type(item.name, getattr(self, item.name), str(item.type))
        for name, (low, high) in _RANGES.items():
            value = getattr(self, name)
            if not low <= value <= high:
                raise SettingsError(name, f"must be {low} to {high}, not {value}")
        if not self.storePathRootDir:
            raise SettingsError("storePathRootDir", "must name a folder")
        if self.diskSpaceCleanForciblyRatio > self.diskSpaceWarningLevelRatio:
            raise SettingsError(
                "diskSpaceCleanForciblyRatio",
                f"{self.diskSpaceCleanForciblyRatio} is above diskSpaceWarningLevelRatio="
                f"{self.diskSpaceWarningLevelRatio}: puts would stop before anything is cleaned",
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
        """The folder of the log's segments, in whichever layout it is kept."""
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
        """The write buffer is used: asked for, and neither SYNC_FLUSH nor SLAVE (RocketMQ ignores it silently then)."""
        return (
            self.transientStorePoolEnable
            and self.flushDiskType is FlushDiskType.ASYNC_FLUSH
            and self.brokerRole is not BrokerRole.SLAVE
        )

    def delay_levels_ms(self) -> tuple[int, ...]:
        """Delay of each level: level 1 at index 0. SettingsError: `messageDelayLevel` is not understood."""
        delays = []
        for part in self.messageDelayLevel.split():
            match = _DELAY.fullmatch(part)
            if match is None:
                raise SettingsError("messageDelayLevel", f"{part!r} is not a number followed by s, m, h or d")
            delays.append(int(match[1]) * _DELAY_UNITS_MS[match[2]])
        return tuple(delays)

    def delete_hours(self) -> frozenset[int]:
        """Hours of `deleteWhen`. SettingsError: one of them is no hour."""
        hours = set()
        for part in filter(None, (piece.strip() for piece in self.deleteWhen.split(";"))):
            if not (part.isascii() and part.isdigit() and int(part) <= 23):
                raise SettingsError("deleteWhen", f"{part!r} is not an hour from 00 to 23")
            hours.add(int(part))
        return frozenset(hours)


_KINDS: dict[str, tuple[type, ...]] = {
    "str": (str,),
    "int": (int,),
    "bool": (bool,),
    "float": (float, int),
    "FlushDiskType": (FlushDiskType,),
    "BrokerRole": (BrokerRole,),
}


def _check_type(name: str, value: Any, kind: str) -> None:
    # type(), not isinstance: True is an int for Python, but no size.
    if type(value) not in _KINDS[kind]:
        raise SettingsError(name, f"must be {kind}, not {value!r}")


_INTERVAL = (1, _INT)
_COUNT = (0, _INT)

_RANGES: dict[str, tuple[float, float]] = {
    # A segment holds at least one small record and its filler; positions in it are 32-bit in the index and in tools.
    "mappedFileSizeCommitLog": (256, _INT),
    "mappedFileSizeConsumeQueue": (_UNIT_BYTES, _INT - _UNIT_BYTES),
    "mappedFileSizeConsumeQueueExt": (64, _INT),
    "bitMapLengthConsumeQueueExt": (0, 8 * 32_000),
    "maxMessageSize": (128, _INT),
    "syncFlushTimeout": _INTERVAL,
    "flushIntervalCommitLog": _INTERVAL,
    "flushCommitLogLeastPages": _COUNT,
    "flushCommitLogThoroughInterval": _COUNT,
    "commitIntervalCommitLog": _INTERVAL,
    "commitCommitLogLeastPages": _COUNT,
    "commitCommitLogThoroughInterval": _COUNT,
    "flushIntervalConsumeQueue": _INTERVAL,
    "flushConsumeQueueLeastPages": _COUNT,
    "flushConsumeQueueThoroughInterval": _COUNT,
    "osPageCacheBusyTimeOutMills": _INTERVAL,
    "transientStorePoolSize": (1, 1024),
    "flushLeastPagesWhenWarmMapedFile": (1, _INT),
    "maxTransferBytesOnMessageInMemory": (1, _INT),
    "maxTransferCountOnMessageInMemory": (1, _INT),
    "maxTransferBytesOnMessageInDisk": (1, _INT),
    "maxTransferCountOnMessageInDisk": (1, _INT),
    "accessMessageInMemoryMaxRatio": (0, 100),
    # 2^31 - 1 index entries would not fit the signed 32-bit numbers of the format's header with room to count on.
    "maxHashSlotNum": (1, 500_000_000),
    "maxIndexNum": (2, 500_000_000),
    "maxMsgsNumBatch": (1, _INT),
    "defaultQueryMaxNum": (1, _INT),
    "cleanResourceInterval": _INTERVAL,
    "deleteCommitLogFilesInterval": _COUNT,
    "deleteConsumeQueueFilesInterval": _COUNT,
    "destroyMapedFileIntervalForcibly": _COUNT,
    "redeleteHangedFileInterval": _COUNT,
    "fileReservedTime": (0, 24 * 366 * 100),
    "scrubBytesPerSecond": (-1, _LONG),
    "diskMaxUsedSpaceRatio": (0, 100),
    "diskSpaceWarningLevelRatio": (0.0, 1.0),
    "diskSpaceCleanForciblyRatio": (0.0, 1.0),
    "flushDelayOffsetInterval": _INTERVAL,
    "haListenPort": (0, 65_535),
    "haSendHeartbeatInterval": _INTERVAL,
    "haHousekeepingInterval": _INTERVAL,
    "haTransferBatchSize": (1, _INT),
    "haSlaveFallbehindMax": (0, _LONG),
    "maxOpenQueueFiles": (1, _INT),
    "dispatchMaxBytes": (1, _INT),
}
