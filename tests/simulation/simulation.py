"""One run: a world from a seed, clients at work, faults among them, and then everything has to be there."""

from __future__ import annotations

import asyncio
import gc
import itertools
import logging
import os
import random
import shutil
import tempfile
from collections import Counter
from collections.abc import Callable
from contextvars import copy_context
from dataclasses import dataclass, field
from pathlib import Path
from random import Random

from simulation import profiles, workload
from simulation.audit import audit
from simulation.clients import Client, Outgoing
from simulation.cluster import Cluster
from simulation.faults import Faults
from simulation.filtered import SETTINGS, FilteredConsumer, is_filtered
from simulation.loop import SimLoop
from simulation.network import Network
from simulation.nodes import Node, bury
from simulation.oracle import Fate, Oracle, Sent
from simulation.ordered import Locks, OrderedConsumer
from simulation.patches import World
from simulation.routes import routed
from simulation.stranger import Stranger
from simulation.tables import Tables
from simulation.trace import Trace
from simulation.violation import ViolationError
from simulation.world import Entropy, Process, current
from tallystick.node.remoting.codes import RequestCode
from tallystick.store.formats.record import Record

_READY_S = 60.0
"""Virtual seconds within which a broker serves after a start, without a fault."""
_SETTLED_S = 90.0
"""Within which a broker takes messages after the last fault."""
_STOP_S = 120.0
_MOST_STARTS = 5
"""A member may end with status 1 to be started again."""
_ASYNC_S = 12.0
"""ASYNC_FLUSH: flushCommitLogThoroughInterval, and some time for the sync itself."""


@dataclass
class Outcome:
    """What became of one run."""

    seed: int
    profile: str
    violation: str | None = None
    trace: list[str] = field(default_factory=list)
    digest: int = 0
    steps: int = 0
    virtual_s: float = 0.0
    acknowledged: int = 0
    read: int = 0
    faults: Counter[str] = field(default_factory=Counter)


def remove_leftovers(folder: Path) -> None:
    """Removes what runs that were killed left in memory, and what one left that had the number of this process."""
    for path in folder.glob("simulation-???????"):
        number = path.name.partition("-")[2]
        if number.isdigit() and (int(number) == os.getpid() or not Path("/proc", str(int(number))).exists()):
            shutil.rmtree(path, ignore_errors=True)


