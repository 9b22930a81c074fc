"""Whether the logs of a group's members tell one story of its elections.

A member logs that it became leader in a term, or that it follows the leader of a term. For each term there is at most
one leader, and all members name the same one; the terms in one member's log never go back, also not over its restarts.
At rest, the last leader that a member's log names is the one that its status names.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Mapping
from typing import NamedTuple

from lab.ledger import Problems

_LEADS = re.compile(r"\bn(\d+): became leader of group \S+ in term (\d+)")
_FOLLOWS = re.compile(r"\bn(\d+): follows n(\d+), leader of group \S+ in term (\d+)")
_LEFT_OUT = re.compile(r"\(and \d+ more since the last such line\)")


class Reign(NamedTuple):
    """A leader and its term, as a line names them."""

    term: int
    leader: int


def reigns(log: str) -> list[Reign]:
    """The leaders that a member's log names, in order."""
    found = []
    for line in log.splitlines():
        if match := _LEADS.search(line):
            found.append(Reign(int(match[2]), int(match[1])))
        elif match := _FOLLOWS.search(line):
            found.append(Reign(int(match[3]), int(match[2])))
    return found


def check_roles(logs: Mapping[str, str], now: Mapping[str, Reign], problems: Problems) -> int:
    """Checks the logs of the members against each other and against `now`, what each member says at rest.

    Returns the number of elections. A member that left lines out is not checked against `now`.
    """
    leaders: dict[int, tuple[int, str]] = {}
    for name, log in logs.items():
        told = reigns(log)
        for before, after in itertools.pairwise(told):
            if after.term < before.term:
                problems.add(f"{name}: its log names term {after.term} after term {before.term}")
        for reign in told:
            leader, by = leaders.setdefault(reign.term, (reign.leader, name))
            if leader != reign.leader:
                problems.add(f"term {reign.term}: {by} logged n{leader} as leader, {name} logged n{reign.leader}")
        if name in now and not _LEFT_OUT.search(log) and (not told or told[-1] != now[name]):
            last = f"n{told[-1].leader} in term {told[-1].term}" if told else "no leader"
            problems.add(
                f"{name}: its log ends with {last}, its status says n{now[name].leader} in term {now[name].term}"
            )
    return len(leaders)
