"""Accounts of RocketMQ 4.x: the content of `plain_acl.yml`, and the users and policies that they mean.

    globalWhiteRemoteAddresses:          addresses from which requests are not checked
    - 10.10.103.*
    accounts:
    - accessKey: RocketMQ                more than 6 characters, like the secret
      secretKey: 12345678
      whiteRemoteAddress:                addresses from which this account is not checked
      admin: false
      defaultTopicPerm: DENY             PUB, SUB, PUB|SUB or DENY; DENY if it is missing, or any other text
      defaultGroupPerm: SUB
      topicPerms:
      - topicA=PUB|SUB
      groupPerms:
      - groupA=DENY

A topic of `topicPerms` has the permissions of its line and no others: the default does not add to them. The retry topic
of a group, `%RETRY%g`, is the group `g`. An administrator without `topicPerms` and `groupPerms` may do everything. With
them it may administer, and its topics and groups are checked like those of others.

Source: PlainPermissionManager, PlainAccessResource and Permission of RocketMQ 4.8.0.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import yaml

from tallystick.node.access.addresses import AddressError, AddressPattern
from tallystick.node.access.policies import (
    Action,
    Decision,
    Match,
    Policy,
    Resource,
    ResourceKind,
    ResourcePattern,
    User,
)

MAX_BYTES = 4 << 20
"""A larger file is refused."""
MIN_KEY_LENGTH = 7
RETRY_PREFIX = "%RETRY%"

_PUB_SUB = {
    "PUB": frozenset({Action.PUB}),
    "SUB": frozenset({Action.SUB}),
    "PUB|SUB": frozenset({Action.PUB, Action.SUB}),
    "SUB|PUB": frozenset({Action.PUB, Action.SUB}),
}
_CHECKED = frozenset({Action.PUB, Action.SUB})


class PlainAclError(ValueError):
    """The accounts cannot be used; the message says why, without secrets."""


@dataclass(frozen=True, slots=True)
class Account:
    """One account as it is written. All fields have RocketMQ's names in the file."""

    access_key: str
    secret_key: str = field(repr=False)
    white_remote_address: str = ""
    admin: bool = False
    default_topic_perm: str = ""
    default_group_perm: str = ""
    topic_perms: tuple[str, ...] = ()
    group_perms: tuple[str, ...] = ()

    @classmethod
    def read(cls, fields: Mapping[str, Any]) -> Account:
        """Reads and checks the fields of a file or a request. PlainAclError."""
        account = cls(
            access_key=_text(fields, "accessKey"),
            secret_key=_text(fields, "secretKey"),
            white_remote_address=_text(fields, "whiteRemoteAddress"),
            admin=_flag(fields, "admin"),
            default_topic_perm=_text(fields, "defaultTopicPerm"),
            default_group_perm=_text(fields, "defaultGroupPerm"),
            topic_perms=_texts(fields, "topicPerms"),
            group_perms=_texts(fields, "groupPerms"),
        )
        for name, value in (("accessKey", account.access_key), ("secretKey", account.secret_key)):
            if len(value) < MIN_KEY_LENGTH:
                raise PlainAclError(
                    f"account {account.access_key!r}: {name} has fewer than {MIN_KEY_LENGTH} characters"
                )
        account.user()
        return account

    def fields(self) -> dict[str, Any]:
        """The fields as in the file, without empty ones."""
        found = {
            "accessKey": self.access_key,
            "secretKey": self.secret_key,
            "whiteRemoteAddress": self.white_remote_address,
            "admin": self.admin,
            "defaultTopicPerm": self.default_topic_perm,
            "defaultGroupPerm": self.default_group_perm,
            "topicPerms": list(self.topic_perms),
            "groupPerms": list(self.group_perms),
        }
        return {name: value for name, value in found.items() if value not in ("", [])}

    def changed(self, fields: Mapping[str, Any]) -> Account:
        """This account with the given fields replaced; fields that are missing or empty stay. PlainAclError."""
        given = {name: value for name, value in fields.items() if value not in (None, "", [], ())}
        return Account.read(self.fields() | given)

    def user(self) -> User:
        """The user that this account means. PlainAclError: a permission or an address is invalid."""
        own = {}  # later lines replace earlier ones, and topics replace groups
        for name, actions in _perms(self.access_key, "group", self.group_perms):
            own[Resource(ResourceKind.GROUP, name)] = actions
        for name, actions in _perms(self.access_key, "topic", self.topic_perms):
            own[topic_resource(name)] = actions
        policies = [
            policy
            for resource, actions in own.items()
            for policy in _pair(ResourcePattern(resource.kind, Match.EXACT, resource.name), actions)
        ]
        for kind, perm in (
            (ResourceKind.TOPIC, self.default_topic_perm),
            (ResourceKind.GROUP, self.default_group_perm),
        ):
            policies += [replace(policy, is_default=True) for policy in _pair(ResourcePattern(kind), _actions(perm))]
        return User(
            name=self.access_key,
            secret=self.secret_key,
            policies=tuple(policies),
            is_super=self.admin and not own,
            may_administer=self.admin,
            trusted_sources=_patterns(self.access_key, (self.white_remote_address,)),
        )


@dataclass(frozen=True, slots=True)
class PlainAcl:
    """The whole content: accounts by access key, and the addresses that are not checked."""

    accounts: Mapping[str, Account]
    white_addresses: tuple[str, ...] = ()
    version: Mapping[str, Any] | None = None
    """`dataVersion` of the file: a time in milliseconds and a counter."""

    def white_patterns(self) -> tuple[AddressPattern, ...]:
        """PlainAclError: an address is invalid."""
        return _patterns("globalWhiteRemoteAddresses", self.white_addresses)


