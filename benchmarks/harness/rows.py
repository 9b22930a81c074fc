"""What is measured and what is expected: runs are kinds of load, lines are the rows of the table that they fill.

A line compares a figure of our side with one of RocketMQ's (or with another figure of ours) and names two marks: below
the floor something is wrong; the aim is what a prototype without permissions, statistics and long polling reached. Both
are advantages, "so many times better", whichever direction is better for the figure: p99 <= 1/2 is an advantage of 2.
"""

import fnmatch
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Literal, NamedTuple

Flush = Literal["ASYNC_FLUSH", "SYNC_FLUSH"]
SideName = Literal["ours", "peer"]
Layout = Literal["single", "group"]
"""One broker, or three that replicate."""


class Mode(NamedTuple):
    """How a broker is started for a run. `access`: with access control."""

    flush: Flush = "ASYNC_FLUSH"
    access: bool = False


class Metric(Enum):
    """A figure of a turn: its name in the JSON, its heading in the table, and whether more of it is better."""

    RATE = ("rate", "messages/s", True)
    P50 = ("p50_us", "p50", False)
    P99 = ("p99_us", "p99", False)
    P999 = ("p999_us", "p99.9", False)
    MAX = ("max_us", "slowest", False)
    CPU = ("cpu_s_per_million", "CPU s per million", False)
    MEMORY = ("anonymous_bytes", "anonymous memory", False)
    SECONDS = ("seconds", "seconds", False)
    FROM_EXEC = ("seconds_from_exec", "seconds from exec", False)
    LAG = ("dispatch_lag_s", "dispatch lag", False)

    def __init__(self, key: str, heading: str, more_is_better: bool) -> None:
        self.key, self.heading, self.more_is_better = key, heading, more_is_better


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """A kind of load. `max_turns`: for what takes long and changes little between turns; `long`: not with --quick."""

    name: str
    flush: Flush = "ASYNC_FLUSH"
    access: bool = False
    layout: Layout = "single"
    ours_only: bool = False
    max_turns: int | None = None
    long: bool = False

    @property
    def mode(self) -> Mode:
        """How the brokers are started for it."""
        return Mode(self.flush, self.access)


@dataclass(frozen=True, slots=True, kw_only=True)
class Produce(Run):
    """Connections x outstanding sends. `warmup_s` is for what a first touch costs, beside the bench's own."""

    connections: int
    outstanding: int
    size: int = 1024
    queues: int = 8
    warmup_s: float = 0.0
    signs: bool = False
    """The generator signs each message. Without `access`, the broker does not look at signatures."""
    tls: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenLoop(Run):
    """Clients that together send `rate` messages of 1 KiB a second, one each in turn, at times that no answer changes.

    A latency counts from the time at which the message was due: a client whose last message has no answer yet sends the
    next one late, and that delay is part of the latency.
    """

    clients: int
    rate: int
    seconds: float
    quick_seconds: float = 5.0

    @property
    def period_s(self) -> float:
        """Time between two messages of one client."""
        return self.clients / self.rate


@dataclass(frozen=True, slots=True, kw_only=True)
class Pull(Run):
    """Each connection with one pull of 32 outstanding, through 8 queues of 1 KiB bodies."""

    connections: int


@dataclass(frozen=True, slots=True, kw_only=True)
class JavaProduce(Run):
    """RocketMQ's own benchmark producer: threads that send one message after the other."""

    threads: int
    size: int = 128


@dataclass(frozen=True, slots=True, kw_only=True)
class Memory(Run):
    """Anonymous memory after so many messages into a fresh broker, 4 x 64 outstanding, 1 KiB."""

    messages: int
    quick_messages: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Recover(Run):
    """Start on a log without queues and index, marked as not stopped in order, until every message can be read."""

    log_bytes: int
    quick_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Restart(Run):
    """Start after kill -9 under load, with a store of this size. `cold`: nothing of it is in the page cache then."""

    log_bytes: int
    cold: bool = False


