"""Users of RocketMQ's ACL 2.0: a name with a password, and policies.

    username: alice
    password: a-secret
    userType: Normal                     Super: no policy restricts the user
    userStatus: enable                   disable: all requests are refused
    owner: 5f2c81d0                      who manages the user, for example a resource of Kubernetes; it may be missing
    policies:
    - policyType: Custom                 Default: decides only if no policy of the type Custom does
      entries:
      - resource: Topic:orders*          Topic, Group or Cluster with a name, a prefix and *, or *; * alone: everything
        actions: [Pub, Sub]              Pub, Sub, Create, Update, Delete, Get, List; All
        sourceIps: [10.0.0.0/8]          addresses and networks; none: from anywhere
        decision: Allow                  or Deny
    quota:                               limits of this user (`user_quota`)
      messagesPerSecond: 1000

Words are read in any case. The name is the access key of the user's signatures, and the password is their secret. Which
policy decides is described in `policies`.

Source: UserInfo, AclInfo and the checks of AdminBrokerProcessor of RocketMQ 5.5.0, and its answers.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

from tallystick.node.access.addresses import AddressError, AddressPattern
from tallystick.node.access.fields import AclError, objects, text, texts
from tallystick.node.access.policies import (
    Action,
    Decision,
    Match,
    Policy,
    ResourceKind,
    ResourcePattern,
    User,
)
from tallystick.node.access.user_quota import NO_QUOTA, Quota

CUSTOM, DEFAULT = "Custom", "Default"
_SUBJECT = "User:"
_KINDS = {kind.value.lower(): kind for kind in ResourceKind}
_WRITTEN = tuple(action for action in Action if action is not Action.RESEND)
_ACTIONS = {action.value.lower(): frozenset({action}) for action in _WRITTEN} | {
    "sub": frozenset({Action.SUB, Action.RESEND}),
    "all": frozenset(Action),
}
_DECISIONS = {decision.value.lower(): decision for decision in Decision}
_ACTION_NAMES = {action.value.lower(): action.value for action in _WRITTEN} | {"all": "All"}

_Word = TypeVar("_Word")


@dataclass(frozen=True, slots=True)
class Entry:
    """What a policy says about one resource, as it is written."""

    resource: str
    actions: tuple[str, ...]
    decision: str
    sources: tuple[str, ...] = ()

    @classmethod
    def read(cls, fields: Mapping[str, Any]) -> Entry:
        """AclError: a field is invalid."""
        actions = tuple(_word(_ACTION_NAMES, name, "action") for name in texts(fields, "actions"))
        if not actions:
            raise AclError("actions is empty")
        decision = _word(_DECISIONS, text(fields, "decision"), "decision")
        entry = cls(text(fields, "resource"), actions, decision.value, texts(fields, "sourceIps"))
        entry.policy(is_default=False)
        return entry

    def fields(self) -> dict[str, Any]:
        """The fields as in a request."""
        found: dict[str, Any] = {"resource": self.resource, "actions": list(self.actions), "decision": self.decision}
        return found | ({"sourceIps": list(self.sources)} if self.sources else {})

    def policy(self, *, is_default: bool) -> Policy:
        """The rule that the entry means. AclError."""
        actions = frozenset[Action]().union(*(_ACTIONS[name.lower()] for name in self.actions))
        decision = _DECISIONS[self.decision.lower()]
        return Policy(_pattern(self.resource), actions, decision, _networks(self.sources), is_default)


@dataclass(frozen=True, slots=True)
class AclUser:
    """One user with its policies. `custom` and `default`: the entries of both types, each resource once."""

    name: str
    secret: str = field(repr=False)
    is_super: bool = False
    is_enabled: bool = True
    custom: tuple[Entry, ...] = ()
    default: tuple[Entry, ...] = ()
    quota: Quota = NO_QUOTA
    owner: str = ""
    """Who manages it, over HTTP (`node/http/users_api.py`); empty: no program. The admin tool keeps it."""

    @classmethod
    def read(cls, fields: Mapping[str, Any]) -> AclUser:
        """Reads a user with its policies. AclError: a field is invalid."""
        name, password = text(fields, "username"), text(fields, "password", strip=False)
        if not name:
            raise AclError("username is blank")
        if not password.strip():
            raise AclError(f"user {name!r}: password is blank")
        user = cls(name, password, owner=text(fields, "owner")).changed(fields)
        for policy in objects(fields, "policies"):
            user = user.with_policy(text(policy, "policyType"), objects(policy, "entries"))
        return user

    def fields(self) -> dict[str, Any]:
        """The fields as they are stored."""
        return self.managed() | {"password": self.secret}

    def described(self) -> dict[str, Any]:
        """The fields without secret and policies."""
        return {
            "username": self.name,
            "userType": "Super" if self.is_super else "Normal",
            "userStatus": "enable" if self.is_enabled else "disable",
            **self.quota.fields(),
        }

    def managed(self) -> dict[str, Any]:
        """The fields with owner and policies, without the secret."""
        found = self.described() | ({"owner": self.owner} if self.owner else {})
        return found | ({"policies": self.policies()} if self.policies() else {})

    def policies(self, resource: str = "") -> list[dict[str, Any]]:
        """The policies as in a request. `resource`: only entries whose resource contains this text."""
        found = [
            {"policyType": kind, "entries": [entry.fields() for entry in entries if resource in entry.resource]}
            for kind, entries in ((CUSTOM, self.custom), (DEFAULT, self.default))
        ]
        return [policy for policy in found if policy["entries"]]

    def with_secret(self, secret: str) -> AclUser:
        """The same user with another password."""
        return replace(self, secret=secret)

    def changed(self, fields: Mapping[str, Any]) -> AclUser:
        """This user with the given fields, without policies. AclError."""
        kind, status = text(fields, "userType").lower(), text(fields, "userStatus").lower()
        for value, known in ((kind, ("", "super", "normal")), (status, ("", "enable", "disable"))):
            if value not in known:
                raise AclError(f"user {self.name!r}: {value!r} must be one of {', '.join(known[1:])}")
        return replace(
            self,
            secret=text(fields, "password", strip=False) or self.secret,
            is_super=kind == "super" if kind else self.is_super,
            is_enabled=status == "enable" if status else self.is_enabled,
            quota=self.quota.changed(fields),
        )

    def with_policy(self, kind: str, entries: Iterable[Mapping[str, Any]]) -> AclUser:
        """This user with entries added to a policy. AclError.

        A new policy has the entries as they are given: one resource may have several, for different addresses. In a
        policy that exists, an entry replaces the first one of its resource.
        """
        name = _policy_type(kind)
        before = self.custom if name == CUSTOM else self.default
        merged = list(before)
        for entry in map(Entry.read, entries):
            at = next((at for at, old in enumerate(merged) if before and old.resource == entry.resource), len(merged))
            merged[at : at + 1] = [entry]
        return self._with(name, tuple(merged))

    def without_policy(self, kind: str, resource: str) -> AclUser:
        """This user without an entry, or without a whole policy (`resource` empty), or without all (both empty)."""
        if not kind and not resource:
            return replace(self, custom=(), default=())
        name = _policy_type(kind)
        entries = self.custom if name == CUSTOM else self.default
        return self._with(name, tuple(entry for entry in entries if resource and entry.resource != resource))

    def user(self) -> User:
        """The user for the rules. AclError."""
        policies = [entry.policy(is_default=False) for entry in self.custom]
        policies += [entry.policy(is_default=True) for entry in self.default]
        return User(self.name, self.secret, tuple(policies), self.is_super, self.is_enabled, quota=self.quota)

    def _with(self, kind: str, entries: tuple[Entry, ...]) -> AclUser:
        return replace(self, custom=entries) if kind == CUSTOM else replace(self, default=entries)


def subject_name(subject: str) -> str:
    """The name of the user that a subject names: `User:alice`. AclError: it names no user."""
    if not subject.lower().startswith(_SUBJECT.lower()) or len(subject) == len(_SUBJECT):
        raise AclError(f"{subject!r} is not a subject: User:NAME")
    return subject[len(_SUBJECT) :]


def subject_of(name: str) -> str:
    """The subject of a user."""
    return _SUBJECT + name


def _policy_type(kind: str) -> str:
    return _word({"custom": CUSTOM, "default": DEFAULT}, kind or CUSTOM, "type of policy")


def _pattern(resource: str) -> ResourcePattern:
    if resource == "*":
        return ResourcePattern()
    kind, colon, name = resource.partition(":")
    if not colon or not name or kind.lower() not in _KINDS:
        raise AclError(f"{resource!r} is not a resource: Topic:NAME, Group:NAME, Cluster:NAME, with * at the end, or *")
    if name == "*":
        return ResourcePattern(_KINDS[kind.lower()])
    match = Match.PREFIX if name.endswith("*") else Match.EXACT
    return ResourcePattern(_KINDS[kind.lower()], match, name.removesuffix("*"))


def _networks(sources: tuple[str, ...]) -> tuple[AddressPattern, ...]:
    try:
        return tuple(AddressPattern.parse_network(source) for source in sources)
    except AddressError as error:
        raise AclError(f"sourceIps: {error}") from error


def _word(known: Mapping[str, _Word], word: str, what: str) -> _Word:
    found = known.get(word.lower())
    if found is None:
        raise AclError(f"{word!r} is not a {what}: {', '.join(known)}")
    return found
