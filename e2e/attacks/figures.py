"""Compares metrics of faults with the injected faults: damage, scrubbing, memory of connections.

One byte of one record is damaged while the broker is stopped. Required: the metrics of findings and of unrepaired
damage count one place, however often it is read and scrubbed; a complete scrub has read as many bytes as there are full
segments; the memory that is charged for unfinished frames equals the bytes sent, and is zero after they end.
"""

from __future__ import annotations

import socket
import struct

from attacks.arena import Arena, metric, until
from attacks.traffic import Acknowledged, Pipe, send_command
from lab.places import HOST
from lab.tally import Tally

from tallystick.node.core.client import ClusterClient, QueueAddress

_TOPIC, _SEGMENT, _MESSAGES = "figures", 1 << 20, 4000
_FRAMES, _FRAME_BYTES = 20, 500_000
_HEADER = b'{"code":310,"flag":0,"language":"JAVA","opaque":1,"version":1}'


async def run(arena: Arena) -> None:
    tally = Tally(arena.work / "plain", (f"mappedFileSizeCommitLog={_SEGMENT}", "scrubBytesPerSecond=67108864"))
    sent = Acknowledged()
    try:
        tally.start()
        async with ClusterClient("", timeout_s=30) as client:
            await client.create_topic(tally.broker, _TOPIC, 1)
        pipe = Pipe(tally.broker, lambda name, answer: sent.note(_TOPIC, 0, name, answer), window=100)
        names = [f"m{number}" for number in range(_MESSAGES)]
        await pipe.run((n, send_command(_TOPIC, 0, f"{n}|".encode().ljust(1000, b"x"))) for n in names)
        arena.check(len(sent.at) == _MESSAGES, f"{len(sent.at)} of {_MESSAGES} acknowledged: {sent.refused}")
        arena.check(_damage(tally) == 0, "damage is counted in a store without damage")
        tally.stop()
        _flip(tally, b"m500|")
        tally.start()
        scrubbed = await until(lambda: metric(tally, "rocketmq_storage_unrepaired_damage") >= 1, 60, 0.2)
        arena.figure("seconds until the scrubber found the damage", scrubbed and round(scrubbed, 1))
        for _ in range(3):
            arena.check(await _read(tally) == _MESSAGES - 1, "one damaged record hides other records")
        places = metric(tally, "rocketmq_storage_unrepaired_damage")
        arena.check(places == 1, f"{places} damaged places are counted, but only one byte was damaged")
        arena.figure("findings; damaged reads of three passes", [
            metric(tally, "rocketmq_storage_findings_total"), metric(tally, "rocketmq_storage_damaged_reads_total"),
        ])  # fmt: skip
        full = int(metric(tally, "rocketmq_storage_max_position_bytes")) // _SEGMENT * _SEGMENT
        await until(lambda: metric(tally, "rocketmq_storage_scrubbed_bytes_total") >= full, 30, 0.2)
        read = metric(tally, "rocketmq_storage_scrubbed_bytes_total")
        arena.check(read == full, f"a scrub read {read} bytes, full segments have {full}")
        arena.figure("bytes scrubbed", read)
        await _frames(arena, tally)
        tally.stop()
    finally:
        tally.kill()


def _damage(tally: Tally) -> float:
    return metric(tally, "rocketmq_storage_unrepaired_damage") + metric(tally, "rocketmq_storage_findings_total")


def _flip(tally: Tally, body: bytes) -> None:
    """Changes one byte after these bytes of the first segment."""
    path = min((tally.store / "commitlog").iterdir())
    content = bytearray(path.read_bytes())
    content[content.index(body) + len(body) + 10] ^= 1
    path.write_bytes(content)


async def _read(tally: Tally) -> int:
    """The number of messages of the queue that are delivered."""
    found, at = 0, 0
    async with ClusterClient("", timeout_s=30) as client:
        queue = QueueAddress(_TOPIC, "", tally.broker, 0)
        while at < _MESSAGES:
            pulled = await client.pull(queue, at, group="figures")
            found += len(pulled.records)
            at = max(at + (not pulled.records), pulled.next_offset)
    return found


async def _frames(arena: Arena, tally: Tally) -> None:
    """Unfinished frames of a known size."""
    before = metric(tally, "tally_connection_memory_bytes")
    head = struct.pack(">II", 4 + len(_HEADER) + (1 << 20), len(_HEADER)) + _HEADER
    links = [socket.create_connection((HOST, tally.port)) for _ in range(_FRAMES)]
    for link in links:
        link.sendall(head + bytes(_FRAME_BYTES))
    expected = _FRAMES * (len(head) + _FRAME_BYTES)
    held = await until(lambda: metric(tally, "tally_connection_memory_bytes") - before >= expected * 0.9, 20, 0.2)
    charged = metric(tally, "tally_connection_memory_bytes") - before
    arena.figure("bytes of unfinished frames; charged", [expected, charged])
    arena.check(held is not None and charged <= 2 * expected, f"{charged} bytes are charged, {expected} were sent")
    for link in links:
        link.close()
    gone = await until(lambda: metric(tally, "tally_connection_memory_bytes") <= before, 20, 0.2)
    arena.check(gone is not None, "memory is charged for closed connections")
