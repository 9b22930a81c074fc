"""Who uses the group: proposes, and reads. They are many, in a hurry, and know nothing of each other.

Besides random requests they do what shows a bug soonest: one of them proposes to a new leader at once, and when
an entry is acknowledged, every other member that still claims to lead is asked whether it has the entry.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .member import Member
    from .simulation import Simulation


class Clients:
    def __init__(self, simulation: Simulation) -> None:
        self.quiet_until = 0.0
        """Until then no client proposes at random."""
        self._simulation = simulation
        self._queue = simulation.queue
        self._dice = simulation.dice
        self._proposals = 0
        self._reads = 0
        self._gone = False

    def begin(self) -> None:
        self._queue.after(0.0, self._next_proposal)
        self._queue.after(0.0, self._next_read)

    def end(self) -> None:
        self._gone = True

    def propose(self) -> None:
        """To one of those that would take it; there may be more than one."""
        accepting = [each for each in self._simulation.members.values() if each.running and each.raft.accepting]
        if accepting:
            self._propose_to(self._dice.choice(accepting))

    def on_ready(self, leader: Member) -> None:
        if not self._gone and self._dice.random() < 0.5:
            self._queue.after(self._dice.uniform(0.0, 0.02), self._propose_to, leader)

    def on_acknowledged(self, leader: Member) -> None:
        for other in self._simulation.members.values():
            if other is not leader and other.leads and not self._gone:
                self._reads += 1
                self._queue.after(self._dice.uniform(0.0, 0.05), other.read, self._reads)

    def _propose_to(self, member: Member) -> None:
        count = self._dice.choice((1, 1, 1, 2, 6))
        self._proposals += count
        member.propose(range(self._proposals - count, self._proposals))

    def _next_proposal(self) -> None:
        if self._gone:
            return
        if self._queue.now >= self.quiet_until:
            self.propose()
        # Sometimes there are no requests: only then can a member that is cut off have all that others have.
        gap = self._simulation.profile.proposal_gap_seconds
        seconds = self._dice.expovariate(1 / gap) if self._dice.random() < 0.9 else self._dice.uniform(0.3, 1.5)
        self._queue.after(seconds, self._next_proposal)

    def _next_read(self) -> None:
        if self._gone:
            return
        self._reads += 1
        self._dice.choice(list(self._simulation.members.values())).read(self._reads)
        self._queue.after(self._dice.expovariate(1 / self._simulation.profile.read_gap_seconds), self._next_read)
