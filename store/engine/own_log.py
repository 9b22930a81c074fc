"""The log that a store opens itself, and the strategy that follows from the settings."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tallystick.store._kernel import Log
from tallystick.store.engine.inherited import sync_files
from tallystick.store.engine.local_flush import LocalFlush
from tallystick.store.engine.sync_master import SyncMaster
from tallystick.store.formats.properties import CLUSTER
from tallystick.store.settings import BrokerRole, FlushDiskType

if TYPE_CHECKING:
    from tallystick.store._kernel import Door
    from tallystick.store.engine.durability import LogParts
    from tallystick.store.engine.recovery import Recovered
    from tallystick.store.formats.message import Host
    from tallystick.store.settings import StoreSettings


class OwnLog:
    """The log that a store opens itself; recovery decides where it ends. Owns the fields that it adds to messages."""

    is_replicated = False
    entry_header_bytes = 0
    kept = None

    def __init__(
        self, settings: StoreSettings, door: Door, *, store_host: Host, cluster: str, region: str, trace_on: bool
    ) -> None:
        self._settings, self._door = settings, door
        self._store_host, self._cluster, self._region, self._trace_on = store_host, cluster, region, trace_on

    def sync_inherited(self, recovered: Recovered) -> None:
        """See `LogSource`. Only SYNC_FLUSH promises that what it answers is on the disk."""
        if not recovered.clean and self._settings.flushDiskType is FlushDiskType.SYNC_FLUSH:
            sync_files(self._door, self._settings.log_folder)

    def open(self, recovered: Recovered) -> Log:
        """See `LogSource`."""
        log = Log(
            self._door,
            str(self._settings.log_folder),
            segment_bytes=self._settings.mappedFileSizeCommitLog,
            max_message_bytes=self._settings.maxMessageSize,
            store_host=self._store_host.encode(),
            suffix=f"{CLUSTER}\x01{self._cluster}\x02".encode(),
            region=self._region,
            trace_on=self._trace_on,
        )
        log.start(recovered.end_pos, recovered.store_timestamp_ms)
        return log

    def durability(self, parts: LogParts) -> LocalFlush:
        """See `LogSource`."""
        if self._settings.brokerRole is BrokerRole.SYNC_MASTER:
            return SyncMaster(parts)
        return LocalFlush(parts)
