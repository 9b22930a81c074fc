"""A group of members in one process, over real sockets and real files, on machines that can lose their power."""

from __future__ import annotations

import asyncio
import random
import socket
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path

from ports import free_port

from tallystick.replication.durable import PossibleLoss
from tallystick.replication.effects import Role
from tallystick.replication.ledger.ledger import Ledger
from tallystick.replication.member.damage import LogDamage
from tallystick.replication.member.disk import MemberDisk
from tallystick.replication.member.driver import Driver
from tallystick.replication.member.errors import MemberError
from tallystick.replication.member.member import Member
from tallystick.replication.member.settings import MemberSettings
from tallystick.replication.membership import Membership
from tallystick.replication.settings import RaftSettings
from tallystick.replication.transport import Identity, TransportSettings
from tallystick.store._kernel import Door
from tallystick.store.formats.ledger_format import EntryKind
from tallystick.store.formats.message import Host
from tallystick.store.formats.record import Record
from tallystick.store.settings import FlushDiskType

PATIENCE_S = 120.0  # for what has to happen; nothing is measured by it
SEGMENT_BYTES = 1 << 16
NOW_MS = 1_700_000_000_000
HOST = Host("127.0.0.1", 10911).encode()

QUICK = MemberSettings(
    raft=RaftSettings(
        heartbeat_interval_seconds=0.03,
        election_timeout_seconds=0.4,
        append_timeout_seconds=0.4,
        install_timeout_seconds=2.0,
        max_append_bytes=1 << 15,
    ),
    transport=TransportSettings(reconnect_first_ms=5, reconnect_max_ms=50),
    mark_interval_seconds=0.05,
    min_free_bytes=0,
    async_flush_interval_seconds=0.05,
)
ASYNCHRONOUS = replace(QUICK, flush=FlushDiskType.ASYNC_FLUSH)


async def until(condition: Callable[[], object], what: str = "") -> None:
    """Returns when it holds; a test whose condition never holds fails."""
    try:
        async with asyncio.timeout(PATIENCE_S):
            while not condition():  # noqa: ASYNC110 - a test looks at members from outside
                await asyncio.sleep(0.002)
    except TimeoutError:
        raise AssertionError(f"did not come to pass: {what or condition}") from None


class State:
    """What a broker would keep: the applied entries, with the index up to which they are (S12)."""

    def __init__(self) -> None:
        self.applied: list[tuple[int, bytes]] = []
        self.index = -1

    def apply(self, index: int, kind: EntryKind, body: bytes) -> None:
        assert index > self.index, "each entry once, in order"
        self.index = index
        if kind is EntryKind.METADATA:
            self.applied.append((index, body))

    def snapshot(self) -> bytes:
        lines = [str(self.index), *(f"{index} {body.hex()}" for index, body in self.applied)]
        return "\n".join(lines).encode()

    def restore(self, blob: bytes) -> int:
        first, *rest = blob.decode().split("\n")
        self.index = int(first)
        pairs = [line.split(" ") for line in rest]
        self.applied = [(int(index), bytes.fromhex(body)) for index, body in pairs]
        return self.index


class Node:
    """A machine: a disk that stays, and a member that may die."""

    def __init__(self, number: int, root: Path, settings: MemberSettings = QUICK) -> None:
        self.id = number
        self.root = root
        self.settings = settings
        self.folder = root / f"n{number}"
        self.door = Door(record=True)
        self.boot = 1
        self.member: Member | None = None
        self.state = State()
        self.port = free_port()
        self.fatal: list[str] = []
        self.unknown = 0
        self.removed: list[int] = []
        self.installed: list[int] = []
        self.truncated: list[int] = []
        self.segment_bytes = SEGMENT_BYTES
        self.loss_at_start = PossibleLoss.NONE

    @property
    def boot_id(self) -> bytes:
        return self.boot.to_bytes(16, "big")

    def open_ledger(self, store_id: bytes) -> Ledger:
        return Ledger.open(
            self.folder,
            self.door,
            segment_bytes=self.segment_bytes,
            index_segment_bytes=32 * 1024,
            max_message_bytes=1 << 14,
            store_host=Host("127.0.0.1", self.port).encode(),
            store_id=store_id,
            boot_id=self.boot_id,
        )

    async def start(self, addresses: Mapping[int, tuple[str, int]], bootstrap: Membership | None = None) -> Member:
        assert self.member is None
        member = await Member.open(
            self.folder,
            self.door,
            Identity("cluster", "group", self.id),
            self.settings,
            self.open_ledger,
            bootstrap=bootstrap,
            applied_index=self.state.index,
            snapshot=self.state.snapshot,
            restore=self.state.restore,
            boot_id=self.boot_id,
        )
        member.on_apply.append(self.state.apply)
        member.on_fatal.append(self.fatal.append)
        member.on_removed.append(self.removed.append)
        member.on_installed.append(lambda index, pos: self.installed.append(index))
        member.on_truncate.append(lambda pos, was: self.truncated.append(pos))
        member.on_unknown.append(self._count_unknown)
        self.member = member
        self.loss_at_start = member.possible_loss
        await member.start([self.listen()], addresses)
        return member

    def _count_unknown(self) -> None:
        self.unknown += 1

    def listen(self) -> socket.socket:
        bound = socket.socket()
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        bound.bind(("127.0.0.1", self.port))
        return bound

    @property
    def up(self) -> Member:
        assert self.member is not None, f"n{self.id} is down"
        return self.member

    @property
    def driver(self) -> Driver:
        """What runs of the member."""
        return self.up._running

    @property
    def disk(self) -> MemberDisk:
        return self.up._disk

    @property
    def damage(self) -> LogDamage:
        return self.up._damage

    async def kill(self, seed: int | None = None, keep: float | None = None) -> None:
        """kill -9; with a seed the power goes as well, and what was not synced is lost in part or whole."""
        member, self.member = self.up, None
        await member.abort()
        if seed is not None:
            self.door.crash(seed, keep)
            self.boot += 1
        self.state = State()  # it was not kept: it is built from the log again

    async def stop(self) -> None:
        member, self.member = self.up, None
        await member.stop()


