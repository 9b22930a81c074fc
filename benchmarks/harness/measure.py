"""One turn of each kind of run against one side: prepare, load, check what is stored, read the counters.

The order is the same for both sides: a new topic; sync(2), so that the other side's writes are not flushed during this
turn; counters; load; the dispatch catches up; counters; and last the count of stored messages, which costs CPU. So the
CPU per message includes queues and index. The messages of the warm-up count in both numerator and denominator.
"""

import os
import shutil
import statistics
import subprocess
import time
from dataclasses import dataclass, replace
from pathlib import Path

from harness.children import ChildError, running
from harness.control import Control, ControlError
from harness.groups import OurGroup
from harness.load import Load, LoadResult, result_of
from harness.memory import Filler
from harness.rows import JavaProduce, Memory, Metric, Mode, OpenLoop, Produce, Pull, Recover, Restart, Run
from harness.sides import HOST, OurSide, PeerSide, Side, stored_bytes
from harness.usage import Snapshot
from harness.verdict import Turn, void_reason

_DISPATCH_S = 60.0
_KEPT_UP = 0.98  # of the rate of an open loop: the last messages of each client can be after the end of the window
_PULL_TOPIC = "bench-pull"
_RECOVER_TOPIC = "bench-recover"


@dataclass(frozen=True, slots=True)
class Plan:
    """How long and how much."""

    seconds: float = 3.0
    """Measured part of a turn."""
    warmup_s: float = 1.0
    """In front of it, on both sides."""
    quick: bool = False
    store_limit_bytes: int = 4 << 30
    """A store that has grown above it is removed before the next turn."""
    pull_messages: int = 400_000