class Simulation:
    """Everything of one run is in here and in its folder."""

    def __init__(
        self,
        seed: int,
        profile: profiles.Profile | None = None,
        *,
        folder: Path | None = None,
        listener: Callable[[str], None] | None = None,
    ) -> None:
        self.seed = seed
        self.dice = Random(seed)
        self.profile = profile or profiles.of_seed(self.dice)
        self.outcome = Outcome(seed, self.profile.name)
        self.trace = Trace(listener=listener)
        self._probes = 0
        self.clients: list[Client] = []
        self._processes: list[Process] = []
        self._folder = folder or Path("/dev/shm" if Path("/dev/shm").is_dir() else tempfile.gettempdir())

    def run(self) -> Outcome:
        """Plays it to its end."""
        outcome = self.outcome
        random.seed(self.seed)
        World.entropy = Entropy(self.seed)
        World.hashes = itertools.count()
        World.most_single_syncs = (0, 0, 2)[self.seed % 3]
        loop = self.loop = SimLoop(self._dice(), self.trace)
        World.loop = loop
        loop.network = self.network = Network(loop, self._dice(), self.profile.network(self._dice()))
        self.root = self._folder / f"simulation-{os.getpid():07}"  # of one length: answers may name it
        remove_leftovers(self._folder)
        self.root.mkdir()
        self.trace.leave_out(str(self.root))
        logging_handler = _Reports(self)
        logging.getLogger("tallystick").addHandler(logging_handler)
        gc.disable()
        try:
            loop.run_until_complete(self._play())
            if loop.problems:
                raise ViolationError("X1", f"an uncaught exception: {loop.problems[0]}")
        except ViolationError as error:
            outcome.violation = str(error)
        except AssertionError as error:
            outcome.violation = f"X2: {type(error).__name__}: {error}"
        finally:
            outcome.trace = list(self.trace.lines)
            loop.end()
            self.trace.close()
            copy_context().run(self._clear)
            logging.getLogger("tallystick").removeHandler(logging_handler)
            gc.enable()
        outcome.digest, outcome.steps, outcome.virtual_s = self.trace.digest, loop.steps, loop.now
        return outcome

    def _clear(self) -> None:
        for node in self.cluster.nodes():
            if node.process is not None:
                node.kill()
        bury([*self._processes, *(client.process for client in self.clients)])
        World.loop = World.entropy = None
        asyncio.set_event_loop(None)
        shutil.rmtree(self.root, ignore_errors=True)

    def _dice(self) -> Random:
        return Random(self.dice.getrandbits(64))

    # --- the play ---

    async def _play(self) -> None:
        dice = self._dice()
        self.oracle = Oracle()
        self.locks = Locks()
        shape, settings = self.profile.shape(dice), self.profile.settings(dice)
        if is_filtered(self.seed) and not self.profile.rot:
            settings |= SETTINGS
        self.cluster = Cluster(self.loop, self.root, shape, settings, self._dice())
        self.struck: dict[str, Node] = {}
        self.older_tables: set[str] = set()
        """Brokers that may have gone back to the tables before their last change."""
        await asyncio.gather(*(self.start(node) for node in self.cluster.nodes()))
        habits = self.profile.clients(self._dice())
        count = habits.producers + habits.consumers
        self.clients = [
            Client(self.loop, f"client{number}", f"10.0.1.{number + 1}", self._dice()) for number in range(count + 1)
        ]
        self.auditor = self.clients[-1]
        await self._settle()
        self.cluster.founded()
        self.stranger = Stranger(self.loop, self._dice())
        work = workload.Workload(self.clients[:count], self.oracle, habits, self._dice(), self._target)
        work.start()
        self.tables = Tables(list(self.cluster.brokers), self.cluster.address)
        administrator = self.clients[0].run(self.tables.work(self.clients[0], self._dice(), habits.admin_pause_s))
        ordered = [self._ordered(number, habits.admin_pause_s) for number in range(habits.ordered)]
        ordered += self._filtered(habits.topics) if is_filtered(self.seed) and not self.profile.rot else []
        faults = Faults(self, self._dice())
        kinds = self.profile.draw_faults(dice)
        for _ in range(dice.randrange(1, 8)):
            work.allow(habits.messages)
            await asyncio.sleep(dice.expovariate(1 / 3.0))
            await faults.inject(dice.choice(kinds))
            if dice.random() < 0.4:
                await faults.heal()
                await self._settle()
                await self._audit()
        await asyncio.sleep(dice.expovariate(1 / 2.0))
        await faults.heal()
        await self._settle()
        await work.stop()
        self.tables.stopping = True
        await asyncio.gather(administrator, *ordered)
        await asyncio.sleep(45.0 if habits.delay or habits.timer else 1.0)
        await self._audit()
        await asyncio.gather(*(self.stop(node) for node in self.cluster.nodes() if node.is_broker))
        await asyncio.gather(*(self.start(node) for node in self.cluster.nodes() if node.is_broker))
        await self._settle()
        await self._audit()
        await self._leave_pulls()
        for client in self.clients:
            await client.run(client.close())
        await self.stranger.leave()
        await asyncio.sleep(1.0)
        self._nothing_held()
        await asyncio.gather(*(self.stop(node) for node in self.cluster.nodes()))

    def _ordered(self, number: int, pause_s: float) -> asyncio.Task[None]:
        consumer = OrderedConsumer(self.auditor, f"ordered{number}", self._dice(), self.locks, self._server)
        work = consumer.work(list(self.cluster.brokers), lambda: self.tables.stopping, pause_s)
        return self.auditor.run(work)

    def _filtered(self, topics: int) -> list[asyncio.Task[None]]:
        clients = [Client(self.loop, f"filtered{n}", f"10.0.2.{n + 1}", Random(self.seed + n)) for n in range(2)]
        self.clients += clients
        return [
            client.run(
                FilteredConsumer(client, client.host.name, client.dice, self.cluster.address).work(
                    list(self.cluster.brokers), topics, lambda: self.tables.stopping
                )
            )
            for client in clients
        ]

    def _server(self, broker: str) -> tuple[Process | None, str]:
        node = self.cluster.leader(broker)
        return (None if node is None else node.process), self.cluster.address(broker)

    def _target(self, dice: Random) -> tuple[str, str]:
        """Where a client sends to."""
        broker = dice.choice(list(self.cluster.brokers))
        if dice.random() < 0.2:
            return broker, dice.choice(self.cluster.brokers[broker]).address
        return broker, self.cluster.address(broker)

    async def start(self, node: Node) -> None:
        """Starts it, and again if it asks for that; it serves when this returns."""
        for _ in range(_MOST_STARTS):
            node.start()
            self.keep(node)
            deadline = self.loop.now + _READY_S
            while node.up and not node.ready:
                if self.loop.now > deadline:
                    raise ViolationError("L1", f"{node.name} does not serve {_READY_S:g} s after its start")
                await asyncio.sleep(0.01)
            if node.ready:
                return
            if node.ended_badly and "status 1" not in node.ended_badly:
                break
            await asyncio.sleep(1.0)
        raise ViolationError("L1", f"{node.name} does not start: {node.ended_badly or 'it ends'}")

    def keep(self, node: Node) -> None:
        """What is left of its process is kept until the end, so that nothing of it runs."""
        if node.process is not None:
            self._processes.append(node.process)

    async def stop(self, node: Node) -> None:
        """SIGTERM, and wait."""
        node.stop()
        if not await self.down(node, _STOP_S):
            raise ViolationError("L2", f"{node.name} was stopped, and still runs after {_STOP_S:g} s")
        if node.ended_badly:
            raise ViolationError("L2", f"{node.name} was stopped, and ended {node.ended_badly}")
        if node.left_over:
            raise ViolationError("L4", f"{node.name} ended in order and left tasks: {node.left_over}")

    async def down(self, node: Node, limit_s: float) -> bool:
        """Whether its process is gone, within the limit."""
        deadline = self.loop.now + limit_s
        while node.up:
            if self.loop.now > deadline:
                return False
            await asyncio.sleep(0.01)
        return True

    def lose_power(self, node: Node, dice: Random) -> None:
        """Its power goes. What was acknowledged before it was synced may be lost then."""
        node.lose_power(dice, dice.choice((None, 0.0)))
        if node.is_broker:
            self.oracle.torn.add(self.cluster.broker_of(node) or "")
        async_until = self.loop.now if node.settings.get("flushDiskType") == "ASYNC_FLUSH" else node.async_until
        if node.is_broker and async_until > self.loop.now - _ASYNC_S:
            broker = self.cluster.broker_of(node)
            for item in self.oracle.sent.values():
                item.excused |= item.queue[0] == broker and item.fate is Fate.PENDING
            self.oracle.may_be_lost([
                item
                for item in self.oracle.sent.values()
                if item.queue[0] == broker and self.loop.now - _ASYNC_S < item.acknowledged_at <= async_until
            ])  # fmt: skip

    def hit_log(self, node: Node, items: list[Sent], records: list[Record]) -> None:
        """Records of a node's log were damaged: those of `items`, and `records`, with copies of late messages."""
        broker = self.cluster.broker_of(node)
        assert broker is not None
        if len(self.cluster.brokers[broker]) == 1:
            self.oracle.damage(broker, items)
            self.oracle.damage_copies(broker, records)

    async def _leave_pulls(self) -> None:
        """Clients that leave while brokers hold their pulls."""
        for broker in self.cluster.brokers:
            task = self.auditor.run(self._pull_at_the_end(self.cluster.address(broker)))
            task.add_done_callback(lambda done: done.cancelled() or done.exception())
        for node in self.cluster.nodes():
            await self.stranger.stall(node)
        await asyncio.sleep(0.3)

    async def _pull_at_the_end(self, address: str) -> None:
        high = await self.auditor.offset(address, RequestCode.GET_MAX_OFFSET, "Probe", 0)
        await self.auditor.pull(address, "leaving", "Probe", 0, int((high.ext or {})["offset"]), wait_s=60.0)

    def _nothing_held(self) -> None:
        """All clients are gone: no broker holds memory for their connections, requests or locks."""
        for node in self.cluster.nodes():
            process, broker = node.process, node.broker
            held = sum(process.budget._held.values()) if process is not None and process.budget is not None else 0
            if held:
                raise ViolationError("L6", f"{node.name} holds {held} bytes for connections that are closed")
            if broker is not None and len(broker.holds):
                raise ViolationError("L6", f"{node.name} holds {len(broker.holds)} pulls of clients that are gone")

    async def _settle(self) -> None:
        """Every broker takes a message, within bounded time."""
        for broker in self.cluster.brokers:
            await self.auditor.run(self._probe(broker))
        self.oracle.offsets.quiet = self.locks.quiet = True
        self.oracle.settled_at = self.loop.now

    async def _probe(self, broker: str) -> None:
        deadline, problem = self.loop.now + _SETTLED_S, "there is no leader"
        while self.loop.now < deadline:
            if self.cluster.leader(broker) is not None:
                self._probes += 1
                key = f"P{self._probes}"
                message = Outgoing(key, "Probe", 0, key.encode())
                sent = self.oracle.sending(broker, message)
                if await workload.send(self.auditor, self.cluster.address(broker), sent, self.oracle):
                    return
                problem = f"the last probe was {sent.fate.value}"
            await asyncio.sleep(0.5)
        raise ViolationError("L5", f"{broker} takes nothing {_SETTLED_S:g} s after the last fault: {problem}")

    async def _audit(self) -> None:
        oracle = self.oracle
        self.outcome.read += await self.auditor.run(audit(self.auditor, self.cluster.address, oracle))
        if not self.older_tables:
            await self.auditor.run(self.tables.check(self.auditor, self.cluster.address))
            await self.auditor.run(oracle.offsets.check(self.auditor, self.cluster.address))
        self.outcome.acknowledged = oracle.acknowledged
        for names in self.cluster.names:
            for broker in self.cluster.brokers:
                await self.auditor.run(routed(self.auditor, names, broker, self.cluster))
        for broker, count in oracle.unread.items():
            node = self.cluster.brokers[broker][0]
            if count and broker in oracle.damaged and not any("damage" in text for text in node.reports):
                raise ViolationError(
                    "A8", f"{count} records of {broker} are damaged, and it did not say so: {oracle.unread_at}"
                )


class _Reports(logging.Handler):
    """What processes log is part of the trace."""

    def __init__(self, simulation: Simulation) -> None:
        super().__init__(logging.INFO)
        self._simulation = simulation

    def emit(self, record: logging.LogRecord) -> None:
        process = current.get()
        if process is None or process.gone:
            return
        if record.levelno >= logging.WARNING:
            for node in self._simulation.cluster.nodes():
                if node.process is process:
                    node.reports.append(record.getMessage())
        text = f"{process} {record.levelname} {record.getMessage()}"
        if record.exc_info and record.exc_info[1] is not None:
            text += f": {record.exc_info[1]!r}"
        self._simulation.trace.note(self._simulation.loop.now, text)
