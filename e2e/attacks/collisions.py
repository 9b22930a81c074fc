"""Tags with equal hash codes against a real broker: plain pulls, pulls of a known shape, and held pulls.

The broker selects by the hash code of a tag, and clients compare the text, as in RocketMQ. Required: a pull brings
every message of the tag that was asked for, in order, and none of another code; a held pull is answered by a message of
its code (its own tag or a colliding one), is not answered by another code, and the offset that follows skips nothing.
"""

from __future__ import annotations

import asyncio
import itertools

from attacks.arena import Arena
from attacks.traffic import Acknowledged, Pipe, send_command
from lab.tally import Tally

from tallystick.node.core.client import ClusterClient, QueueAddress
from tallystick.store.formats import properties

_TOPIC = "tags"
_FAMILY = ["".join(parts) for parts in itertools.product(("Aa", "BB"), repeat=4)]
_OTHERS = ["AaBB", "CC", "AaAaAaAb"]
_MESSAGES = 20_000
_HELD_S, _SHORT_S = 20.0, 1.0


async def run(arena: Arena) -> None:
    tally = Tally(arena.work / "plain", ("mappedFileSizeCommitLog=1048576", "mappedFileSizeConsumeQueue=6000"))
    tags = [*_FAMILY, *_OTHERS]
    sent = Acknowledged()
    count = arena.scaled(_MESSAGES, 400)
    tag_of = {f"m{number}": tags[number * 7 % len(tags)] for number in range(count)}
    try:
        tally.start()
        async with ClusterClient("", timeout_s=60) as client:
            await client.create_topic(tally.broker, _TOPIC, 1)
            pipe = Pipe(tally.broker, lambda name, answer: sent.note(_TOPIC, 0, name, answer), window=100)
            await pipe.run(
                (name, send_command(_TOPIC, 0, f"{name}|{tag}".encode(), {properties.TAGS: tag}))
                for name, tag in tag_of.items()
            )
            arena.check(len(sent.at) == count, f"{len(sent.at)} of {count} acknowledged: {sent.refused}")
            for wanted in (_FAMILY[0], _FAMILY[9], "AaBB", "CC", f"{_FAMILY[3]} || CC"):
                await _pulled(arena, client, tally, sent, tag_of, wanted)
            await _held(arena, client, tally, count)
        arena.figure("messages of colliding tags sent and pulled", count)
        tally.stop()
    finally:
        tally.kill()


async def _pulled(
    arena: Arena, client: ClusterClient, tally: Tally, sent: Acknowledged, tag_of: dict[str, str], wanted: str
) -> None:
    """All messages of these tags arrive, in order; all others that arrive have one of their codes."""
    queue = QueueAddress(_TOPIC, "", tally.broker, 0)
    names, at, end = [], 0, len(sent.at)
    asked = set(wanted.split(" || "))
    codes = {_code(tag) for tag in asked}
    while at < end:
        pulled = await client.pull(queue, at, group="tags", tags=wanted)
        for record in pulled.records:
            name, _, tag = record.body.decode().partition("|")
            arena.check(_code(tag) in codes, f"{wanted}: a message with tag {tag} was delivered")
            if tag in asked:
                names.append(name)
        if not arena.check(pulled.next_offset > at, f"{wanted}: a pull at {at} returned no later offset"):
            return
        at = pulled.next_offset
    expected = sorted((name for name, tag in tag_of.items() if tag in asked), key=lambda name: sent.at[name][2])
    arena.check(names == expected, f"{wanted}: {len(names)} messages were delivered, {len(expected)} were sent")


async def _held(arena: Arena, client: ClusterClient, tally: Tally, end: int) -> None:
    """A pull waits at the end of the queue while messages of other codes, of its code and of its tag come."""
    queue = QueueAddress(_TOPIC, "", tally.broker, 0)
    wanted, colliding = _FAMILY[0], _FAMILY[5]
    held = asyncio.create_task(client.pull(queue, end, group="tags", tags=wanted, wait_s=_HELD_S))
    await client.send(queue, b"other|", tag="CC")
    done, _ = await asyncio.wait([held], timeout=_SHORT_S)
    arena.check(not done, "a held pull was answered for a message with another hash")
    await client.send(queue, b"colliding|", tag=colliding)
    pulled = await held
    bodies = [record.body for record in pulled.records]
    arena.check(bodies == [b"colliding|"], f"a held pull returned {bodies} for a colliding tag")
    arena.check(pulled.next_offset == end + 2, f"a held pull at {end} returned the next offset {pulled.next_offset}")
    held = asyncio.create_task(client.pull(queue, pulled.next_offset, group="tags", tags=wanted, wait_s=_HELD_S))
    await client.send(queue, b"own|", tag=wanted)
    pulled = await held
    bodies = [record.body for record in pulled.records]
    arena.check(bodies == [b"own|"] and pulled.next_offset == end + 3, f"a held pull returned {bodies} for its own tag")


def _code(tag: str) -> int:
    code = 0
    for character in tag:
        code = (31 * code + ord(character)) & 0xFFFFFFFF
    return code
