"""From settings to a member of a replicated group: its identity, the addresses of the others, its folder, its log.

RocketMQ's settings name the members: `dLegerPeers` is `n0-host:port;n1-host:port`, `dLegerSelfId` is one of these ids,
and `dLegerGroup` is the group (by default the broker's name). A member listens at its own port in `dLegerPeers`, on
`bindAddress`; its address there is for the others, and addresses need not be reachable yet. Peers are possible members;
`groupBootstrapMembers` are the members when the group is created.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from tallystick.node.core.settings import GroupTlsMode
from tallystick.replication.ledger.ledger import Ledger
from tallystick.replication.member.member import Member
from tallystick.replication.member.settings import MemberSettings
from tallystick.replication.membership import Membership
from tallystick.replication.settings import RaftSettings
from tallystick.replication.transport.handshake import Identity
from tallystick.replication.transport.settings import TlsSettings, TransportSettings
from tallystick.store.formats.progress import FILE_NAME as PROGRESS_FILE
from tallystick.store.formats.progress import ProgressMark
from tallystick.store.formats.properties import CLUSTER
from tallystick.store.formats.queue_table import FILE_NAME as TABLE_FILE
from tallystick.store.settings import SettingsError, StoreSettings
from tallystick.store.verify.queues import end_known_to_queues

if TYPE_CHECKING:
    from tallystick.node.core.settings import BrokerSettings
    from tallystick.store._kernel import Door
    from tallystick.store.finding_log import FindingLog
    from tallystick.store.formats.message import Host

Address = tuple[str, int]

_ID = re.compile(r"n(0|[1-9][0-9]{0,8})")
_ENTRY_ROOM = 128 * 1024  # topic and properties in addition to the largest body


def member_number(key: str, text: str) -> int:
    """The number of a member: `n0` is 0. SettingsError names `key`."""
    match = _ID.fullmatch(text)
    if match is None:
        raise SettingsError(key, f"{text!r} is not a member id: n0, n1, ...")
    return int(match[1])


def parse_address(key: str, text: str) -> Address:
    """An address `host:port`, with an IPv6 address in brackets. SettingsError names `key`."""
    host, _, port = text.rpartition(":")
    if not host or not port.isdecimal() or not 0 < int(port) <= 65535:
        raise SettingsError(key, f"{text!r} is not of the form host:port")
    return host.removeprefix("[").removesuffix("]"), int(port)


def parse_peers(text: str) -> dict[int, Address]:
    """The address of each member, by number. SettingsError: invalid form, or a member is listed twice."""
    peers: dict[int, Address] = {}
    for part in filter(None, (part.strip() for part in text.split(";"))):
        name, dash, address = part.partition("-")
        if not dash:
            raise SettingsError("dLegerPeers", f"{part!r} is not of the form n0-host:port")
        number = member_number("dLegerPeers", name)
        if number in peers:
            raise SettingsError("dLegerPeers", f"{name} is listed twice")
        peers[number] = parse_address("dLegerPeers", address)
    return peers


def parse_members(key: str, text: str, peers: Iterable[int]) -> list[int]:
    """`n0;n1;n2` as numbers. SettingsError names `key`: invalid form, a member is listed twice, or is not a peer."""
    members = [member_number(key, part) for part in filter(None, (part.strip() for part in text.split(";")))]
    for member in members:
        if members.count(member) > 1:
            raise SettingsError(key, f"n{member} is listed twice")
        if member not in peers:
            raise SettingsError(key, f"n{member} is not in dLegerPeers")
    return members


class GroupPlan:
    """What the settings state about this member and its group, checked. Raises SettingsError for invalid settings."""

    def __init__(self, broker: BrokerSettings, store: StoreSettings) -> None:
        self.peers = parse_peers(store.dLegerPeers)
        self.number = member_number("dLegerSelfId", store.dLegerSelfId)
        if self.number not in self.peers:
            raise SettingsError("dLegerSelfId", f"{store.dLegerSelfId} is not in dLegerPeers {store.dLegerPeers!r}")
        group = store.dLegerGroup or broker.brokerName
        try:
            self.identity = Identity(broker.brokerClusterName, group, self.number)
        except ValueError as error:
            raise SettingsError("dLegerGroup", str(error)) from error
        old = store.commit_log_folder
        if old.is_dir() and any(path.name.isdecimal() for path in old.iterdir()):
            raise SettingsError(
                "enableDLegerCommitLog",
                f"{old} has messages of a broker without a group, which would be lost to readers: use another folder",
            )
        self.folder = store.log_folder.parent
        founders = parse_members("groupBootstrapMembers", broker.groupBootstrapMembers, self.peers) or self.peers
        makes_group = broker.groupBootstrap and self.number in founders
        self.bootstrap = Membership.of(founders) if makes_group else None
        preferred = member_number("preferredLeaderId", store.preferredLeaderId) if store.preferredLeaderId else None
        if preferred is not None and preferred not in self.peers:
            raise SettingsError("preferredLeaderId", f"{store.preferredLeaderId} is not in dLegerPeers")
        transport = TransportSettings()
        tls = None
        if broker.groupTlsCa:
            files = (Path(broker.groupTlsCa), Path(broker.groupTlsCertificate), Path(broker.groupTlsKey))
            mode = broker.groupTlsMode
            tls = TlsSettings(
                *files,
                peer_name=broker.groupTlsPeerName or None,
                calls_plain=mode is GroupTlsMode.permissive,
                accepts_plain=mode is not GroupTlsMode.enforcing,
            )
        self.settings = MemberSettings(
            raft=RaftSettings(
                heartbeat_interval_seconds=broker.groupHeartbeatMills / 1000,
                election_timeout_seconds=broker.groupElectionTimeoutMills / 1000,
                preferred_leader=preferred,
            ),
            transport=replace(
                transport, payload_max_bytes=max(transport.payload_max_bytes, store.maxMessageSize + _ENTRY_ROOM)
            ),
            tls=tls,
            flush=store.flushDiskType,
        )
        self._store, self._broker = store, broker

    @property
    def own(self) -> Address:
        return self.peers[self.number]

    async def open_member(
        self,
        door: Door,
        store_host: Host,
        *,
        applied_index: int,
        snapshot: Callable[[], bytes],
        restore: Callable[[bytes], int],
        findings: FindingLog,
    ) -> Member:
        """Recovers the member's disk. See `Member.open` for the arguments and errors."""
        store, broker = self._store, self._broker

        def open_ledger(store_id: bytes) -> Ledger:
            return Ledger.open(
                self.folder,
                door,
                segment_bytes=store.mappedFileSizeCommitLog,
                max_message_bytes=store.maxMessageSize,
                store_host=store_host.encode(),
                store_id=store_id,
                suffix=f"{CLUSTER}\x01{broker.brokerClusterName}\x02".encode(),
                region=broker.regionId,
                trace_on=broker.traceOn,
                findings=findings,
            )

        door.mkdir(str(self.folder))
        return await Member.open(
            self.folder,
            door,
            self.identity,
            self.settings,
            open_ledger,
            bootstrap=self.bootstrap,
            applied_index=applied_index,
            snapshot=snapshot,
            restore=restore,
        )


def forget_derived(door: Door, root: Path, begin_pos: int) -> bool:
    """Removes queues and index of a log that no longer exists; returns whether there were any. Blocks. OSError.

    The log of a member that was far behind was replaced and starts at `begin_pos` (L11). Everything that was derived
    from the old log is before that: it points to nothing. A log whose old segments were deleted starts later as well,
    but never behind what was derived from it.
    """
    if begin_pos == 0:
        return False
    mark = ProgressMark.load(root)
    # RocketMQ writes no mark: its queues show how far they are.
    reached = end_known_to_queues(root) if mark is None else max(mark.written.pos, mark.flushed.pos)
    if reached >= begin_pos:
        return False
    for part in ("consumequeue", "consumequeue_ext", "index"):
        for path in sorted((root / part).rglob("*"), reverse=True):  # a folder sorts before its content
            if path.is_dir():
                path.rmdir()
            else:
                door.remove(path)
    for name in (PROGRESS_FILE, TABLE_FILE, "checkpoint"):
        if (root / name).exists():
            door.remove(root / name)
    door.sync_dir(root)
    return True
