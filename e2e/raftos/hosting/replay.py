"""Replays a recorded history on a group of raftos nodes: the same partitions, faults, deaths and requests at the same
times.

The fate of a single packet is drawn again, by the same network with the same seed, because the two sides send different
packets. Two faults can be left out for raftos: duplicated packets (`doubles`), and the loss of unsynced writes in a
crash (`power_loss`).

Requests go to the leader, one at a time: raftos cannot handle two at once (`test_replication`), and that would hide all
other findings.
"""

from __future__ import annotations

import dataclasses
import random
from collections import Counter
from typing import Any

from simulator.network import Network

from . import adapted
from .judge import JudgedGroup
from .recording import HEARTBEAT_SECONDS, Event, History

CALM_SECONDS = 30.0
_LOOK_SECONDS = 0.25


def replay(history: History, *, doubles: bool, power_loss: bool) -> JudgedGroup:
    """The group, judged."""
    return _Replay(history, doubles, power_loss).run()


class _Replay:
    def __init__(self, history: History, doubles: bool, power_loss: bool) -> None:
        self._history = history
        self._doubles = doubles
        self._power_loss = power_loss
        self._dice = random.Random(history.seed)
        self._values = 0
        self._network: Network
        self._group = JudgedGroup(
            history.size, seed=history.seed, heartbeat_seconds=HEARTBEAT_SECONDS, network=self._make_network
        )

    def _make_network(self, queue: Any, deliver: Any) -> Network:
        self._network = Network(queue, self._dice, Counter(), deliver)
        return self._network

    def run(self) -> JudgedGroup:
        group, history = self._group, self._history
        for event in history.events:
            group.queue.at(event.at, self._happens, event)
        while group.queue.now < history.end:
            group.run(_LOOK_SECONDS)
            if group.in_storm:
                return self._end()
        self._network.clear_up()
        for member in group.members:
            if not member.running:
                member.start()
        last_value = ""
        while group.queue.now < history.end + CALM_SECONDS and last_value not in group.acknowledged:
            last_value = self._propose() or last_value
            group.run(_LOOK_SECONDS)
        group.judge_the_end(last_value)
        return self._end()

    def _end(self) -> JudgedGroup:
        for member in self._group.members:
            member.end()
        return self._group

    def _happens(self, event: Event) -> None:
        match event.what:
            case "block":
                self._network.block(event.about)
            case "unblock":
                self._network.unblock(event.about)
            case "weather":
                weather = event.about
                self._network.weather = weather if self._doubles else dataclasses.replace(weather, duplicate=0.0)
            case "ends":
                self._ends(event.about)
            case "starts" if not self._group.members[event.about].running:
                self._group.members[event.about].start()
            case "propose":
                self._propose()

    def _ends(self, member: int) -> None:
        died = self._group.members[member]
        died.end()
        if self._power_loss:
            self._group.files.lose_power(adapted.path(member, ""), self._dice)
            self._group.lost_power(died)
        self._group.ran(died)

    def _propose(self) -> str | None:
        """The value, if a member took it."""
        serving = [member for member in self._group.members if member.serves]
        if not serving:
            return None
        self._values += 1
        value = f"v{self._values}"
        self._dice.choice(serving).propose(value)
        return value