RUNS: tuple[Run, ...] = (
    Produce(name="async-4x64-128", connections=4, outstanding=64, size=128),
    Produce(name="async-4x64-1k", connections=4, outstanding=64),
    Produce(name="async-64x1-1k", connections=64, outstanding=1),
    # What signing costs the generator is in both runs that are compared.
    Produce(name="signed-4x64-128", signs=True, connections=4, outstanding=64, size=128, ours_only=True),
    Produce(name="acl-4x64-128", access=True, signs=True, connections=4, outstanding=64, size=128),
    Produce(name="signed-64x1-1k", signs=True, connections=64, outstanding=1, ours_only=True),
    Produce(name="acl-64x1-1k", access=True, signs=True, connections=64, outstanding=1),
    Produce(name="async-1x1-1k", connections=1, outstanding=1),
    Produce(name="tls-4x64-128", connections=4, outstanding=64, size=128, tls=True),
    Produce(name="tls-64x1-1k", connections=64, outstanding=1, tls=True),
    OpenLoop(name="open-2000", clients=64, rate=2000, seconds=20),
    OpenLoop(name="open-20000", clients=64, rate=20_000, seconds=20),
    Pull(name="pull-1", connections=1),
    Pull(name="pull-4", connections=4),
    Produce(name="queues-10", connections=4, outstanding=64, size=128, queues=10),
    Produce(name="queues-1000", connections=4, outstanding=64, size=128, queues=1000, warmup_s=2),
    JavaProduce(name="java-64", threads=64),
    Memory(name="memory-2m", messages=2_000_000, quick_messages=300_000, max_turns=3),
    Produce(name="sync-1", flush="SYNC_FLUSH", connections=1, outstanding=1),
    Produce(name="sync-16", flush="SYNC_FLUSH", connections=4, outstanding=4),
    Produce(name="sync-64", flush="SYNC_FLUSH", connections=4, outstanding=16),
    Produce(name="sync-256", flush="SYNC_FLUSH", connections=4, outstanding=64),
    # Those that throw the store away come last.
    Recover(name="recover-1g", log_bytes=1 << 30, quick_bytes=1 << 28),
    Produce(
        name="queues-50000",
        connections=4,
        outstanding=64,
        size=128,
        queues=50_000,
        warmup_s=15,
        ours_only=True,
        max_turns=3,
        long=True,
    ),
    # SYNC_FLUSH is what our group does by default; RocketMQ's DLedger has no such mode, whatever it is told.
    Produce(name="group-1", layout="group", flush="SYNC_FLUSH", connections=1, outstanding=1),
    Produce(name="group-16", layout="group", flush="SYNC_FLUSH", connections=4, outstanding=4),
    Produce(name="group-64", layout="group", flush="SYNC_FLUSH", connections=4, outstanding=16),
    Produce(name="group-256", layout="group", flush="SYNC_FLUSH", connections=4, outstanding=64),
    OpenLoop(name="group-open-2000", layout="group", flush="SYNC_FLUSH", clients=64, rate=2000, seconds=20),
    OpenLoop(
        name="group-open-25",
        layout="group",
        flush="SYNC_FLUSH",
        clients=25,
        rate=25,
        seconds=60,
        max_turns=3,
        long=True,
    ),
    Restart(name="restart-10g", log_bytes=10 << 30, ours_only=True, max_turns=5, long=True),
    # RocketMQ's lab starts and stops its members together, so there is nothing to compare with.
    Restart(
        name="group-restart-10g",
        layout="group",
        flush="SYNC_FLUSH",
        log_bytes=10 << 30,
        ours_only=True,
        max_turns=5,
        long=True,
    ),
    Restart(
        name="group-restart-10g-cold",
        layout="group",
        flush="SYNC_FLUSH",
        log_bytes=10 << 30,
        cold=True,
        ours_only=True,
        max_turns=5,
        long=True,
    ),
)


