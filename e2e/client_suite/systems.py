"""The systems that the suite runs against: our node, our group of three, and RocketMQ."""

from __future__ import annotations

from pathlib import Path
from typing import Protocol

from lab.group import Group
from lab.peer import Peer
from lab.processes import ProcessError
from lab.tally import Tally

from client_suite.access import Access

_SETTINGS = (
    "transactionTimeOut=2000",
    "transactionCheckInterval=3000",
    "enablePropertyFilter=true",
    "traceTopicEnable=true",
)
_WAIT_S = 90.0


class System(Protocol):
    """A cluster with one broker name. All methods block, and are called in a thread."""

    name: str
    nameserver: str
    access: Access

    def start(self) -> None:
        """Starts it and waits until it serves."""

    def kill(self) -> None:
        """kill -9 of the broker, or of the leader of a group."""

    def restart(self) -> None:
        """Starts what `kill` ended."""

    def stop(self) -> None:
        """Ends all of it."""


class Node:
    """`tally run`."""

    name = "node"

    def __init__(self, folder: Path, access: Access) -> None:
        self.access = access
        self._tally = Tally(folder, [*_SETTINGS, *access.our_settings()])
        self.nameserver = self._tally.nameserver

    def start(self) -> None:
        self._tally.start()

    def kill(self) -> None:
        self._tally.kill()

    def restart(self) -> None:
        self._tally.start()

    def stop(self) -> None:
        self._tally.kill()


class GroupOfThree:
    """Three `tally broker`."""

    name = "group"

    def __init__(self, folder: Path, access: Access) -> None:
        self.access = access
        self._group = Group(folder, [*_SETTINGS, *access.our_settings()])
        self.nameserver = self._group.nameserver
        self._killed = -1

    def start(self) -> None:
        self._group.start()

    def kill(self) -> None:
        leader = self._group.leader()
        if leader is None:
            raise ProcessError("no member leads")
        self._killed = leader.number
        leader.kill()

    def restart(self) -> None:
        member = self._group.members[self._killed]
        member.launch()
        member.wait_ready()
        self._group.wait(self._group.is_whole, _WAIT_S, "the group is complete again")

    def stop(self) -> None:
        self._group.kill()


class RocketMQ:
    """RocketMQ, one master. The name server stays when the broker is killed."""

    name = "rocketmq"

    def __init__(self, folder: Path, access: Access, version: str) -> None:
        self.access = access
        self._peer = Peer(folder, version)
        self._version = version
        self.nameserver = self._peer.nameserver

    def start(self) -> None:
        self._peer.up([*_SETTINGS, *self.access.prepare_rocketmq(self._peer)], version=self._version)

    def kill(self) -> None:
        self._call("kill")

    def restart(self) -> None:
        self._call("start")

    def stop(self) -> None:
        self._peer.down(kill=True)

    def _call(self, command: str) -> None:
        status, output = self._peer.call(command, "broker-a")
        if status != 0:
            raise ProcessError(f"peer.sh {command} ended with status {status}: {output[-500:]}")
