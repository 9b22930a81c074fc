"""Everything at once, from seeds: power loss, kills, cut and stalled connections, transfers, and a client that counts.

A seed chooses what is done; how far the members have come by then is the machine's choice. So a run cannot be repeated
to the byte, that is the simulator's part: here the real parts are put through it together.
"""

from __future__ import annotations

import asyncio
import random
from contextlib import AsyncExitStack
from pathlib import Path

import pytest
from member_lab import ASYNCHRONOUS, QUICK, Group, Node, load, until
from transport_lab import Proxy

from tallystick.replication.member.errors import MemberError
from tallystick.replication.member.settings import MemberSettings
from tallystick.replication.transport import Lane


class Network:
    """Each member is reached through its own proxy."""

    def __init__(self, group: Group, proxies: list[Proxy]) -> None:
        self.proxies = proxies
        for node, proxy in zip(group.nodes, proxies, strict=True):
            proxy.target = node.port
            group.addresses[node.id] = ("127.0.0.1", proxy.port)

    def heal(self) -> None:
        for proxy in self.proxies:
            proxy.refuse = proxy.mute = False
            proxy.spoil = None
            proxy.resume()


async def _befall(group: Group, network: Network, dice: random.Random, node: Node, power: bool) -> None:
    proxy = network.proxies[node.id]
    match dice.randrange(8):
        case 0 | 1 | 2:
            await node.kill(dice.getrandbits(32) if power else None, dice.choice([None, 0.0]))
            await asyncio.sleep(dice.random() * 0.3)
            await node.start(group.addresses)
        case 3:
            proxy.refuse = True
            proxy.cut()
            await asyncio.sleep(dice.random())
        case 4:
            proxy.cut()
        case 5:
            proxy.paused.add(dice.choice(list(Lane)))
            await asyncio.sleep(dice.random())
        case 6:
            deaf = dice.choice(list(Lane))
            proxy.spoil = lambda lane, position, data: data.clear() if lane is deaf else None
            await asyncio.sleep(dice.random())
        case 7:
            try:
                if node.up.accepting:
                    await node.up.transfer(dice.choice([None, 0, 1, 2]))
            except MemberError:
                pass  # to itself, to one that is away
    network.heal()


@pytest.mark.parametrize(
    ("seed", "settings"), [(1, QUICK), (2, QUICK), (3, QUICK), (4, ASYNCHRONOUS)], ids=["1", "2", "3", "4-async"]
)
async def test_nothing_acknowledged_is_lost(tmp_path: Path, seed: int, settings: MemberSettings) -> None:
    dice = random.Random(seed)
    async with AsyncExitStack() as stack:
        proxies = [await stack.enter_async_context(Proxy(0)) for _ in range(3)]
        group = Group(tmp_path, settings=settings)
        network = Network(group, proxies)
        await stack.enter_async_context(group)
        stop = asyncio.Event()
        clients = [asyncio.create_task(load(group, dice, stop)) for _ in range(3)]
        try:
            await group.leader()
            for _ in range(10):
                before = len(group.acknowledged)
                await _befall(group, network, dice, dice.choice(group.nodes), power=settings is QUICK)
                await until(lambda n=before: len(group.acknowledged) > n, "puts go on")  # type: ignore[misc]
        finally:
            stop.set()
            await asyncio.gather(*clients)
        assert not any(node.fatal for node in group.nodes), [node.fatal for node in group.nodes]
        await group.put_somehow()
        await group.level()