def topic_resource(topic: str) -> Resource:
    """The resource of a topic: the retry topic of a group is that group."""
    if topic.startswith(RETRY_PREFIX):
        return Resource(ResourceKind.GROUP, topic[len(RETRY_PREFIX) :])
    return Resource(ResourceKind.TOPIC, topic)


def parse(content: bytes) -> PlainAcl:
    """Reads the content of the file. PlainAclError: something in it is invalid; nothing of it should be used."""
    if len(content) > MAX_BYTES:
        raise PlainAclError(f"the file has {len(content)} bytes, more than {MAX_BYTES}")
    try:
        found = yaml.load(content, Loader=_Loader)
    except (yaml.YAMLError, UnicodeError, ValueError, RecursionError) as error:
        mark = getattr(error, "problem_mark", None)
        where = f" in line {mark.line + 1}" if mark is not None else ""
        # The error's own text quotes the file, which has secrets.
        raise PlainAclError(
            f"the file is not YAML{where}: {getattr(error, 'problem', '') or type(error).__name__}"
        ) from None
    if not isinstance(found, dict) or not found:
        raise PlainAclError("the file has no accounts: it is empty or not a map")
    accounts: dict[str, Account] = {}
    for row in _list(found, "accounts"):
        if not isinstance(row, dict):
            raise PlainAclError("an account is not a map")
        account = Account.read(row)
        accounts[account.access_key] = account
    acl = PlainAcl(accounts, _texts(found, "globalWhiteRemoteAddresses"), _version(found))
    acl.white_patterns()
    return acl


def dump(acl: PlainAcl) -> bytes:
    """The file's content for these accounts."""
    found: dict[str, Any] = {"globalWhiteRemoteAddresses": list(acl.white_addresses)}
    found["accounts"] = [account.fields() for account in acl.accounts.values()]
    if acl.version is not None:
        found["dataVersion"] = [dict(acl.version)]
    return yaml.safe_dump(found, sort_keys=False, allow_unicode=True).encode()


class _Loader(yaml.SafeLoader):
    """Scalars as they are written: an access key `12345678` or `0x10` is a text, as it is for a Java client."""


_Loader.yaml_implicit_resolvers = {
    letter: [pair for pair in pairs if pair[0] in ("tag:yaml.org,2002:null", "tag:yaml.org,2002:merge")]
    for letter, pairs in yaml.SafeLoader.yaml_implicit_resolvers.items()
}


def _pair(pattern: ResourcePattern, actions: frozenset[Action]) -> list[Policy]:
    """Policies that allow these of PUB and SUB, and deny the others. Who may use a resource may also inspect it."""
    allowed = actions | {Action.GET} if actions else actions
    policies = [Policy(pattern, allowed, Decision.ALLOW)] if allowed else []
    denied = (_CHECKED | {Action.GET}) - allowed
    return [*policies, Policy(pattern, denied, Decision.DENY)] if denied else policies


def _actions(perm: str) -> frozenset[Action]:
    return _PUB_SUB.get(perm.strip(), frozenset())


def _perms(key: str, what: str, lines: tuple[str, ...]) -> list[tuple[str, frozenset[Action]]]:
    found = []
    for line in lines:
        parts = [part for part in line.split("=") if part]
        if len(parts) != 2 or not parts[0].strip():
            raise PlainAclError(f"account {key!r}: {line!r} is not a {what} with its permissions (NAME=PUB|SUB)")
        found.append((parts[0].strip(), _actions(parts[1])))
    return found


def _patterns(what: str, texts: tuple[str, ...]) -> tuple[AddressPattern, ...]:
    try:
        return tuple(AddressPattern.parse(text) for text in texts if text.strip())
    except AddressError as error:
        raise PlainAclError(f"{what}: {error}") from error


def _text(fields: Mapping[str, Any], name: str) -> str:
    value = fields.get(name)
    if value is None:
        return ""
    if not isinstance(value, str):
        raise PlainAclError(f"{name} is not a text")
    return value.strip() if name != "secretKey" else value


def _flag(fields: Mapping[str, Any], name: str) -> bool:
    value = fields.get(name)
    text = str(value).lower() if value is not None else ""
    if text not in ("", "true", "false", "yes", "no", "on", "off"):
        raise PlainAclError(f"{name} is neither true nor false")
    return text in ("true", "yes", "on")


def _list(fields: Mapping[str, Any], name: str) -> list[Any]:
    value = fields.get(name)
    if value is None:
        return []
    if not isinstance(value, list | tuple):
        raise PlainAclError(f"{name} is not a list")
    return list(value)


def _texts(fields: Mapping[str, Any], name: str) -> tuple[str, ...]:
    found = [value for value in _list(fields, name) if value is not None]
    if not all(isinstance(value, str) for value in found):
        raise PlainAclError(f"{name} has an element that is not a text")
    return tuple(found)


def _version(found: Mapping[str, Any]) -> Mapping[str, Any] | None:
    rows = _list(found, "dataVersion")
    try:
        row = rows[0]
        return {"timestamp": int(row["timestamp"]), "counter": int(row["counter"])}
    except (IndexError, KeyError, TypeError, ValueError):
        return None  # it is only shown
