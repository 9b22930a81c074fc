"""`make metrics-lab`: the metrics of a broker beside those of real RocketMQ 5.5.0, after the same small load.

    python e2e/metrics_lab.py
    python e2e/metrics_lab.py --write            also writes docs/rocketmq_metrics.json: what RocketMQ exposes
    python e2e/metrics_lab.py --scale 5000       ours alone: the cost of a scrape with so many topics and groups

Both brokers get the same requests. Then the metrics that both expose must have the same type, and the figures that the
load determines the same values; docs/metrics.md says of each other one why it is absent. RocketMQ exposes its
metrics itself (`metricsExporterType=PROM`).

Exit status: 0 all is right, 1 it is not, 2 the test could not run. After 1 and 2 stores and logs stay in build/e2e.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import time
import urllib.request
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lab.peer import Peer, PeerMissingError
from lab.places import HOST, ROOT, free_block, work_folder
from lab.processes import ProcessError, end_on_signals
from lab.tally import Tally
from prometheus_client.parser import text_string_to_metric_families

from tallystick.node.remoting.client import RemotingClient
from tallystick.node.remoting.codes import RequestCode
from tallystick.node.remoting.command import Command
from tallystick.store.formats.record import Record

VERSION = "5.5.0"
RECORDED = ROOT / "docs" / "rocketmq_metrics.json"
TOPIC, TRANSACTIONS, GROUP, PRODUCERS = "Orders", "Payments", "billing", "shop"
SMALL, LARGE, LATER, COMMITTED, DEAD = 20, 3, 4, 10, 2
_OWN_LABELS = {"cluster", "node_type", "node_id", "otel_scope_name", "storage_type", "storage_medium"}
_SETTLE_S = 60.0

Figures = dict[str, dict[frozenset[tuple[str, str]], float]]
"""By the name of a series: values by labels, without those that tell the broker."""


@dataclass(frozen=True, slots=True)
class Expected:
    """A figure that the load determines."""

    name: str
    labels: dict[str, str]
    value: float

    def found(self, figures: Figures) -> float | None:
        """The sum of all series with these labels; None: there is none."""
        wanted = set(self.labels.items())
        values = [value for labels, value in figures.get(self.name, {}).items() if wanted <= labels]
        return sum(values) if values else None


OF_TOPIC = {"topic": TOPIC}
OF_GROUP = {"topic": TOPIC, "consumer_group": GROUP}
EXPECTED = (
    Expected("rocketmq_messages_in_total", OF_TOPIC, SMALL + LARGE + LATER),
    Expected("rocketmq_messages_out_total", OF_GROUP, SMALL + LARGE),
    Expected("rocketmq_consumer_lag_messages", OF_GROUP, SMALL + LARGE + LATER - COMMITTED),
    Expected("rocketmq_consumer_inflight_messages", OF_GROUP, SMALL + LARGE - COMMITTED),
    Expected("rocketmq_consumer_ready_messages", OF_GROUP, LATER),
    Expected("rocketmq_send_to_dlq_messages_total", OF_GROUP, DEAD),
    Expected("rocketmq_half_messages", {"topic": TRANSACTIONS}, 1),
    Expected("rocketmq_commit_messages_total", {"topic": TRANSACTIONS}, 1),
    Expected("rocketmq_rollback_messages_total", {"topic": TRANSACTIONS}, 1),
    Expected("rocketmq_consumer_connections", {"consumer_group": GROUP}, 1),
    Expected("rocketmq_broker_permission", {}, 6),
    Expected(
        "rocketmq_rpc_latency_milliseconds_count",
        {"request_code": "send_message_v2", "response_code": "success"},
        SMALL + LARGE + LATER + 3,
    ),
    Expected(
        "rocketmq_rpc_latency_milliseconds_count", {"request_code": "pull_message", "response_code": "success"}, 1
    ),
)
CLOSE = ("rocketmq_consumer_lag_latency_milliseconds", "rocketmq_consumer_queueing_latency_milliseconds")
"""Ages: both brokers got the messages within `_CLOSE_MS`."""
_CLOSE_MS = 20_000


class WrongError(Exception):
    """Something is not as it must be; the text says what."""


class Load:
    """A client of one broker."""

    def __init__(self, broker: str) -> None:
        self._broker = broker
        self._client = RemotingClient(name="metrics")

    async def ask(self, code: int, ext: dict[str, str] | None = None, body: object = b"") -> Command:
        """The answer. WrongError: its code is not 0."""
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        answer = await self._client.call(self._broker, Command(code, ext=ext, body=data), 30)
        if answer.code != 0:
            raise WrongError(f"{self._broker} answered request {code} with {answer.code}: {answer.remark}")
        return answer

    async def close(self) -> None:
        await self._client.close(grace_s=0.0)

    async def create(self, topic: str) -> None:
        fields = {
            "topic": topic, "defaultTopic": "TBW102", "readQueueNums": "1", "writeQueueNums": "1", "perm": "6",
            "topicFilterType": "SINGLE_TAG", "topicSysFlag": "0", "order": "false",
        }  # fmt: skip
        await self.ask(RequestCode.UPDATE_AND_CREATE_TOPIC, fields)

    async def create_group(self, group: str) -> None:
        body = {
            "groupName": group, "consumeEnable": True, "consumeFromMinEnable": True, "consumeBroadcastEnable": True,
            "retryQueueNums": 1, "retryMaxTimes": 16, "brokerId": 0, "whichBrokerWhenConsumeSlowly": 1,
        }  # fmt: skip
        await self.ask(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, {}, body)

    async def beat(self) -> None:
        subscription = {"topic": TOPIC, "subString": "*", "tagsSet": [], "codeSet": [], "subVersion": 1}
        consumer = {
            "groupName": GROUP, "consumeType": "CONSUME_PASSIVELY", "messageModel": "CLUSTERING",
            "consumeFromWhere": "CONSUME_FROM_FIRST_OFFSET", "unitMode": False,
            "subscriptionDataSet": [{**subscription, "expressionType": "TAG"}],
        }  # fmt: skip
        beat = {"clientID": "lab", "producerDataSet": [{"groupName": PRODUCERS}], "consumerDataSet": [consumer]}
        await self.ask(RequestCode.HEART_BEAT, {}, beat)

    async def send(self, topic: str, size: int = 100, properties: str = "", sys_flag: int = 0) -> dict[str, str]:
        fields = {
            "a": PRODUCERS, "b": topic, "c": "TBW102", "d": "1", "e": "0", "f": str(sys_flag),
            "g": str(int(time.time() * 1000)), "h": "0", "i": properties, "j": "0", "k": "false", "m": "false",
        }  # fmt: skip
        return dict((await self.ask(RequestCode.SEND_MESSAGE_V2, fields, b"x" * size)).ext or {})

    async def end(self, half: dict[str, str], verdict: str) -> None:
        fields = {
            "producerGroup": PRODUCERS, "tranStateTableOffset": half["queueOffset"],
            "commitLogOffset": str(int(half["msgId"][16:], 16)), "commitOrRollback": verdict,
            "fromTransactionCheck": "false", "topic": TRANSACTIONS,
        }  # fmt: skip
        await self.ask(RequestCode.END_TRANSACTION, fields)

    async def pull(self, count: int) -> list[Record]:
        fields = {
            "consumerGroup": GROUP, "topic": TOPIC, "queueId": "0", "queueOffset": "0", "maxMsgNums": str(count),
            "sysFlag": "4", "commitOffset": "0", "suspendTimeoutMillis": "0", "subscription": "*", "subVersion": "0",
            "expressionType": "TAG",
        }  # fmt: skip
        body = (await self.ask(RequestCode.PULL_MESSAGE, fields)).body
        records, at = [], 0
        while at < len(body):
            records.append(Record.decode(body, at))
            at += records[-1].size
        return records

    async def commit(self, topic: str, group: str, offset: int) -> None:
        fields = {"consumerGroup": group, "topic": topic, "queueId": "0", "commitOffset": str(offset)}
        await self.ask(RequestCode.UPDATE_CONSUMER_OFFSET, fields)

    async def dead(self, record: Record) -> None:
        fields = {
            "offset": str(record.pos), "group": GROUP, "delayLevel": "-1", "originTopic": TOPIC,
            "originMsgId": record.message_id, "unitMode": "false", "maxReconsumeTimes": "16",
        }  # fmt: skip
        await self.ask(RequestCode.CONSUMER_SEND_MSG_BACK, fields)

    async def run(self) -> None:
        """The load that `EXPECTED` counts."""
        for topic in (TOPIC, TRANSACTIONS):
            await self.create(topic)
        await self.create_group(GROUP)
        await self.beat()
        for size in (*[100] * SMALL, *[5000] * LARGE):
            await self.send(TOPIC, size)
        for number, verdict in enumerate(("8", "12", "")):
            properties = f"TRAN_MSG\x01true\x02PGROUP\x01{PRODUCERS}\x02UNIQ_KEY\x01tx{number}\x02"
            half = await self.send(TRANSACTIONS, properties=properties, sys_flag=4)
            if verdict:
                await self.end(half, verdict)
        end_s = time.monotonic() + _SETTLE_S
        while len(records := await self._try_pull()) < SMALL + LARGE:
            if time.monotonic() > end_s:
                raise WrongError(f"{self._broker}: a pull has {len(records)} messages")
            await asyncio.sleep(0.2)  # they are not dispatched yet
        for record in records[:DEAD]:
            await self.dead(record)
        await self.commit(TOPIC, GROUP, COMMITTED)
        for _ in range(LATER):
            await self.send(TOPIC)

    async def _try_pull(self) -> list[Record]:
        """All messages in one pull, so that both brokers count the same number of pulls."""
        fields = {"topic": TOPIC, "queueId": "0"}
        answer = await self.ask(RequestCode.GET_MAX_OFFSET, fields)
        end = int((answer.ext or {})["offset"])
        return await self.pull(32) if end == SMALL + LARGE else []


# -- comparison --------------------------------------------------------------------------------------------------------


def scrape(url: str) -> str:
    with urllib.request.urlopen(url, timeout=30) as answer:
        return str(answer.read().decode())


def figures_of(text: str) -> Figures:
    found: Figures = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            labels = frozenset((key, value) for key, value in sample.labels.items() if key not in _OWN_LABELS)
            found.setdefault(sample.name, {})[labels] = sample.value
    return found


def exposed(text: str) -> dict[str, dict[str, Any]]:
    """Type and labels of each metric, without those that RocketMQ's exporter adds to all."""
    found: dict[str, dict[str, Any]] = {}
    for family in text_string_to_metric_families(text):
        if not family.name.startswith("rocketmq_"):
            continue
        name = f"{family.name}_total" if family.type == "counter" else family.name
        labels = {label for sample in family.samples for label in sample.labels} - {"otel_scope_name", "le"}
        found[name] = {"type": family.type, "labels": sorted(labels - {"cluster", "node_type", "node_id"})}
    return found


