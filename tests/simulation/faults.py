"""What goes wrong, and when: each fault is a function of the run, found by its name.

A fault ends with its victims started again, unless it says otherwise; what it did to links, disks and clocks stays
until `Faults.heal`. Of a group, any number of members may be struck at once.
"""

from __future__ import annotations

import asyncio
import errno
from collections.abc import Awaitable, Callable
from random import Random
from typing import TYPE_CHECKING

from simulation import damage, filtered
from simulation.nodes import Node
from simulation.violation import ViolationError

if TYPE_CHECKING:
    from simulation.simulation import Simulation

_DOWN_S = 60.0
_CHANGES = {
    "flushDiskType": ("SYNC_FLUSH", "ASYNC_FLUSH"),
    "flushConsumeQueueThoroughInterval": ("100", "2000", "60000"),
    "flushConsumerOffsetInterval": ("500", "5000"),
    "flushDelayOffsetInterval": ("500", "10000"),
    "cleanFileForciblyEnable": ("true", "false"),
    "defaultTopicQueueNums": ("1", "4", "16"),
    "maxMessageSize": ("20000", "40000"),
    "scrubBytesPerSecond": ("-1", "0", "1000000"),
    "longPollingEnable": ("true", "false"),
    "registerNameServerPeriod": ("10000", "30000"),
    "dispatchMaxBytes": ("65536", "1048576"),
    "maxOpenQueueFiles": ("64", "4096"),
    "transactionTimeOut": ("1000", "6000"),
    "transactionCheckInterval": ("2000", "60000"),
}
"""Settings that an administrator may change from one start to the next, with values that they may have."""


