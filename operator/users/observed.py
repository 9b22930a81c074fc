"""What a pass over the Users of a cluster has observed, as values."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from tallystick.operator.core.declared import Problem
from tallystick.operator.core.kube import Json


@dataclass(frozen=True, slots=True)
class GroupUsers:
    """The users of one broker group. `silent`: why they are unknown; empty: they are known."""

    name: str
    users: Mapping[str, Json] = field(default_factory=dict)
    """By name, without passwords."""
    silent: str = ""
    starting: bool = False
    """Its members do not have access control yet."""


@dataclass(frozen=True, slots=True)
class ClusterView:
    """The cluster of the Users."""

    exists: bool
    deleting: bool = False
    access_control: bool = False
    """Whether its spec wants access control."""
    groups: Mapping[int, GroupUsers] = field(default_factory=dict)
    accounts_version: int = 0
    """Version of the accounts in the Secret."""
    name_servers: Mapping[str, int | None] = field(default_factory=dict)
    """By name: the version of the accounts that it uses; None: it did not say so."""


@dataclass(frozen=True, slots=True)
class Credential:
    """The password of a User, or why there is none."""

    password: str = field(default="", repr=False)
    problem: Problem | None = None