async def settled(url: str, who: str) -> tuple[str, list[str]]:
    """The page when it has all expected figures, or what it has not after a while."""
    end_s = time.monotonic() + _SETTLE_S
    while True:
        text = await asyncio.to_thread(scrape, url)
        figures = figures_of(text)
        wrong = [
            f"{who}: {each.name} {each.labels} is {each.found(figures)}, not {each.value}"
            for each in EXPECTED
            if each.found(figures) != each.value
        ]
        if not wrong or time.monotonic() > end_s:
            return text, wrong
        await asyncio.sleep(1.0)


def compare(ours: str, theirs: str) -> Iterable[str]:
    """What differs in types and ages."""
    mine, others = exposed(ours), exposed(theirs)
    for name in sorted(mine.keys() & others.keys()):
        if mine[name]["type"] != others[name]["type"]:
            yield f"{name} is a {mine[name]['type']}, RocketMQ's a {others[name]['type']}"
    for name in CLOSE:
        here, there = (Expected(name, OF_GROUP, 0).found(figures_of(text)) or 0.0 for text in (ours, theirs))
        print(f"{name}: {here} here, {there} RocketMQ")
        if not (here > 0 and there > 0 and abs(here - there) <= _CLOSE_MS):
            yield f"{name} is {here}, RocketMQ's {there}"
    for name in sorted(others.keys() - mine.keys()):
        print(f"RocketMQ alone: {name} {others[name]['labels']}")


