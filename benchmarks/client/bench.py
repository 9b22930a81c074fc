"""`make bench-client`: this client beside the official Python client of RocketMQ 5 and RocketMQ's Java client 4.8.0.

All of them talk to one RocketMQ 5.5.0 with its proxy, in alternating turns: the official client through gRPC, the
others with RocketMQ's own protocol. A figure is the median of the turns. The first one is the number of messages for
each second of CPU that the client's process used: it depends little on the broker, which shares the machine. The rate
is what the pair of client and broker reached.

    send      messages one by one, with 64 of them on their way
    batch     messages that may leave together: `coalesce` of this client, lists of 64 in Java; the official client has
              no batches, and its figure is that of `send`
    consume   a consumer of a group, which acknowledges each message
    batches   the same with this client's `batches(32)`; the others have the figures of `consume`
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import subprocess
import sys
import tempfile
from collections import defaultdict
from dataclasses import asdict
from pathlib import Path
from typing import Any, NamedTuple

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from harness.usage import Snapshot
from server import Proxy, ServerError
from turn import Arguments

from tallystick.client import Client

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent.parent
WORK = ROOT / "build" / "bench-client"
SIZE = 256
OUTSTANDING = 64
BATCHED = 20_000
"""Messages that wait in this client, so that batches have hundreds of them."""
BACKLOG = 200_000
_TURN_S = 180.0
_GROUP: dict[str, Any] = {
    **{"consumeEnable": True, "consumeFromMinEnable": True, "consumeBroadcastEnable": True, "retryQueueNums": 1},
    **{"retryMaxTimes": 16, "brokerId": 0, "whichBrokerWhenConsumeSlowly": 1, "notifyConsumerIdsChangedEnable": True},
}
OURS, OFFICIAL, JAVA = "tallystick-client", "rocketmq-python-client", "rocketmq-client (Java)"


class Load(NamedTuple):
    """A row: the mode of each side, and how many messages it consumes (0: it sends for some seconds)."""

    modes: dict[str, tuple[str, int]]
    outstanding: int = OUTSTANDING


LOADS = {
    "send": Load({OURS: ("send", 0), OFFICIAL: ("send", 0), JAVA: ("send", 0)}),
    "batch": Load({OURS: ("batch", 0), JAVA: ("batch", 0)}, BATCHED),
    "consume": Load({OURS: ("consume", 100_000), OFFICIAL: ("consume", 6_000), JAVA: ("consume", 150_000)}),
    "batches": Load({OURS: ("batches", 150_000)}),
}
_SAME = {"batch": "send", "batches": "consume"}
"""Where a side's figure comes from if it has no such mode."""


class Turn(NamedTuple):
    """What one side did in one turn. `foreign`: the cores that other processes used meanwhile."""

    per_cpu_s: float
    per_s: float
    foreign: float


class Bench:
    """Runs turns against one server."""

    def __init__(self, proxy: Proxy, options: argparse.Namespace) -> None:
        self._proxy = proxy
        self._options = options
        self._number = 0

    def prepare(self) -> None:
        """Fills the topic of the consumers, and lets the broker's JVM compile its code."""
        self._run(OURS, "batch", topic="backlog", outstanding=BATCHED, count=BACKLOG)
        self._run(OURS, "send", topic="sends", outstanding=OUTSTANDING)

    def turn(self, load: Load, side: str) -> Turn:
        mode, count = load.modes[side]
        group = f"bench-{self._number}"
        self._number += 1
        if count:
            asyncio.run(self._create(group))
        before = Snapshot.take(self._proxy.pids)
        topic = "backlog" if count else "sends"
        found = self._run(side, mode, topic=topic, group=group, outstanding=load.outstanding, count=count)
        foreign = Snapshot.take(self._proxy.pids).foreign_cores(before)
        return Turn(found["messages"] / found["cpu_s"], found["messages"] / found["seconds"], foreign)

    async def _create(self, group: str) -> None:
        """The proxy refuses groups that do not exist."""
        async with Client(self._proxy.nameserver) as client:
            body = json.dumps({"groupName": group, **_GROUP}).encode()
            await client.ask(self._proxy.broker, 200, {}, body)

    def _run(self, side: str, mode: str, *, topic: str, group: str = "", outstanding: int, count: int = 0) -> Any:
        server = self._proxy.endpoint if side == OFFICIAL else self._proxy.nameserver
        given = Arguments(
            mode, server, topic, group, SIZE, outstanding, self._options.seconds, self._options.warm_up, count
        )
        if side == JAVA:
            values = [mode, server, topic, group, SIZE, outstanding, given.seconds, 2 * given.warm_up, count]
            command = [*_java(self._options.java_jars), *map(str, values)]
        else:
            python = WORK / "venv" / "bin" / "python" if side == OFFICIAL else Path(sys.executable)
            program = HERE / ("official.py" if side == OFFICIAL else "ours.py")
            command = [str(python), str(program), json.dumps(asdict(given))]
        ended = subprocess.run(command, capture_output=True, text=True, timeout=_TURN_S)
        lines = [line for line in ended.stdout.splitlines() if line.startswith("{")]
        if ended.returncode != 0 or not lines:
            raise ServerError(f"{side}, {mode}: status {ended.returncode}\n{ended.stderr[-2000:]}")
        return json.loads(lines[-1])


