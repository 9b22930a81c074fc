"""A member as the storage engine sees it: a `store.replica.Replica` whose log the store's appender writes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tallystick.replication.durable import DiskState
from tallystick.replication.member.member import Member

if TYPE_CHECKING:
    from tallystick.store._kernel import Log


class EngineReplica:
    """The `store.replica.Replica` of a member. Open the member, then the store on this object, then start the member
    with the store's appender. Close the member before the store."""

    def __init__(self, member: Member) -> None:
        self._member = member

    @property
    def log(self) -> Log:
        return self._member.ledger.log

    @property
    def begin_pos(self) -> int:
        return self._member.ledger.base.pos

    @property
    def committed_pos(self) -> int:
        return self._member.committed_pos

    def first_index_behind(self, pos: int) -> int:
        return self._member.ledger.index_of(pos) + 1

    def log_written(self) -> None:
        self._member.log_written()

    def log_synced(self) -> None:
        self._member.log_synced()

    def log_failed(self, error: OSError, *, final: bool) -> None:
        self._member.log_failed(error, final=final)

    def keep_from(self) -> int:
        return self._member.keep_from()

    def release_before(self, pos: int) -> None:
        self._member.release_before(pos)

    def save_mark(self) -> None:
        self._member.save_mark()

    def close(self, orderly: bool) -> None:
        """Notes a clean stop in the log's mark, if `orderly` and the disk is sound."""
        if orderly and self._member.disk_state is not DiskState.FAILED:
            self._member.ledger.close(self._member.committed_index)