async def beside_rocketmq(folder: Path, *, write: bool) -> int:
    (exporter_port,) = (free_block(20) + 15,)
    settings = ["metricsExporterType=PROM", f"metricsPromExporterHost={HOST}"]
    peer = Peer(folder / "peer", VERSION)
    tally = Tally(folder / "tally")
    try:
        peer.up([*settings, f"metricsPromExporterPort={exporter_port}"], version=VERSION)
        tally.start()
        pages, wrong = {}, list[str]()
        loads = {"tallystick": Load(tally.broker), "RocketMQ": Load(peer.broker)}
        urls = {
            "tallystick": f"http://{HOST}:{tally.http_port}/metrics",
            "RocketMQ": f"http://{HOST}:{exporter_port}/metrics",
        }
        for load in loads.values():
            await load.run()
        for who, url in urls.items():
            pages[who], lacks = await settled(url, who)
            (folder / f"{who}.txt").write_text(pages[who])
            wrong += lacks
        wrong += compare(pages["tallystick"], pages["RocketMQ"])
        for load in loads.values():
            await load.close()
        if write:
            RECORDED.write_text(
                json.dumps({"version": VERSION, "metrics": exposed(pages["RocketMQ"])}, indent=1, sort_keys=True) + "\n"
            )
        print("\n".join(wrong) or f"{len(EXPECTED)} figures are the same on both brokers")
        return 1 if wrong else 0
    finally:
        tally.stop()
        peer.down()