def _java(jars: Path) -> list[str]:
    options = ["--add-opens=java.base/java.nio=ALL-UNNAMED", "-Djava.net.preferIPv4Stack=true", "-Xms256m", "-Xmx1g"]
    options += [f"-Duser.home={WORK}", "-Drocketmq.client.logUseSlf4j=true"]
    options += [f"-Dlogback.configurationFile={WORK}/quiet.xml"]
    return ["java", *options, "-cp", f"{WORK / 'java'}:{jars}/*", "JavaTurn"]


def _table(turns: dict[tuple[str, str], list[Turn]], names: list[str]) -> str:
    lines = [
        "| load | client | messages per CPU second | messages/s | ratio per CPU second | foreign |",
        "|---|---|---:|---:|---:|---:|",
    ]
    for name in names:
        ours = statistics.median(turn.per_cpu_s for turn in turns[name, OURS])
        for side in (OURS, OFFICIAL, JAVA):
            found = turns.get((name, side)) or turns.get((_SAME.get(name, ""), side))
            if not found:
                continue
            per_cpu_s = statistics.median(turn.per_cpu_s for turn in found)
            per_s = statistics.median(turn.per_s for turn in found)
            foreign = max(turn.foreign for turn in found)
            low, high = min(turn.per_cpu_s for turn in found), max(turn.per_cpu_s for turn in found)
            figures = f"{per_cpu_s:,.0f} [{low:,.0f}..{high:,.0f}] | {per_s:,.0f}"
            ratio = "" if side == OURS else f"{ours / per_cpu_s:.2f}"
            lines.append(f"| {name} | {side} | {figures} | {ratio} | {foreign:.2f} |")
    return "\n".join(lines)


def main() -> int:
    """Returns the exit code: 0, or 2 if it could not be measured."""
    parser = argparse.ArgumentParser(description="This client beside the official Python client and the Java client.")
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=3.0, help="of a measurement (3)")
    parser.add_argument("--warm-up", type=float, default=1.5, help="seconds before it; twice for Java (1.5)")
    parser.add_argument("--loads", default=",".join(LOADS), help=f"of {', '.join(LOADS)} (all)")
    parser.add_argument("--sides", default="ours,official,java", help="(all)")
    parser.add_argument("--java-jars", type=Path, default=Path.home() / ".cache" / "peer" / "lib" / "4.8.0")
    parser.add_argument("--port", type=int, default=26900, help="the first of ten ports (26900)")
    options = parser.parse_args()
    short = {"ours": OURS, "official": OFFICIAL, "java": JAVA}
    sides = [short[each] for each in options.sides.split(",")]
    names = options.loads.split(",")
    (WORK / "quiet.xml").write_text('<configuration><root level="OFF"/></configuration>\n')
    turns: dict[tuple[str, str], list[Turn]] = defaultdict(list)
    with tempfile.TemporaryDirectory(prefix="store-", dir=WORK) as folder:
        proxy = Proxy(Path(folder), WORK / "proxy", options.port)
        try:
            proxy.start()
            bench = Bench(proxy, options)
            bench.prepare()
            for number in range(options.turns):
                for name in names:
                    order = [side for side in sides if side in LOADS[name].modes]
                    for side in order if number % 2 == 0 else reversed(order):
                        turn = bench.turn(LOADS[name], side)
                        turns[name, side].append(turn)
                        print(f"{name} {side} {turn}", file=sys.stderr, flush=True)
        except (ServerError, subprocess.TimeoutExpired) as error:
            print(error, file=sys.stderr)
            return 2
        finally:
            proxy.stop()
    print(_table(turns, names))
    return 0


if __name__ == "__main__":
    sys.exit(main())