class Measurer:
    """Runs turns; keeps what is prepared once for several of them."""

    def __init__(
        self, plan: Plan, work: Path, peer: PeerSide | None, donor: Side, filler: Filler | None = None
    ) -> None:
        self.plan = plan
        self._filler = filler
        self._work = work
        self._java = peer
        self._donor = donor
        self._topics = 0
        self._pull_data: dict[str, int] = {}
        self._recover_count: int | None = None
        self._empty_start_s: dict[str, float] = {}
        self._filled: tuple[Side, int] | None = None

    def turn(self, run: Run, side: Side) -> Turn:
        """Measures once. Trouble with the side makes a void turn, so that the other rows go on."""
        try:
            match run:
                case Produce():
                    return self._produce(run, side)
                case OpenLoop():
                    return self._open_loop(run, side)
                case Pull():
                    return self._pull(run, side)
                case JavaProduce():
                    return self._java_produce(run, side)
                case Memory():
                    return self._memory(run, side)
                case Recover():
                    return self._recover(run, side)
                case Restart():
                    assert isinstance(side, OurSide | OurGroup), "ours_only"
                    return self._restart(run, side)
                case _:
                    raise AssertionError(f"no measurement for {run}")
        except (ChildError, ControlError) as error:
            side.stop()  # whatever state it is in: the next turn starts it afresh
            return Turn(run.name, side.name, {}, void=str(error))

    # -- preparing -------------------------------------------------------------------------------------------------

    def ready(self, side: Side, mode: Mode) -> None:
        """The side runs in this mode, with a store below the limit, and warm code."""
        if not side.running or side.mode != mode or stored_bytes(side.store) > self.plan.store_limit_bytes:
            side.start_fresh(mode)
        if not side.warm and side.warm_up_s > 0:
            topic = self._fresh_topic(side, 8)
            warm = Load("produce", topic, 4, 64, 128, seconds=side.warm_up_s, warmup=0, signs=mode.access)
            warm.run(HOST, side.port)
        side.warm = True

    def _fresh_topic(self, side: Side, queues: int) -> str:
        self._topics += 1
        topic = f"bench-{self._topics}"
        side.control.create_topic(topic, queues)
        return topic

    def _snapshot(self, side: Side) -> Snapshot:
        return Snapshot.take(side.pids(), side.helpers())

    # -- sending ---------------------------------------------------------------------------------------------------

    def _send(self, run: Run, side: Side, load: Load) -> Turn:
        if self._filler is not None:
            self._filler.fill()
        os.sync()
        before = self._snapshot(side)
        result = load.run(HOST, side.port)
        lag_s = side.control.wait_dispatched(_DISPATCH_S)
        after = self._snapshot(side)
        stored = side.control.wait_stored(load.topic, result.total_messages, 5)
        values = {
            Metric.RATE: result.rate,
            Metric.P50: result.latency_us["p50"],
            Metric.P99: result.latency_us["p99"],
            Metric.P999: result.latency_us["p999"],
            Metric.MAX: result.latency_us["max"],
            Metric.CPU: _per_million(after.broker_cpu_s - before.broker_cpu_s, result.total_messages),
            Metric.MEMORY: float(side.anonymous_bytes()),
            Metric.LAG: lag_s,
        }
        void = void_reason(result, stored)
        return Turn(run.name, side.name, values, after.foreign_cores(before), void, _notes(result, lag_s))

    def _produce(self, run: Produce, side: Side) -> Turn:
        self.ready(side, run.mode)
        load = Load(
            "produce",
            self._fresh_topic(side, run.queues),
            run.connections,
            run.outstanding,
            run.size,
            run.queues,
            self.plan.seconds,
            self.plan.warmup_s + run.warmup_s,
            signs=run.signs,
            tls=run.tls,
        )
        return self._send(run, side, load)

    def _open_loop(self, run: OpenLoop, side: Side) -> Turn:
        self.ready(side, run.mode)
        seconds = min(run.seconds, run.quick_seconds) if self.plan.quick else run.seconds
        topic = self._fresh_topic(side, 8)
        turn = self._send(run, side, Load("produce", topic, run.clients, seconds=seconds, every=run.period_s))
        rate = turn.values[Metric.RATE]
        behind = (f"it took {rate:.0f} of {run.rate} messages/s",) if rate < _KEPT_UP * run.rate else ()
        only = {metric: turn.values[metric] for metric in (Metric.P50, Metric.P99, Metric.P999, Metric.MAX, Metric.CPU)}
        return replace(turn, values=only, notes=turn.notes + behind)

    def _memory(self, run: Memory, side: Side) -> Turn:
        side.start_fresh(run.mode)
        count = run.quick_messages if self.plan.quick else run.messages
        load = Load("produce", self._fresh_topic(side, 8), 4, 64, 1024, count=count)
        turn = self._send(run, side, load)
        note = (f"after {count} messages only",) if count != run.messages else ()
        only = {Metric.MEMORY: turn.values[Metric.MEMORY]}  # a rate with a cold start in it is no rate
        return Turn(run.name, side.name, only, turn.foreign_cores, turn.void, turn.notes + note)

    def _java_produce(self, run: JavaProduce, side: Side) -> Turn:
        """The client prints a rate every 10 s; the broker's own count says the same sooner, and for any period."""
        if self._java is None:
            raise ChildError("RocketMQ's Java producer comes with the peer lab")
        self.ready(side, run.mode)
        topic = self._fresh_topic(side, 8)
        Control(HOST, side.nameserver_port).wait_route(topic, 10)
        warm_s = 6.0  # the client's own just-in-time compiler
        limit_s = warm_s + self.plan.seconds + 60
        os.sync()
        with self._java.java_producer(topic, run.threads, run.size, side.nameserver_port, limit_s) as client:
            helpers = [*side.helpers(), client.pid]
            side.control.wait_stored(topic, 1, 30)
            time.sleep(warm_s)
            began, first, before = time.monotonic(), side.control.stored(topic), Snapshot.take(side.pids(), helpers)
            time.sleep(self.plan.seconds)
            ended, last, after = time.monotonic(), side.control.stored(topic), Snapshot.take(side.pids(), helpers)
        void = "" if last > first else "the Java producer sent nothing"
        values = {
            Metric.RATE: (last - first) / (ended - began),
            Metric.CPU: _per_million(after.broker_cpu_s - before.broker_cpu_s, last - first),
        }
        return Turn(run.name, side.name, values, after.foreign_cores(before), void)

    # -- pulling ---------------------------------------------------------------------------------------------------

    def _pull(self, run: Pull, side: Side) -> Turn:
        self.ready(side, run.mode)
        if self._pull_data.get(side.name) != side.generation:
            side.control.create_topic(_PULL_TOPIC, 8)
            messages = self.plan.pull_messages
            result = Load("produce", _PULL_TOPIC, 4, 64, 1024, count=messages).run(HOST, side.port)
            side.control.wait_dispatched(_DISPATCH_S)
            if void := void_reason(result, side.control.stored(_PULL_TOPIC)):
                return Turn(run.name, side.name, {}, void=void)
            if side.warm_up_s > 0:
                Load("pull", _PULL_TOPIC, 4, seconds=5, warmup=0).run(HOST, side.port)
            self._pull_data[side.name] = side.generation
        os.sync()
        before = self._snapshot(side)
        load = Load("pull", _PULL_TOPIC, run.connections, seconds=self.plan.seconds, warmup=self.plan.warmup_s)
        result = load.run(HOST, side.port)
        after = self._snapshot(side)
        values = {
            Metric.RATE: result.rate,
            Metric.P50: result.latency_us["p50"],
            Metric.P99: result.latency_us["p99"],
            Metric.CPU: _per_million(after.broker_cpu_s - before.broker_cpu_s, result.total_messages),
            Metric.MEMORY: float(side.anonymous_bytes()),
        }
        void = f"the generator met errors: {'; '.join(result.errors)}" if result.errors else ""
        return Turn(
            run.name, side.name, values, after.foreign_cores(before), void, _notes(result, 0, ends=("19", "21"))
        )

    # -- starting --------------------------------------------------------------------------------------------------

    def _recover(self, run: Recover, side: Side) -> Turn:
        """Both sides get the same bytes, a log that the donor wrote: the same records, and written only once."""
        saved = self._work / "recover"
        if self._recover_count is None:
            count = self._fill(self._donor, run.quick_bytes if self.plan.quick else run.log_bytes)
            shutil.rmtree(saved, ignore_errors=True)
            (saved / "config").mkdir(parents=True)
            root = self._donor.store_root()
            self._donor.stop_broker()
            _copy(root / "commitlog", saved / "commitlog")
            shutil.copy2(root / "config" / "topics.json", saved / "config" / "topics.json")
            self._donor.stop()
            self._recover_count = count
        if side.name not in self._empty_start_s:
            self._empty_start_s[side.name] = self._empty_start(side)
            root = side.store_root()
            side.stop_broker()
            shutil.rmtree(root)
            root.mkdir()
            for part in ("commitlog", "config"):
                _copy(saved / part, root / part)
        else:
            root = side.store_root()
        for entry in root.iterdir():
            if entry.name not in ("commitlog", "config"):
                shutil.rmtree(entry) if entry.is_dir() else entry.unlink()
        (root / "abort").touch()  # not stopped in order: the whole log is checked
        for segment in sorted((root / "commitlog").iterdir()):
            subprocess.run(["cat", str(segment)], stdout=subprocess.DEVNULL, check=True)
        os.sync()
        count = self._recover_count
        before = self._snapshot(side)
        seconds = side.time_start(lambda: _readable(side, count))
        after = self._snapshot(side)
        stored = side.control.stored(_RECOVER_TOPIC)
        side.stop_broker()
        values = {Metric.FROM_EXEC: seconds, Metric.SECONDS: max(0.001, seconds - self._empty_start_s[side.name])}
        void = "" if stored == count else f"{count} messages in the log, {stored} readable"
        return Turn(run.name, side.name, values, after.foreign_cores(before), void, (f"a log of {count} messages",))

    def _fill(self, side: Side, log_bytes: int) -> int:
        """A fresh store with a log of this size, 128 B bodies in 8 queues; returns the number of messages."""
        side.start_fresh(Mode())
        side.control.create_topic(_RECOVER_TOPIC, 8)
        while side.control.log_end() < log_bytes:
            count = min(400_000, (log_bytes - side.control.log_end()) // 270 + 1)
            Load("produce", _RECOVER_TOPIC, 4, 64, 128, count=count).run(HOST, side.port)
        side.control.wait_dispatched(_DISPATCH_S)
        return side.control.stored(_RECOVER_TOPIC)

    def _empty_start(self, side: Side) -> float:
        """The median of three starts with an empty store: what a start costs without messages."""
        side.start_fresh(Mode())
        seconds = []
        for _ in range(3):
            side.stop_broker()
            seconds.append(side.time_start(side.control.answers))
        return statistics.median(seconds)

    def _restart(self, run: Restart, side: OurSide | OurGroup) -> Turn:
        """kill -9 while sends are in flight, every time; the first time the store is filled before."""
        if self._filled != (side, side.generation) or not side.running:
            side.start_fresh(run.mode)
            side.control.create_topic(_RECOVER_TOPIC, 8)
            self._filled = side, side.generation
        stored = side.control.stored(_RECOVER_TOPIC)
        load = Load("produce", _RECOVER_TOPIC, 4, 64, 1024, seconds=600, warmup=0)
        with running(load.command(HOST, side.port)) as generator:
            while side.control.log_end() < run.log_bytes:
                time.sleep(0.1)
            time.sleep(self.plan.warmup_s)
            side.kill()
            acknowledged = result_of(generator, 60).total_messages
        if run.cold:
            side.forget_cached()
        before = self._snapshot(side)
        seconds = side.seconds_to_ready()
        after = self._snapshot(side)
        found = side.control.wait_stored(_RECOVER_TOPIC, stored + acknowledged, 60) - stored
        # The process was killed, not the machine: what it had acknowledged was in the page cache.
        void = "" if found >= acknowledged else f"{acknowledged} acknowledged before the kill, {found} after it"
        return Turn(run.name, side.name, {Metric.SECONDS: seconds}, after.foreign_cores(before), void)


def _readable(side: Side, count: int) -> bool:
    try:
        return side.control.stored(_RECOVER_TOPIC) >= count
    except ControlError:
        return False  # not listening yet, or the topic is not loaded yet


def _copy(source: Path, target: Path) -> None:
    """A copy that keeps holes: segments are allocated ahead."""
    subprocess.run(["cp", "-a", "--sparse=always", str(source), str(target)], check=True)


def _per_million(cpu_s: float, messages: int) -> float:
    return cpu_s / messages * 1e6 if messages else 0.0


def _notes(result: LoadResult, lag_s: float, ends: tuple[str, ...] = ()) -> tuple[str, ...]:
    notes = [
        f"code {code} {count} times: {result.remarks.get(code, '')}"
        for code, count in result.codes.items()
        if code != "0" and code not in ends
    ]
    if lag_s > 1:
        notes.append("the dispatch was more than a second behind at the end")
    if result.cpu_share > 0.95:
        notes.append("the generator was the limit")
    return tuple(notes)