class Group:
    """Its members, and what was acknowledged: (index, body) of everything that may never be lost."""

    def __init__(self, root: Path, members: int = 3, settings: MemberSettings = QUICK) -> None:
        self.nodes = [Node(number, root, settings) for number in range(members)]
        self.acknowledged: dict[int, bytes] = {}
        self.addresses = {node.id: ("127.0.0.1", node.port) for node in self.nodes}
        self._number = 0

    async def __aenter__(self) -> Group:
        membership = Membership.of(range(len(self.nodes)))
        await asyncio.gather(*(node.start(self.addresses, membership) for node in self.nodes))
        return self

    async def __aexit__(self, *exc: object) -> None:
        await asyncio.gather(*(node.up.abort() for node in self.nodes if node.member is not None))

    @property
    def running(self) -> list[Node]:
        return [node for node in self.nodes if node.member is not None]

    async def leader(self, *, among: list[Node] | None = None) -> Node:
        """One that accepts."""
        found: list[Node] = []

        def look() -> bool:
            found[:] = [node for node in among or self.running if node.member is not None and node.member.accepting]
            return bool(found)

        await until(look, "a leader that accepts")
        return max(found, key=lambda node: node.up.status().term)

    def stage(self, node: Node, count: int = 1, size: int = 100) -> tuple[int, list[bytes]]:
        """Puts messages into the leader's log: the index of the last, and their bodies."""
        log = node.up.ledger.log
        bodies = []
        for _ in range(count):
            self._number += 1
            body = f"message {self._number} ".encode().ljust(size, b".")
            log.append(b"T", 0, body, b"", now_ms=NOW_MS, born_timestamp=NOW_MS, born_host=HOST)
            bodies.append(body)
        node.up.staged()
        return log.staged_index, bodies

    async def put(self, node: Node, count: int = 1, size: int = 100) -> int:
        """Puts messages through the leader until they are acknowledged. MemberError: refused, or the result is
        unknown."""
        member = node.member
        if member is None or not member.accepting:
            raise MemberError("not accepting")
        last, bodies = self.stage(node, count, size)
        await member.committed(last)
        self.acknowledge(last, bodies)
        return last

    def acknowledge(self, last: int, bodies: list[bytes]) -> None:
        for index, body in enumerate(bodies, last + 1 - len(bodies)):
            assert self.acknowledged.setdefault(index, body) == body, f"entry {index} was acknowledged twice"

    async def put_somehow(self, count: int = 1, size: int = 100) -> int:
        """Retries at the present leader until it is acknowledged."""
        async with asyncio.timeout(PATIENCE_S):
            while True:
                leader = await self.leader()
                try:
                    async with asyncio.timeout(2.0):
                        return await self.put(leader, count, size)
                except (MemberError, TimeoutError):
                    await asyncio.sleep(0.01)

    async def level(self, nodes: list[Node] | None = None) -> int:
        """Waits until all have committed what the leader has, and compares them. The committed index."""
        nodes = nodes or self.running
        leader = await self.leader(among=nodes)
        target = leader.up.committed_index
        assert target >= max(self.acknowledged, default=-1), "acknowledged entries are gone"
        await until(
            lambda: all(node.up.committed_index >= target for node in nodes),
            f"all have committed {target}: {[node.up.status() for node in nodes]}",
        )
        self.compare(nodes)
        return target

    def compare(self, nodes: list[Node]) -> None:
        """What is committed is the same bytes everywhere, and has all that was acknowledged."""
        ledgers = [node.up.ledger for node in nodes]
        first = max(ledger.first_index for ledger in ledgers)
        last = min(node.up.committed_index for node in nodes)
        if first <= last:
            images = {ledger.log.read_range(first, last) for ledger in ledgers}
            assert len(images) == 1, "members differ"
            ledgers[0].verified_range(first, last)
        for node in nodes:
            ledger = node.up.ledger
            for index, body in self.acknowledged.items():
                if ledger.first_index <= index <= node.up.committed_index:
                    assert Record.decode(ledger.record_of(index)).body == body, f"n{node.id} lost entry {index}"
        states = [node.state.applied for node in nodes]
        longest = max(states, key=len)
        for state in states:
            for pair in state:
                assert pair in longest


async def load(group: Group, dice: random.Random, stop: asyncio.Event) -> None:
    """A client that puts batches at the present leader, and records the acknowledged ones."""
    while not stop.is_set():
        leaders = [node for node in group.running if node.up.accepting]
        if not leaders:
            await asyncio.sleep(0.005)
            continue
        try:
            async with asyncio.timeout(3.0):
                await group.put(dice.choice(leaders), dice.randint(1, 20), dice.choice([10, 100, 2000]))
        except (MemberError, TimeoutError):
            await asyncio.sleep(0.005)


def leads(node: Node) -> bool:
    return node.member is not None and node.member.role is Role.LEADER
