"""The rules of access: who may do what with which resource, from where.

The model is that of RocketMQ's ACL 2.0. A user has policies. A policy names resources, actions and source addresses,
and allows or denies. Of the policies that match a request, one decides:

    1. the user's own policies before default ones
    2. a policy of one kind of resource before one of any kind
    3. the exact name before a prefix, a longer prefix before a shorter one, and a prefix before any name
    4. deny before allow

If no policy matches, access is denied. Super users need no policy. A user that is disabled has no access.

This module has no I/O, no clock and no state.

Source: the documentation of ACL 2.0 (RIP-68).
"""

from __future__ import annotations

import enum
from collections import defaultdict
from collections.abc import Collection
from dataclasses import dataclass, field, replace

from tallystick.node.access.addresses import AddressPattern
from tallystick.node.access.user_quota import NO_QUOTA, Quota


class ResourceKind(enum.Enum):
    """What a request concerns."""

    TOPIC = "Topic"
    GROUP = "Group"
    CLUSTER = "Cluster"


class Action(enum.Enum):
    """What a request does with a resource."""

    PUB = "Pub"
    SUB = "Sub"
    RESEND = "Resend"
    """Sending a message again that a consumer could not process. No policy names it: `PUB` of an account permits it,
    and `Sub` of a policy, as in RocketMQ 4.8 and 5.5."""
    CREATE = "Create"
    UPDATE = "Update"
    DELETE = "Delete"
    GET = "Get"
    LIST = "List"


class Decision(enum.Enum):
    """What a policy decides."""

    ALLOW = "Allow"
    DENY = "Deny"


@dataclass(frozen=True, slots=True)
class Resource:
    """One topic, consumer group or cluster."""

    kind: ResourceKind
    name: str

    def __str__(self) -> str:
        return f"{self.kind.value}:{self.name}"


class Match(enum.IntEnum):
    """How a pattern compares names, in the order of precedence."""

    EXACT = 0
    PREFIX = 1
    ANY = 2


@dataclass(frozen=True, slots=True)
class ResourcePattern:
    """Resources of one kind, or of any kind (None), with one name, with a prefix, or with any name."""

    kind: ResourceKind | None = None
    match: Match = Match.ANY
    name: str = ""
    """The name or the prefix; empty with `Match.ANY`."""

    def covers(self, resource: Resource) -> bool:
        """Whether the resource is one of these."""
        if self.kind is not None and self.kind is not resource.kind:
            return False
        if self.match is Match.EXACT:
            return resource.name == self.name
        return self.match is Match.ANY or resource.name.startswith(self.name)


@dataclass(frozen=True, slots=True)
class Policy:
    """One rule of a user. No `sources`: from any address. `is_default`: it decides only if no other policy does."""

    pattern: ResourcePattern
    actions: frozenset[Action]
    decision: Decision
    sources: tuple[AddressPattern, ...] = ()
    is_default: bool = False

    def precedence(self) -> tuple[bool, bool, int, int, bool]:
        """Of two policies that match, the one with the smaller value decides."""
        return (
            self.is_default,
            self.pattern.kind is None,
            self.pattern.match,
            -len(self.pattern.name),
            self.decision is Decision.ALLOW,
        )

    def applies(self, actions: Collection[Action], source: str) -> bool:
        """Whether the policy concerns one of these actions from this address."""
        if self.actions.isdisjoint(actions):
            return False
        return not self.sources or any(each.matches(source) for each in self.sources)


@dataclass(frozen=True, slots=True)
class User:
    """One account. `secret` is the key of its signatures."""

    name: str
    secret: str = field(repr=False)
    policies: tuple[Policy, ...] = ()
    is_super: bool = False
    """No policy restricts this user."""
    is_enabled: bool = True
    may_administer: bool = False
    """Its policies restrict PUB and SUB alone: all other actions are permitted."""
    trusted_sources: tuple[AddressPattern, ...] = ()
    """Who names this account from one of these addresses needs no signature, and may do everything."""
    quota: Quota = NO_QUOTA


OF_MESSAGES = frozenset({Action.PUB, Action.SUB, Action.RESEND})


CLUSTER = Resource(ResourceKind.CLUSTER, "")
"""The cluster of the process. One process belongs to one cluster, so requests do not name it."""


class Rules:
    """The policies of one user, arranged so that a decision does not look at all of them."""

    def __init__(self, user: User, cluster: str = "") -> None:
        """`cluster`: the name of the cluster of the process; policies with the name of another cluster never apply."""
        self.user = user
        named: dict[Resource, list[Policy]] = defaultdict(list)
        others: list[Policy] = []
        for policy in sorted(user.policies, key=Policy.precedence):
            pattern = policy.pattern
            if pattern.kind is ResourceKind.CLUSTER:
                if pattern.covers(Resource(ResourceKind.CLUSTER, cluster)):
                    others.append(replace(policy, pattern=ResourcePattern(ResourceKind.CLUSTER)))
                continue
            if pattern.kind is not None and pattern.match is Match.EXACT and not policy.is_default:
                named[Resource(pattern.kind, pattern.name)].append(policy)  # these precede all others
            else:
                others.append(policy)
        self._named = dict(named)
        self._others = tuple(others)

    def allows(self, resource: Resource, action: Action, source: str, alternative: Action | None = None) -> bool:
        """Whether the user may do this with the resource from this address.

        `alternative`: another action that permits the same. The first policy for one of the two decides.
        """
        actions = (action,) if alternative is None else (action, alternative)
        user = self.user
        if not user.is_enabled:
            return False
        if user.is_super or (user.may_administer and action not in OF_MESSAGES):
            return True
        for policy in self._named.get(resource, ()):
            if policy.applies(actions, source):
                return policy.decision is Decision.ALLOW
        for policy in self._others:
            if policy.pattern.covers(resource) and policy.applies(actions, source):
                return policy.decision is Decision.ALLOW
        return False
