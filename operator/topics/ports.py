"""The interface of brokers that a pass uses, as a protocol."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from tallystick.operator.topics.kinds import Kind, S

MAX_BATCH = 500
"""Maximum number of objects in one write, which is one entry in the log of the group."""


class BrokerError(Exception):
    """A request to the leader of a broker group failed.

    BrokerError
      SilentError     no leader, or no response; the change may have been made
      RefusedError    the leader rejected the request, with a reason
        InUseError    the object is in use
    """


class SilentError(BrokerError):
    pass


class RefusedError(BrokerError):
    pass


class InUseError(RefusedError):
    pass


@dataclass(frozen=True, slots=True)
class GroupAddress:
    """One broker group. `leader`: its last leader according to the status of the cluster; empty: unknown."""

    namespace: str
    cluster: str
    number: int
    members: int
    leader: str = ""

    @property
    def name(self) -> str:
        return f"{self.cluster}-{self.number}"


class Brokers(Protocol):
    """Leaders of broker groups. Every method is idempotent and may raise any BrokerError."""

    async def read(self, kind: Kind[S], group: GroupAddress) -> Mapping[str, S]:
        """Returns all objects of the leader by name. Followers may not have applied the latest ones."""

    async def write(self, kind: Kind[S], group: GroupAddress, settings: Sequence[S]) -> Mapping[str, str]:
        """Creates or replaces at most MAX_BATCH objects on a majority. Returns rejections: name -> reason."""

    async def delete(self, kind: Kind[S], group: GroupAddress, name: str, *, if_empty: bool) -> None:
        """Deletes an object; a missing one is no error. InUseError: with `if_empty`, the object is in use."""

    async def figures(self, kind: Kind[S], group: GroupAddress, name: str) -> Mapping[str, int]:
        """Returns the counters of an object; empty: it does not exist."""