class Faults:
    """Injects the faults of one run."""

    def __init__(self, simulation: Simulation, dice: Random) -> None:
        self.simulation = simulation
        self.loop = simulation.loop
        self.cluster = simulation.cluster
        self.dice = dice

    async def inject(self, kind: str) -> None:
        """One fault, to its end."""
        self.simulation.outcome.faults[kind] += 1
        self._begin()
        self.loop.trace.note(self.loop.now, f"fault: {kind}")
        await KINDS[kind](self)

    def _begin(self) -> None:
        self.simulation.oracle.offsets.fault(self.loop.now)
        self.simulation.locks.fault()

    async def heal(self) -> None:
        """Ends all faults, and starts every node."""
        self._begin()
        self.loop.network.heal()
        for node in self.cluster.nodes():
            node.host.disk_delay_s = 0.0
            node.host.disk_used = None
            node.disk.heal()
            if node.process is not None:
                node.process.events_left = None
                if node.process.door is not None and node.kill_is_planned:
                    node.kill()
        await asyncio.gather(*(self.simulation.start(node) for node in self.cluster.nodes() if not node.up))

    def _victim(self) -> Node:
        return self.dice.choice(list(self.cluster.nodes()))

    def _broker(self) -> Node:
        return self.dice.choice([node for node in self.cluster.nodes() if node.is_broker])

    def _victims(self) -> list[Node]:
        nodes = [node for node in self.cluster.nodes() if node.up]
        return self.dice.sample(nodes, min(len(nodes), self.dice.choice((1, 1, 1, 2, 3))))

    async def _again(self, *nodes: Node) -> None:
        await asyncio.sleep(self.dice.expovariate(1 / 0.5) if self.dice.random() < 0.8 else self.dice.uniform(1, 20))
        for node in nodes:
            if self.simulation.profile.rot and node.is_broker and not node.up:
                await damage.at_rest(self.simulation, node, self.dice)
        await asyncio.gather(*(self.simulation.start(node) for node in nodes if not node.up))

    async def stop(self) -> None:
        """SIGTERM to one."""
        node = self._victim()
        if node.up:
            await self.simulation.stop(node)
        await self._again(node)

    async def kill(self) -> None:
        """SIGKILL to some at once."""
        nodes = self._victims()
        for node in nodes:
            node.kill()
        await self._again(*nodes)

    async def kill_at_event(self) -> None:
        """SIGKILL between two callbacks."""
        node = self._victim()
        if node.process is not None:
            node.process.events_left = self.dice.randrange(1 << self.dice.randrange(1, 12))
            await self._gone(node, 20.0)
        await self._again(node)

    async def kill_at_disk_call(self) -> None:
        """SIGKILL within a call to the disk, mostly of a start or a stop as well."""
        node = self._victim()
        dice = self.dice
        if node.process is not None:
            if dice.random() < 0.4:
                await self.simulation.stop(node) if dice.random() < 0.5 else node.kill()
                node.start()
                self.simulation.keep(node)
            node.kill_at_call(dice.randrange(1 << dice.randrange(1, 10)), 512 * dice.randrange(8))
            if dice.random() < 0.2:
                node.stop()
            await self._gone(node, 20.0)
        await self._again(node)

    async def power_loss(self) -> None:
        """The power of some hosts goes, or of all; often while their disks are slow and much is not synced."""
        nodes = list(self.cluster.nodes()) if self.dice.random() < 0.3 else self._victims()
        slow_s = self.dice.choice((0.0, 0.05, 0.5))
        if slow_s:
            for node in nodes:
                node.host.disk_delay_s = slow_s
            await asyncio.sleep(self.dice.expovariate(1 / (2 * slow_s)))
        for node in nodes:
            self.simulation.lose_power(node, self.dice)
            node.host.disk_delay_s = 0.0
        await self._again(*nodes)

    async def partition(self) -> None:
        """Hosts on two sides hear nothing of each other; or in one direction only."""
        dice, network = self.dice, self.loop.network
        hosts = [node.host.ip for node in self.cluster.nodes()]
        one = [ip for ip in hosts if dice.random() < 0.4]
        both = dice.random() < 0.6
        others = [ip for ip in network.hosts if ip not in one and (ip in hosts or dice.random() < 0.5)]
        for near in one:
            for far in others:
                network.cut(near, far)
                if both:
                    network.cut(far, near)
        await asyncio.sleep(dice.expovariate(1 / 4.0))
        if dice.random() < 0.7:
            network.heal()

    async def slow_link(self) -> None:
        """Bytes to or from one host take long."""
        dice, network = self.dice, self.loop.network
        ip = self._victim().host.ip
        for other in list(network.hosts):
            for link in (network.link(ip, other), network.link(other, ip)):
                if dice.random() < 0.6:
                    link.latency_s, link.jitter_s = dice.expovariate(1 / 0.2), dice.expovariate(1 / 0.2)
        await asyncio.sleep(dice.expovariate(1 / 3.0))

    async def reset(self) -> None:
        """Connections break, on both ends."""
        for transports in list(self.loop.network.connections.values()):
            for transport in list(transports):
                if self.dice.random() < 0.3:
                    transport.break_off()

    async def slow_disk(self) -> None:
        """Calls to one disk take long."""
        host = self._broker().host
        host.disk_delay_s = self.dice.choice((0.02, 0.2, 2.0))
        await asyncio.sleep(self.dice.expovariate(1 / 3.0))
        if self.dice.random() < 0.7:
            host.disk_delay_s = 0.0

    async def disk_error(self) -> None:
        """Some calls to one disk fail. A failed sync of the log can only be repaired by a restart."""
        node, dice = self._broker(), self.dice
        for _ in range(dice.randrange(1, 4)):
            op = dice.choice(("write", "write", "create", "allocate", "rename", "sync", "sync_dir", "open", "mkdir"))
            part = dice.choice(("", "", "/commitlog/", "/consumequeue/", "/config/", "/index/", "/data/"))
            number = dice.choice((errno.EIO, errno.ENOSPC))
            after, times = dice.randrange(30), dice.choice((1, 1, 3, 30))
            node.disk.fail(op, part, number, after, times)
            if op == "sync":
                node.disk.fail("sync_fs", "", number, after // 10, times)
        await asyncio.sleep(dice.expovariate(1 / 3.0))
        node.disk.heal()
        if not node.up:
            await self._again(node)
        elif node.broker is None or node.broker.failure() or dice.random() < 0.3:
            node.kill()
            await self._again(node)

    async def disk_full(self) -> None:
        """No room on one disk, or on all: what makes files larger fails."""
        dice = self.dice
        nodes = [node for node in self.cluster.nodes() if node.is_broker]
        for node in nodes if dice.random() < 0.4 else [self._broker()]:
            node.host.disk_used = 0.97
            for op in ("create", "allocate"):
                node.disk.fail(op, "", errno.ENOSPC, dice.randrange(5), None)
        await asyncio.sleep(dice.uniform(1, 30))
        for node in nodes:
            node.host.disk_used = None
            node.disk.heal()
        await self._again(*(node for node in nodes if not node.up))

    async def stranger(self) -> None:
        """A stranger connects, and sends valid and invalid frames."""
        nodes = [node for node in self.cluster.nodes() if node.up]
        await self.simulation.stranger.visit(nodes, self.dice.choice((1, 5, 20)))
        if self.dice.random() < 0.6:
            await self.simulation.stranger.leave()

    async def settings(self) -> None:
        """A broker ends, in order or not, and its next start has other settings."""
        node, dice = self._broker(), self.dice
        if node.up:
            await self.simulation.stop(node) if dice.random() < 0.6 else node.kill()
        changes = _CHANGES | (filtered.CHANGES if filtered.is_filtered(self.simulation.seed) else {})
        names = dice.sample(sorted(changes), dice.randrange(1, 4))
        if self.cluster.is_group(self.cluster.broker_of(node) or "") or self.simulation.profile.rot:
            names = [name for name in names if name != "flushDiskType"]  # what a group acknowledges is on their disks
        chosen = {name: dice.choice(changes[name]) for name in names}
        self.loop.trace.note(self.loop.now, f"{node.name} gets the settings {chosen}")
        node.change(chosen)
        await self._again(node)

    async def clock_jump(self) -> None:
        """One host's wall clock is set."""
        seconds = self.dice.choice((-86_400, -3_600, -5, -1, 1, 5, 3_600, 86_400))
        self.simulation.oracle.clocks_moved = True
        self._victim().host.wall_offset_ns += seconds * 10**9

    async def rot(self) -> None:
        """Bits of one broker's files change while it is stopped, or while it runs."""
        node = self._broker()
        if self.dice.random() < 0.6 and node.up:
            if self.dice.random() < 0.5:
                await self.simulation.stop(node)
            else:
                node.kill()
        await damage.at_rest(self.simulation, node, self.dice)
        if not node.up:
            await self._again(node)

    async def _gone(self, node: Node, limit_s: float = _DOWN_S) -> None:
        if not await self.simulation.down(node, limit_s):
            node.kill()
        elif node.ended_badly and not node.process:
            raise ViolationError("L2", f"{node.name} ended {node.ended_badly}")


KINDS: dict[str, Callable[[Faults], Awaitable[None]]] = {
    "stop": Faults.stop,
    "kill": Faults.kill,
    "kill at an event": Faults.kill_at_event,
    "kill at a disk call": Faults.kill_at_disk_call,
    "power loss": Faults.power_loss,
    "partition": Faults.partition,
    "slow link": Faults.slow_link,
    "reset": Faults.reset,
    "slow disk": Faults.slow_disk,
    "disk error": Faults.disk_error,
    "disk full": Faults.disk_full,
    "clock jump": Faults.clock_jump,
    "stranger": Faults.stranger,
    "settings": Faults.settings,
    "rot": Faults.rot,
}
