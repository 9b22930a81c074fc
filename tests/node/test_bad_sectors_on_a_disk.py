"""Real processes on a disk with real bad sectors: they serve what can be read, report the rest, and repair it."""

from __future__ import annotations

import asyncio
import json
import signal
from pathlib import Path

import pytest
from bad_disk import BadDisk
from group_lab import GroupLab, until
from tally_process import TallyProcess, tally

from tallystick.node.core.client import ClusterClient, QueueAddress
from tallystick.store.formats.segment_files import segment_name

pytestmark = pytest.mark.process

SEGMENT = 1 << 20  # as TallyProcess has it
LOST_AT = 600 << 10
BODY = b"x" * 3000


async def fill(client: ClusterClient, address: str, broker: str, count: int) -> QueueAddress:
    queue = QueueAddress("Bad", broker, address, 0)
    for number in range(count):
        _, offset = await client.send(queue, b"%06d" % number + BODY, key=f"k{number}")
        assert offset == number
    return queue


async def numbers(client: ClusterClient, queue: QueueAddress, count: int) -> list[int]:
    """The numbers of the messages that a consumer gets, up to the end of the queue."""
    found: list[int] = []
    offset = 0
    while offset < count:
        pulled = await client.pull(queue, offset, group="reader", wait_s=10)
        for record in pulled.records:
            assert record.body[6:] == BODY and int(record.body[:6]) == record.queue_offset
            found.append(record.queue_offset)
        assert pulled.next_offset > offset or not pulled.records, "a consumer gets on"
        offset = pulled.next_offset
    return found


def metric(text: str, name: str) -> float:
    (line,) = [line for line in text.splitlines() if line.startswith(name)]
    return float(line.rpartition(" ")[2])


async def test_a_plain_broker_serves_around_bad_sectors_and_says_where_they_are(tmp_path: Path) -> None:
    with BadDisk(tmp_path) as disk:
        with TallyProcess(tmp_path, "--set", "brokerName=plain") as process:
            async with ClusterClient(process.nameserver) as client:
                await client.create_topic(process.places["broker"], "Bad", 1)
                queue = await fill(client, process.places["broker"], "plain", 1000)
                assert await numbers(client, queue, 1000) == list(range(1000))
            assert process.end() == 0
            path = process.store / "commitlog" / segment_name(SEGMENT)
        disk.lose(disk.take(path), LOST_AT)
        for _ in range(2):  # a restart meets them again
            with TallyProcess(tmp_path, "--set", "brokerName=plain") as process:
                async with ClusterClient(process.nameserver) as client:
                    queue = QueueAddress("Bad", "plain", process.places["broker"], 0)
                    found = await numbers(client, queue, 1000)
                    lost = sorted(set(range(1000)) - set(found))
                    assert 130 <= len(lost) <= 140 and lost == list(range(lost[0], lost[-1] + 1)), lost
                    await client.send(queue, b"%06d" % 1000 + BODY)

                    async def reported() -> bool | None:
                        findings = json.loads((await asyncio.to_thread(process.get, "/node"))[1])["findings"]
                        return any("Input/output error (EIO)" in each["reason"] for each in findings["newest"]) or None

                    await until("the place is reported", reported)
                _, metrics = process.get("/metrics")
                assert metric(metrics, "rocketmq_storage_damaged_reads_total") >= len(lost)
                assert metric(metrics, "rocketmq_storage_unreadable_bytes_total") > 0
                assert "found damage in commitlog/" + path.name in process.log.read_text()
                assert process.end() == 0
        checked = tally("store", "verify", str(process.store))
        assert checked.returncode == 1, checked.stderr
        assert f"{path.name} at byte" in checked.stdout and "cannot be read" in checked.stdout


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
async def test_unreadable_records_do_not_end_the_log(tmp_path: Path, number: int) -> None:
    settings = ("--set", "brokerName=plain", "--set", "flushDiskType=SYNC_FLUSH")
    with BadDisk(tmp_path) as disk:
        with TallyProcess(tmp_path, *settings) as process:
            async with ClusterClient(process.nameserver) as client:
                await client.create_topic(process.places["broker"], "Bad", 1)
                await fill(client, process.places["broker"], "plain", 360)  # 120 KiB of them in the second segment
            process.end(number)
            path = disk.take(process.store / "commitlog" / segment_name(SEGMENT))
            before = path.read_bytes()
        disk.lose(path, 40 << 10)
        refused = TallyProcess(tmp_path, *settings)
        with refused.process:
            assert refused.process.wait(30) != 0
        text = refused.log.read_text().splitlines()[-1]
        assert path.name in text and "cannot be read from byte" in text and "nothing was truncated" in text
        disk.give_back(before, path)
        with TallyProcess(tmp_path, *settings) as process:
            async with ClusterClient(process.nameserver) as client:
                queue = QueueAddress("Bad", "plain", process.places["broker"], 0)
                assert await numbers(client, queue, 360) == list(range(360))