@dataclass(frozen=True, slots=True)
class Line:
    """One row of the table: our figure of `run` against that of `against` (side, run), or as it is."""

    title: str
    metric: Metric
    run: str
    against: tuple[SideName, str] | None
    floor: float | None = None
    aim: float | None = None
    """Advantages; with nothing to compare, the most that the figure may be."""


def _versus_peer(title: str, run: str, metric: Metric, floor: float | None = None, aim: float | None = None) -> Line:
    return Line(title, metric, run, ("peer", run), floor, aim)


LINES: tuple[Line, ...] = (
    _versus_peer("Async flush, 4 connections x 64 outstanding, 128 B", "async-4x64-128", Metric.RATE, 8, 17),
    _versus_peer("Async flush, 4 x 64, 1 KiB", "async-4x64-1k", Metric.RATE, 6, 10.5),
    _versus_peer("Async flush, 4 x 64, 1 KiB", "async-4x64-1k", Metric.CPU, 6, 11),
    _versus_peer("Async flush, 64 connections x 1, 1 KiB", "async-64x1-1k", Metric.RATE, 2.5, 3.5),
    _versus_peer("Async flush, 64 x 1, 1 KiB", "async-64x1-1k", Metric.P99, 2, 4),
    _versus_peer("Async flush, 64 x 1, 1 KiB", "async-64x1-1k", Metric.CPU, 3, 5.5),
    _versus_peer("Async flush, 1 x 1, 1 KiB", "async-1x1-1k", Metric.RATE, 1.4, 1.9),
    _versus_peer("Access control, 4 x 64, 128 B", "acl-4x64-128", Metric.RATE, 4, 12),
    Line("Access control against none, 4 x 64, 128 B", Metric.RATE, "acl-4x64-128", ("ours", "signed-4x64-128"), 0.75),
    Line("Access control against none, 4 x 64, 128 B", Metric.CPU, "acl-4x64-128", ("ours", "signed-4x64-128")),
    _versus_peer("Access control, 64 x 1, 1 KiB", "acl-64x1-1k", Metric.RATE, 2.5, 3.5),
    Line("Access control against none, 64 x 1, 1 KiB", Metric.RATE, "acl-64x1-1k", ("ours", "signed-64x1-1k"), 0.9),
    Line("Access control against none, 64 x 1, 1 KiB", Metric.CPU, "acl-64x1-1k", ("ours", "signed-64x1-1k")),
    _versus_peer("TLS, async flush, 4 x 64, 128 B", "tls-4x64-128", Metric.RATE, 4, 8),
    _versus_peer("TLS, async flush, 64 x 1, 1 KiB", "tls-64x1-1k", Metric.RATE, 1.5, 2.5),
    _versus_peer("TLS, async flush, 64 x 1, 1 KiB", "tls-64x1-1k", Metric.CPU, 2, 4),
    _versus_peer("2 000 messages/s, open loop, 64 clients, 1 KiB", "open-2000", Metric.P99),
    _versus_peer("2 000 messages/s, open loop", "open-2000", Metric.P999, 5),
    _versus_peer("20 000 messages/s, open loop, 64 clients, 1 KiB", "open-20000", Metric.P99),
    _versus_peer("20 000 messages/s, open loop", "open-20000", Metric.P999, 5),
    _versus_peer("Sync flush, 1 outstanding, 1 KiB", "sync-1", Metric.RATE, 1.0, 1.4),
    _versus_peer("Sync flush, 16 outstanding (4 x 4), 1 KiB", "sync-16", Metric.RATE, 1.5, 2),
    _versus_peer("Sync flush, 64 outstanding (4 x 16), 1 KiB", "sync-64", Metric.RATE, 2, 2.5),
    _versus_peer("Sync flush, 256 outstanding (4 x 64), 1 KiB", "sync-256", Metric.RATE, 3, 4.2),
    _versus_peer("After 2 million messages of 1 KiB", "memory-2m", Metric.MEMORY, 8, 40),
    _versus_peer("Pull by 32, 1 connection, 1 KiB", "pull-1", Metric.RATE, 1.3, 1.5),
    _versus_peer("Pull by 32, 1 connection, 1 KiB", "pull-1", Metric.CPU, 2),
    _versus_peer("Pull by 32, 4 connections, 1 KiB", "pull-4", Metric.RATE, 1.5, 2.5),
    _versus_peer("Pull by 32, 4 connections, 1 KiB", "pull-4", Metric.CPU, 2),
    _versus_peer("RocketMQ's Java benchmark producer, 64 threads, 128 B", "java-64", Metric.RATE, 1.8, 2.5),
    _versus_peer("Recover and dispatch 1 GiB of 128 B, less an empty start", "recover-1g", Metric.SECONDS, 5, 13),
    _versus_peer("The same, to the last message readable", "recover-1g", Metric.FROM_EXEC),
    Line("Restart after kill -9 with a 10 GiB store, to ready", Metric.SECONDS, "restart-10g", None, 3, 1),
    _versus_peer("Three replicas, 1 outstanding, 1 KiB", "group-1", Metric.RATE, 1.5, 2.2),
    _versus_peer("Three replicas, 16 outstanding (4 x 4), 1 KiB", "group-16", Metric.RATE, 1.7, 2.4),
    _versus_peer("Three replicas, 64 outstanding (4 x 16), 1 KiB", "group-64", Metric.RATE, 3.5, 5.2),
    _versus_peer("Three replicas, 64 outstanding (4 x 16), 1 KiB", "group-64", Metric.P99, 4),
    _versus_peer("Three replicas, 256 outstanding (4 x 64), 1 KiB", "group-256", Metric.RATE, 7, 11),
    _versus_peer("Three replicas, 2 000 messages/s, open loop", "group-open-2000", Metric.P999, 5),
    Line("Three replicas, 25 clients that send once a second", Metric.P999, "group-open-25", None, 20_000),
    _versus_peer("The same, beside RocketMQ", "group-open-25", Metric.P999),
    _versus_peer("Three replicas, 256 outstanding, all members", "group-256", Metric.CPU, 5, 14),
    _versus_peer("Three replicas, all members", "group-256", Metric.MEMORY, 8),
    Line("Leader with a 10 GiB log, restart after kill -9", Metric.SECONDS, "group-restart-10g", None, 5, 2),
    Line("The same, nothing in the page cache", Metric.SECONDS, "group-restart-10g-cold", None, 5, 2),
    _versus_peer("10 queues, 4 x 64, 128 B", "queues-10", Metric.RATE),
    _versus_peer("1 000 queues, 4 x 64, 128 B", "queues-1000", Metric.RATE),
    Line("1 000 queues against 10, both ours", Metric.CPU, "queues-1000", ("ours", "queues-10"), 1 / 1.2),
    Line("50 000 queues against RocketMQ's 10", Metric.RATE, "queues-50000", ("peer", "queues-10"), 1),
)


class RowError(ValueError):
    """A pattern that no run matches; the text names both."""


def select(patterns: Sequence[str], *, quick: bool) -> list[Run]:
    """The runs that match one of the patterns ("sync-*", "pull-1"); all of them without patterns, less the long ones if
    `quick`. RowError: a pattern matches nothing.
    """
    for pattern in patterns:
        if not any(fnmatch.fnmatchcase(run.name, pattern) for run in RUNS):
            raise RowError(f"no row {pattern!r}; there are {', '.join(run.name for run in RUNS)}")
    if not patterns:
        return [run for run in RUNS if not (quick and run.long)]
    return [run for run in RUNS if any(fnmatch.fnmatchcase(run.name, pattern) for pattern in patterns)]
