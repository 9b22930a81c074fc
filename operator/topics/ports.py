"""What a pass needs of brokers, as a protocol; the API server is asked through `core/kube.py`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from tallystick.operator.topics.kinds import Kind, S

MAX_BATCH = 500
"""Of one write. Its answer is one entry in the group's log for all of them."""


class BrokerError(Exception):
    """The leader of a broker group did not do it.

    BrokerError
      SilentError     nobody leads the group, or there was no answer: it may be done or not
      RefusedError    it says no, with its reason
        InUseError    it is not empty
    """


class SilentError(BrokerError):
    pass


class RefusedError(BrokerError):
    pass


class InUseError(RefusedError):
    pass


@dataclass(frozen=True, slots=True)
class GroupAddress:
    """One broker group. `leader` is who led last as far as the cluster's status knows; empty: not known."""

    namespace: str
    cluster: str
    number: int
    members: int
    leader: str = ""

    @property
    def name(self) -> str:
        return f"{self.cluster}-{self.number}"


class Brokers(Protocol):
    """Leaders of broker groups. Every method may raise any BrokerError; doing a thing twice is doing it once."""

    async def read(self, kind: Kind[S], group: GroupAddress) -> Mapping[str, S]:
        """All that the leader has, by name. Of followers nobody is asked: they may not have heard of the last ones."""

    async def write(self, kind: Kind[S], group: GroupAddress, settings: Sequence[S]) -> Mapping[str, str]:
        """Make or replace, at most MAX_BATCH; done when a majority has them. Returns those refused: name -> reason."""

    async def delete(self, kind: Kind[S], group: GroupAddress, name: str, *, if_empty: bool) -> None:
        """Gone when this returns, also if it was not there. InUseError: `if_empty`, and it is not."""

    async def figures(self, kind: Kind[S], group: GroupAddress, name: str) -> Mapping[str, int]:
        """The kind's `figures` of one; empty: there is no such."""