async def test_a_bad_sector_behind_the_end_of_the_log_is_written_again(tmp_path: Path) -> None:
    with BadDisk(tmp_path) as disk:
        with TallyProcess(tmp_path, "--set", "brokerName=plain") as process:
            async with ClusterClient(process.nameserver) as client:
                await client.create_topic(process.places["broker"], "Bad", 1)
                await fill(client, process.places["broker"], "plain", 360)
            assert process.end() == 0
            path = disk.take(process.store / "commitlog" / segment_name(SEGMENT))
        disk.lose(path, 200 << 10)
        with TallyProcess(tmp_path, "--set", "brokerName=plain") as process:
            async with ClusterClient(process.nameserver) as client:
                queue = QueueAddress("Bad", "plain", process.places["broker"], 0)
                assert await numbers(client, queue, 360) == list(range(360))
                assert (await client.send(queue, b"%06d" % 360 + BODY))[1] == 360


async def test_a_member_that_cannot_read_the_end_of_its_log_fetches_it_again(tmp_path: Path) -> None:
    with BadDisk(tmp_path) as disk, GroupLab(tmp_path) as lab:
        async with ClusterClient(lab.nameserver) as client:
            leader, _ = await lab.with_topic(client, "Bad", 1)
            await fill(client, lab.address(leader), "group-a", 360)
            await lab.ready()
            number = next(number for number in lab.members if number != leader)
            lab.kill(number)
            (folder,) = (tmp_path / f"n{number}").glob("store/dledger-*/data")
            path = folder / segment_name(SEGMENT)
            disk.lose(disk.take(path), 40 << 10)
            process = lab.start(number)
            await lab.ready(number)
            queue = QueueAddress("Bad", "group-a", lab.address(number), 0)
            assert await numbers(client, queue, 360) == list(range(360))
            assert "cannot be read" in process.log.read_text()


async def test_the_scrubber_of_a_member_repairs_records_without_readers(tmp_path: Path) -> None:
    with BadDisk(tmp_path) as disk, GroupLab(tmp_path, "scrubBytesPerSecond=100000000") as lab:
        async with ClusterClient(lab.nameserver) as client:
            leader, _ = await lab.with_topic(client, "Bad", 1)
            number = next(number for number in lab.members if number != leader)
            await fill(client, lab.address(leader), "group-a", 1000)
            await lab.ready()
            process = lab.members.pop(number)
            assert process.end() == 0
            process.__exit__(None, None, None)
            store = tmp_path / f"n{number}" / "store"
            (folder,) = store.glob("dledger-*/data")
            (store / "tally-scrub").unlink(missing_ok=True)
            damaged = folder / segment_name(SEGMENT)
            rotten = folder / segment_name(2 * SEGMENT)
            before, sound = damaged.read_bytes(), rotten.read_bytes()
            disk.lose(disk.take(damaged), LOST_AT)
            with rotten.open("r+b") as file:
                file.seek(300_000)
                file.write(b"rotten bytes")
            process = lab.start(number)

            async def repaired() -> bool | None:
                shown = json.loads((await asyncio.to_thread(process.get, "/node"))[1])
                return (shown["findings"]["counts"]["repaired"] >= 2 and shown["scrub"]["lastPassEndedAt"]) or None

            await until("both segments are repaired", repaired)
            disk.forget(damaged)
            assert damaged.read_bytes() == before and rotten.read_bytes() == sound
            _, metrics = process.get("/metrics")
            assert metric(metrics, "rocketmq_storage_unrepaired_damage") == 0
            assert metric(metrics, "rocketmq_storage_scrubbed_bytes_total") >= 2 * SEGMENT


async def test_a_member_fetches_what_its_disk_lost_from_another_one(tmp_path: Path) -> None:
    with BadDisk(tmp_path) as disk, GroupLab(tmp_path) as lab:
        async with ClusterClient(lab.nameserver) as client:
            leader, _ = await lab.with_topic(client, "Bad", 1)
            await fill(client, lab.address(leader), "group-a", 1000)
            await lab.ready()
            number = next(number for number in lab.members if number != leader)
            assert lab.members[number].end() == 0
            lab.members.pop(number).__exit__(None, None, None)
            (folder,) = (tmp_path / f"n{number}").glob("store/dledger-*/data")
            path = folder / segment_name(SEGMENT)
            before = path.read_bytes()
            disk.lose(disk.take(path), LOST_AT)
            process = lab.start(number)
            await lab.ready(number)
            queue = QueueAddress("Bad", "group-a", lab.address(number), 0)
            assert await numbers(client, queue, 1000) == list(range(1000)), "a reader waits for the repair"
            findings = json.loads(process.get("/node")[1])["findings"]
            assert findings["counts"]["repaired"] >= 1, findings
            disk.forget(path)
            assert path.read_bytes() == before
            assert process.process.poll() is None