# -- cost of a scrape --------------------------------------------------------------------------------------------------


async def at_scale(folder: Path, count: int) -> int:
    """Prints CPU and time of a scrape, and how long other requests wait meanwhile."""
    tally = Tally(folder / "tally", ["mappedFileSizeConsumeQueue=6000"])
    tally.start()
    try:
        load = Load(tally.broker)

        async def fill(number: int) -> None:
            await load.create(f"topic{number}")
            await load.create_group(f"group{number}")
            for _ in range(2):
                await load.send(f"topic{number}")
            await load.commit(f"topic{number}", f"group{number}", 0)

        for first in range(0, count, 250):  # those of a bunch are saved together
            await asyncio.gather(*(fill(number) for number in range(first, min(count, first + 250))))
        url = f"http://{HOST}:{tally.http_port}/metrics"
        stat = Path(f"/proc/{tally.server.process.pid}/stat")

        def cpu_s() -> float:
            fields = stat.read_text().rpartition(")")[2].split()
            return (int(fields[11]) + int(fields[12])) / 100

        for number in range(3):
            before, begin = cpu_s(), time.perf_counter()
            scraping = asyncio.create_task(asyncio.to_thread(scrape, url))
            waits = []
            while not scraping.done():
                asked = time.perf_counter()
                await load.ask(RequestCode.GET_MAX_OFFSET, {"topic": "topic0", "queueId": "0"})
                waits.append(time.perf_counter() - asked)
            text = await scraping
            waits.sort()
            print(
                f"scrape {number}: {len(text) / 1e6:.2f} MB, {text.count(chr(10))} lines, {cpu_s() - before:.2f} s of"
                f" CPU with {len(waits)} requests beside it, {time.perf_counter() - begin:.2f} s; the requests took"
                f" {waits[len(waits) // 2] * 1000:.1f} ms, at most {waits[-1] * 1000:.1f} ms"
            )
        before = cpu_s()
        for _ in range(5):
            await asyncio.to_thread(scrape, url)
        print(f"alone: {(cpu_s() - before) / 5:.3f} s of CPU a scrape")
        await load.close()
        return 0
    finally:
        tally.stop()


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--write", action="store_true", help="record what RocketMQ exposes")
    parser.add_argument("--scale", type=int, metavar="N", help="the cost of a scrape with N topics and groups")
    options = parser.parse_args()
    end_on_signals()
    with work_folder("metrics-") as work:
        try:
            if options.scale:
                work.status = asyncio.run(at_scale(work.path, options.scale))
            else:
                work.status = asyncio.run(beside_rocketmq(work.path, write=options.write))
        except (PeerMissingError, ProcessError) as error:
            print(error, file=sys.stderr)
        except WrongError as error:
            print(error, file=sys.stderr)
            work.status = 1
        return work.status


if __name__ == "__main__":
    sys.exit(main())
