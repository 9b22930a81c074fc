"""Steps as lines for people."""

from __future__ import annotations

from dataclasses import Field, fields, is_dataclass
from enum import Enum
from typing import NamedTuple

from tallystick.replication.effects import InstallSnapshot, Send, SendSnapshot, Write

WORLD = -1
"""In the place of a member: what happened to all."""


class Step(NamedTuple):
    """`moment`: in true virtual seconds."""

    moment: float
    member: int
    what: str
    detail: object

    def __str__(self) -> str:
        who = "world" if self.member == WORLD else f"n{self.member}"
        return f"{self.moment:9.4f}  {who:5}  {self.what}  {_brief(self.detail)}"


def _brief(value: object) -> str:
    """Without what can be guessed: an effect's message stands for the effect; defaults and payloads are left out."""
    if isinstance(value, tuple) and not hasattr(value, "_fields"):
        return ", ".join(_brief(each) for each in value)
    if isinstance(value, Send | Write | SendSnapshot | InstallSnapshot):
        inner = value.message if isinstance(value, Send) else value.request
        return f"{type(value).__name__} {_brief(inner)}"
    if isinstance(value, Enum):
        return value.name
    if is_dataclass(value):
        shown = [
            f"{each.name}={_brief(getattr(value, each.name))}" for each in fields(value) if _says_much(value, each)
        ]
        return f"{type(value).__name__}({', '.join(shown)})"
    return str(value)


def _says_much(value: object, field: Field[object]) -> bool:
    return field.name != "payload" and getattr(value, field.name) != field.default
