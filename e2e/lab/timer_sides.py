"""What `make timers` measures: a broker of ours, a group of ours, and RocketMQ, with the same faults and questions."""

from __future__ import annotations

import time
import urllib.request
from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

from lab.group import AdminError, Group
from lab.peer import Peer
from lab.places import HOST
from lab.processes import ProcessError
from lab.tally import Tally

SETTINGS = ("flushDiskType=SYNC_FLUSH", "recallMessageEnable=true")
KILL, TRANSFER = "kill", "transfer"
_START_S = 120.0
_ANSWER_S = 30.0


class Side(Protocol):
    """One broker or group. All methods block."""

    name: str
    round_s: float
    """A fault with the load before it and the start behind it, generously."""

    def start(self) -> None:
        """Returns when it serves. ProcessError."""

    def broker(self) -> str:
        """The address at which clients send now. ProcessError: nothing serves."""

    def disturb(self, fault: str) -> None:
        """Makes a fault; the leader is gone, or is another one."""

    def recover(self) -> None:
        """Returns when all of it serves again. ProcessError."""

    def waiting(self) -> int | None:
        """Timers that are stored and not delivered; None: it does not tell. OSError."""

    def stop(self) -> None:
        """In order."""

    def kill(self) -> None:
        """For `finally` blocks."""


class Single:
    """`tally run`. It has no other leader: each fault is a kill."""

    def __init__(self, folder: Path) -> None:
        self.name, self.round_s = "tallystick", 12.0
        self._tally = Tally(folder, SETTINGS)

    def start(self) -> None:
        self._tally.start()

    def broker(self) -> str:
        return self._tally.broker

    def disturb(self, fault: str) -> None:
        self._tally.kill()

    def recover(self) -> None:
        self._tally.start()

    def waiting(self) -> int | None:
        return _waiting(self._tally.http_port)

    def stop(self) -> None:
        self._tally.stop()

    def kill(self) -> None:
        self._tally.kill()


class Members:
    """A group of three. A kill is one of the leader; a transfer goes to the next member."""

    def __init__(self, folder: Path) -> None:
        self.name, self.round_s = "tallystick, group of three", 20.0
        self._group = Group(folder, SETTINGS)

    def start(self) -> None:
        self._group.start(_START_S)

    def broker(self) -> str:
        self._group.wait(lambda: None if self._group.leader() else "no member leads", _START_S, "a member leads")
        leader = self._group.leader()
        if leader is None:
            raise ProcessError("no member leads")
        return leader.address

    def disturb(self, fault: str) -> None:
        leader = self._group.leader()
        if leader is None:
            raise ProcessError("no member leads")
        if fault == KILL:
            leader.kill()
            return
        try:
            leader.transfer((leader.number + 1) % len(self._group.members))
        except AdminError as error:
            raise ProcessError(f"leadership was not transferred: {error}") from error

    def recover(self) -> None:
        for member in self._group.members:
            if not member.alive:
                member.launch()
        self._group.wait(self._group.is_whole, _START_S, "the group is whole again")

    def waiting(self) -> int | None:
        leader = self._group.leader()
        return None if leader is None else _waiting(leader.http_port)

    def stop(self) -> None:
        self._group.stop()

    def kill(self) -> None:
        self._group.kill()


class RocketMQ:
    """One broker of RocketMQ 5, with its timer wheel."""

    VERSION = "5.5.0"

    def __init__(self, folder: Path, settings: Sequence[str]) -> None:
        """`settings`: beside those of the test, such as `timerPrecisionMs=100`."""
        self.name = f"RocketMQ {self.VERSION}" + "".join(f", {setting}" for setting in settings)
        self.round_s = 20.0
        self._peer = Peer(folder, self.VERSION)
        # By default it refuses sends that waited for 0.2 s, and the test stores timers faster than that allows.
        self._settings = (*SETTINGS, "timerWheelEnable=true", "waitTimeMillsInSendQueue=30000", *settings)

    def start(self) -> None:
        self._peer.up(self._settings, version=self.VERSION)

    def broker(self) -> str:
        return self._peer.broker

    def disturb(self, fault: str) -> None:
        self._call("kill")

    def recover(self) -> None:
        self._call("start")

    def _call(self, command: str) -> None:
        status, _ = self._peer.call(command, "broker-a")
        if status != 0:
            raise ProcessError(f"peer.sh {command} broker-a ended with status {status}, see {self._peer.log}")

    def waiting(self) -> int | None:
        return None

    def stop(self) -> None:
        self._peer.down()

    def kill(self) -> None:
        self._peer.down(kill=True)


def _waiting(http_port: int) -> int:
    with urllib.request.urlopen(f"http://{HOST}:{http_port}/metrics", timeout=_ANSWER_S) as answer:
        lines = answer.read().decode().splitlines()
    names = ("rocketmq_timing_messages", "rocketmq_timer_enqueue_lag")
    return sum(int(float(line.split()[-1])) for line in lines if line.startswith(names))


def faults(kills: int, transfers: int) -> list[str]:
    """The faults of a run, in turn."""
    both = [fault for pair in zip([KILL] * kills, [TRANSFER] * transfers, strict=False) for fault in pair]
    rest = [KILL] * (kills - transfers) + [TRANSFER] * (transfers - kills)
    return both + rest


def elapsed(begin_s: float) -> float:
    """Seconds since a value of the steady clock."""
    return time.monotonic() - begin_s
