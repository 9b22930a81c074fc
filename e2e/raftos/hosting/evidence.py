"""A history on both sides, and the table of what came of all of them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from .group import Group
from .our_group import OurGroup
from .raftos_group import RaftosGroup

Finding = Any
"""What a history found broken: empty, None or False if the rule held."""


@dataclass(frozen=True, slots=True)
class Both:
    raftos: Finding
    ours: Finding


SCRIPTED: list[tuple[str, ...]] = []
"""Rows: rule, what happens, raftos, ours."""
RANDOM: list[tuple[str, ...]] = []
"""Returns the same for random histories, with a separate head: how many of them break a rule, for each kind."""


def on_both(rules: str, what: str, history: Callable[[Group], Finding], *, members: int = 3) -> Both:
    """Runs the history on a group of raftos nodes and on one of our cores, and notes what it found."""
    both = Both(history(RaftosGroup(members)), history(OurGroup(members)))
    SCRIPTED.append((rules, what, _word(both.raftos), _word(both.ours)))
    return both


def on_raftos(
    rules: str, what: str, history: Callable[[RaftosGroup], Finding], *, ours: str, **options: Any
) -> Finding:
    """For what our side has outside of the core: `ours` says where it is tested."""
    found = history(RaftosGroup(3, **options))
    SCRIPTED.append((rules, what, _word(found), ours))
    return found


def _word(finding: Finding) -> str:
    return "**breaks**" if finding else "holds"


def table(head: tuple[str, ...], rows: list[tuple[str, ...]]) -> list[str]:
    """In Markdown."""
    return [f"| {' | '.join(cells)} |" for cells in (head, ("---",) * len(head), *rows)]
