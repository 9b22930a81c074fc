"""RocketMQ's own producer through the death of a leader: how long until it sends again.

An application's producer learns of a new leader when it looks at the route, every 30 s unless it is told otherwise
(`pollNameServerInterval`). So two of them send at the same time: one with the client's defaults, which shows what users
get without doing anything, and one that looks every second, which shows what the group makes possible.

Until it looks, the client with the defaults continues to send to the old leader's address. There is no answer while the
process is gone; once it runs again it passes on what it gets. So the leader is killed in two ways: it stays away until
both producers have sent again, as a lost machine does, or it is started again at once, as by a supervisor. And it hands
over in order, where no send may fail at all.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from lab.group import AdminError, Group, Member
from lab.peer import Peer
from lab.processes import ProcessError, Server

SOURCE = Path(__file__).with_name("SendAgain.java")
TOPIC = "send-again"
DEFAULTS = "the client's defaults"

_START_S = 60.0
_AGAIN_S = 60.0
_LOOK_S = 0.02


@dataclass(frozen=True, slots=True)
class Sent:
    """One send of the producer; times in ms since 1970."""

    ok: bool
    begin_ms: int
    end_ms: int
    text: str

    @classmethod
    def parse(cls, line: str) -> Sent | None:
        """None: the line is no send."""
        words = line.split(" ", 3)
        if len(words) < 3 or words[0] not in ("ok", "failed") or not (words[1].isdecimal() and words[2].isdecimal()):
            return None
        return cls(words[0] == "ok", int(words[1]), int(words[2]), words[3] if len(words) > 3 else "")


class JavaProducer:
    """One of them; `poll_ms` 0: the client's default."""

    def __init__(self, peer: Peer, nameserver: str, poll_ms: int, topic: str = TOPIC) -> None:
        self.name = f"route every {poll_ms} ms" if poll_ms else DEFAULTS
        log = peer.work / f"{topic}-{poll_ms}.log"
        self._server = Server(peer.client_command(SOURCE, nameserver, topic, str(poll_ms)), log)
        self._server.wait_for("started", _START_S)

    def sends(self) -> list[Sent]:
        """All so far, in order."""
        return [sent for line in self._server.said().splitlines() if (sent := Sent.parse(line)) is not None]

    def wait_for_send(self, since_ms: int) -> Sent:
        """The first one that was begun after this time and was acknowledged. ProcessError: none in time."""
        end = time.monotonic() + _AGAIN_S
        while time.monotonic() < end:
            for sent in self.sends():
                if sent.ok and sent.begin_ms >= since_ms:
                    return sent
            if not self._server.alive:
                raise ProcessError(f"the Java producer ended, see {self._server.log}")
            time.sleep(_LOOK_S)
        raise ProcessError(f"the Java producer with {self.name} did not send again within {_AGAIN_S:g} s")

    def end(self) -> None:
        self._server.kill()


@contextmanager
def producing(peer: Peer, group: Group) -> Iterator[list[JavaProducer]]:
    """Both producers, sending."""
    producers: list[JavaProducer] = []
    try:
        for poll_ms in (1000, 0):
            producers.append(JavaProducer(peer, group.nameserver, poll_ms))
        yield producers
    finally:
        for producer in producers:
            producer.end()


def measure_send_again(
    producers: list[JavaProducer], group: Group, times: int, *, away: bool
) -> dict[str, list[float]]:
    """Kills the leader so many times; seconds until each producer's next acknowledged send, by its name.

    `away`: the leader is started again when they have sent again; else at once.
    """
    found: dict[str, list[float]] = {}
    for _ in range(times):
        leader = _sending(producers, group)
        killed_ms = _now_ms()
        leader.kill()
        if not away:
            leader.launch()
        for producer in producers:
            # One that was in progress may have been acknowledged by the dead; what counts was begun after.
            sent = producer.wait_for_send(killed_ms)
            found.setdefault(producer.name, []).append((sent.end_ms - killed_ms) / 1000)
        if away:
            leader.launch()
    return found


@dataclass(frozen=True, slots=True)
class HandedOver:
    """One producer's sends while leadership was handed on: how many, which failed, the longest one in ms."""

    sends: int
    failed: tuple[str, ...]
    longest_ms: int


def measure_transfers(producers: list[JavaProducer], group: Group, times: int) -> dict[str, HandedOver]:
    """Hands leadership over so many times; what became of the sends meanwhile, by the producer's name.

    ProcessError: it was not handed over.
    """
    _sending(producers, group)
    begin_ms = _now_ms()
    for _ in range(times):
        leader = _sending(producers, group)
        try:
            leader.transfer((leader.number + 1) % len(group.members))
        except AdminError as error:
            raise ProcessError(f"leadership was not handed over: {error}") from error
    _sending(producers, group)
    found = {}
    for producer in producers:
        sends = [sent for sent in producer.sends() if sent.begin_ms >= begin_ms]
        failed = tuple(sent.text for sent in sends if not sent.ok)
        found[producer.name] = HandedOver(len(sends), failed, max(sent.end_ms - sent.begin_ms for sent in sends))
    return found


def _sending(producers: list[JavaProducer], group: Group) -> Member:
    """The leader of a group that is whole, when every producer's sends are taken."""
    group.wait(group.is_whole, _START_S, "the group is complete")
    for producer in producers:
        producer.wait_for_send(_now_ms())
    leader = group.leader()
    if leader is None:
        raise ProcessError("all members of the group run, and none of them leads")
    return leader


def _now_ms() -> int:
    return time.time_ns() // 1_000_000
