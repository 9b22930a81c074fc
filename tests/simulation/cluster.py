"""The nodes of one run: brokers by themselves, groups of members, name servers, each with its host.

It knows who serves for a broker's name, because it looks into the processes; clients ask it where real ones ask a name
server, or take any member, as their dice say. What name servers answer is compared with it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING

from simulation.nodes import MEMBER_PORT, NAMES_PORT, Node, broker_settings
from simulation.world import Host

if TYPE_CHECKING:
    from simulation.loop import SimLoop


@dataclass(frozen=True)
class Shape:
    """`plain`: brokers without a group. `groups`: how many members each group has. `names`: name servers."""

    plain: int = 1
    groups: tuple[int, ...] = ()
    names: int = 0


class Cluster:
    """`settings`: of every broker, as `--set` takes them."""

    def __init__(self, loop: SimLoop, root: Path, shape: Shape, settings: dict[str, str], dice: Random) -> None:
        self.loop = loop
        self.shape = shape
        self._root = root
        self._dice = dice
        self._settings = settings
        self.names = [self._name_server(number) for number in range(shape.names)]
        self._names = ";".join(node.address for node in self.names)
        self.brokers: dict[str, list[Node]] = {}
        for number in range(shape.plain):
            self.brokers[f"b{number}"] = [self._plain(f"b{number}", f"10.0.0.{number + 1}")]
        for number, size in enumerate(shape.groups):
            self.brokers[f"g{number}"] = self._group(f"g{number}", size, f"10.0.{number + 2}.")

    def nodes(self) -> Iterator[Node]:
        """All of them, name servers first."""
        yield from self.names
        for members in self.brokers.values():
            yield from members

    def broker_of(self, node: Node) -> str | None:
        """The broker's name that a node has; None: it is a name server."""
        return next((name for name, members in self.brokers.items() if node in members), None)

    def leader(self, broker: str) -> Node | None:
        """The broker that serves under this name now, if any."""
        for node in self.brokers[broker]:
            running = node.broker
            if node.ready and running is not None and (running.group is None or running.group.leads):
                return node
        return None

    def address(self, broker: str) -> str:
        """Where a client would go."""
        found = self.leader(broker)
        return (found or self._dice.choice(self.brokers[broker])).address

    def is_group(self, broker: str) -> bool:
        """Its members have one log."""
        return "enableDLegerCommitLog" in self.brokers[broker][0].settings

    def founded(self) -> None:
        """Every group has formed: no member may create it again."""
        for node in self.nodes():
            node.settings.pop("groupBootstrap", None)

    def _host(self, name: str, ip: str) -> Host:
        folder = self._root / name
        folder.mkdir()
        drift = self._dice.choice((1.0, 1.0, 1.0001, 0.9999, 1.03, 0.97))
        host = Host(name, ip, folder, drift)
        self.loop.network.add(host)
        return host

    def _name_server(self, number: int) -> Node:
        host = self._host(f"names{number}", f"10.0.9.{number + 1}")
        assert host.folder is not None
        settings = {
            "nameserver.listenPort": str(NAMES_PORT),
            "nameserver.bindAddress": host.ip,
            "nameserver.kvConfigPath": str(host.folder / "kv.json"),
        }
        return Node(self.loop, host, settings, broker=False)

    def _plain(self, name: str, ip: str) -> Node:
        host = self._host(name, ip)
        assert host.folder is not None
        return Node(self.loop, host, broker_settings(host.folder, host, self._names, **self._settings), broker=True)

    def _group(self, name: str, size: int, net: str) -> list[Node]:
        peers = ";".join(f"n{number}-{net}{number + 1}:{MEMBER_PORT}" for number in range(size))
        members = []
        for number in range(size):
            node = self._plain(f"{name}n{number}", f"{net}{number + 1}")
            node.settings |= {
                "brokerName": name,
                "enableDLegerCommitLog": "true",
                "dLegerPeers": peers,
                "dLegerSelfId": f"n{number}",
                "groupBootstrap": "true",
            }
            members.append(node)
        return members
