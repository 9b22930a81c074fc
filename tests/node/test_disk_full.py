"""A broker whose disk is full, or fails: what clients are told, what /readyz says, and that it comes back."""

from __future__ import annotations

import errno
import gc
import json
import logging
import socket
import subprocess
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from engine_lab import json_frame, send_frame, small, until
from tally_process import TallyProcess

from tallystick.node.broker.broker import Broker
from tallystick.node.core.settings import BrokerSettings
from tallystick.node.remoting.client import RemotingClient
from tallystick.node.remoting.command import Command
from tallystick.store._kernel import Door

pytestmark = pytest.mark.process


@pytest.fixture
def tiny_disk(tmp_path: Path) -> Iterator[Path]:
    place = tmp_path / "disk"
    place.mkdir()
    made = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=16m", "tmpfs", place], capture_output=True)
    if made.returncode != 0:
        pytest.skip(f"needs the right to mount a tmpfs: {made.stderr.decode().strip()}")
    try:
        yield place
    finally:
        gc.collect()
        subprocess.run(["umount", "--lazy", place], check=True)


def ask(address: str, frame: bytes) -> tuple[int, str]:
    """Code and remark of the answer."""
    host, _, port = address.rpartition(":")
    with socket.create_connection((host, int(port)), timeout=10) as link:
        link.sendall(frame)
        data = b""
        while len(data) < 8 or len(data) < 4 + int.from_bytes(data[:4], "big"):
            data += link.recv(1 << 16)
    header = json.loads(data[8 : 8 + int.from_bytes(data[5:8], "big")])
    return header["code"], header.get("remark") or ""


PULL = {
    **{"consumerGroup": "g", "topic": "T", "queueId": "0", "queueOffset": "0", "maxMsgNums": "32", "sysFlag": "4"},
    **{"commitOffset": "0", "suspendTimeoutMillis": "0", "subVersion": "0", "subscription": "*"},
}


def test_a_process_on_a_full_disk_reports_it_serves_reads_and_recovers(tiny_disk: Path) -> None:
    off = ("--set", "diskSpaceWarningLevelRatio=1.0", "--set", "diskSpaceCleanForciblyRatio=1.0")
    with TallyProcess(tiny_disk, *off) as process:
        broker = process.places["broker"]
        body = bytes(200_000)
        assert ask(broker, send_frame(body)) == (0, "")
        filler = tiny_disk / "filler"
        with filler.open("wb", buffering=0) as file:
            try:
                while True:
                    file.write(bytes(65536))
            except OSError as error:
                assert error.errno == errno.ENOSPC
        for _ in range(100):
            code, remark = ask(broker, send_frame(body))
            if code:
                break
        assert code == 1 and "No space left on device" in remark and "create mapped file failed" in remark
        status, reason = process.get("/readyz")
        assert status == 503 and "No space left on device" in reason
        assert process.get("/healthz")[0] == 200
        header = {"code": 11, "extFields": PULL, "flag": 0, "language": "JAVA", "opaque": 1, "version": 373}
        assert ask(broker, json_frame(header))[0] == 0
        filler.unlink()
        assert ask(broker, send_frame(body))[0] == 0
        assert process.get("/readyz")[0] == 200
        assert process.end() == 0
        assert len(process.log.read_text().splitlines()) < 40
        assert "Traceback" not in process.log.read_text()


@asynccontextmanager
async def running(root: Path, door: Door | None = None) -> AsyncIterator[tuple[Broker, RemotingClient, str]]:
    settings = BrokerSettings(
        brokerIP1="127.0.0.1", bindAddress="127.0.0.1", listenPort=0, brokerName="b", namesrvAddr=""
    )
    broker = await Broker.start(settings, small(root, mappedFileSizeCommitLog=1 << 20), door)
    client = RemotingClient()
    try:
        yield broker, client, str(broker.host)
    finally:
        await client.close()
        await broker.stop()


def create(topic: str) -> Command:
    ext = {"topic": topic, "defaultTopic": "TBW102", "readQueueNums": "4", "writeQueueNums": "4", "perm": "6"}
    return Command(17, ext=ext | {"topicFilterType": "SINGLE_TAG", "topicSysFlag": "0", "order": "false"})


def send(topic: str = "T") -> Command:
    ext = {"a": "pg", "b": topic, "c": "TBW102", "d": "4", "e": "0", "f": "0", "g": "0", "h": "0", "i": ""}
    return Command(310, ext=ext, body=b"x")


async def test_a_topic_that_cannot_be_saved_is_reported_and_saved_later(tmp_path: Path) -> None:
    door = Door()
    async with running(tmp_path, door) as (broker, client, address):
        door.fail("write", "topics.json", errno.ENOSPC)
        refused = await client.call(address, create("Saved"))
        assert refused.code == 1 and "No space left" in (refused.remark or "")
        # A message whose topic a kill would take is not acknowledged, nor stored.
        refused = await client.call(address, send("Made"))
        assert refused.code == 14 and "No space left" in (refused.remark or "")
        assert broker.store.queues.max_offset("Made", 0) == 0
        door.heal()
        assert (await client.call(address, send("Made"))).code == 0
        assert (await client.call(address, create("Saved"))).code == 0
        text = (tmp_path / "config" / "topics.json").read_text()
        assert "Made" in text and "Saved" in text


async def test_a_broker_stops_in_order_when_no_table_can_be_saved(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    door = Door()
    async with running(tmp_path, door) as (_, client, address):
        assert (await client.call(address, send())).code == 0
        door.fail("write", "/config/", errno.ENOSPC)
        door.fail("create", "/config/", errno.ENOSPC)
        await client.call(address, create("Lost"))
    assert not (tmp_path / "abort").exists(), "the store is in order all the same"
    async with running(tmp_path) as (broker, client, address):
        assert broker.store.recovered.clean
        assert broker.store.queues.max_offset("T", 0) == 1
        assert broker.topics.get("Lost") is None


async def test_periodic_saves_that_fail_log_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    door = Door()
    async with running(tmp_path, door) as (broker, _, _):
        door.fail("write", "/config/", errno.EIO)
        broker.offsets.commit("g", "T", 0, 5)
        with caplog.at_level(logging.ERROR):
            for _ in range(5):
                await broker.offsets.try_save()
        assert len([line for line in caplog.records if "consumerOffset" in line.message]) == 1
        door.heal()
        await broker.offsets.try_save()
        await until(lambda: not broker.offsets.dirty)


async def test_a_failed_flush_is_a_clear_answer_and_not_healthy(tmp_path: Path) -> None:
    door = Door()
    async with running(tmp_path, door) as (broker, client, address):
        door.fail("sync", "commitlog", errno.EIO)
        assert (await client.call(address, send())).code == 0, "answered when it is written"
        with pytest.raises(OSError):
            await broker.store.flush()
        answer = await client.call(address, send())
        assert answer.code == 14 and "could not be flushed" in (answer.remark or "")
        assert "could not be flushed" in (broker.store.admission.failure() or "")
        ext = {"topic": "T", "queueId": "0"}
        assert (await client.call(address, Command(30, ext=ext))).ext == {"offset": "1"}
