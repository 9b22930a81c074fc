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
      quota:                             limits of this account (`user_quota`); RocketMQ does not read them
        messagesPerSecond: 1000
    users:                               of ACL 2.0, with their policies (`acl_users`); RocketMQ 4.x does not read them
    - username: alice

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

from tallystick.node.access.acl_users import AclUser
from tallystick.node.access.addresses import AddressError, AddressPattern
from tallystick.node.access.fields import AclError, flag, objects, text, texts, values
from tallystick.node.access.policies import (
    OF_MESSAGES,
    Action,
    Decision,
    Match,
    Policy,
    Resource,
    ResourceKind,
    ResourcePattern,
    User,
)
from tallystick.node.access.user_quota import NO_QUOTA, Quota

MAX_BYTES = 4 << 20
"""A larger file is refused."""
MIN_KEY_LENGTH = 7
RETRY_PREFIX = "%RETRY%"

_PUB_SUB = {
    "PUB": frozenset({Action.PUB, Action.RESEND}),
    "SUB": frozenset({Action.SUB}),
    "PUB|SUB": OF_MESSAGES,
    "SUB|PUB": OF_MESSAGES,
}


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
    quota: Quota = NO_QUOTA

    @classmethod
    def read(cls, fields: Mapping[str, Any]) -> Account:
        """Reads and checks the fields of a file or a request. AclError."""
        account = cls(
            access_key=text(fields, "accessKey"),
            secret_key=text(fields, "secretKey", strip=False),
            white_remote_address=text(fields, "whiteRemoteAddress"),
            admin=flag(fields, "admin"),
            default_topic_perm=text(fields, "defaultTopicPerm"),
            default_group_perm=text(fields, "defaultGroupPerm"),
            topic_perms=texts(fields, "topicPerms"),
            group_perms=texts(fields, "groupPerms"),
            quota=NO_QUOTA.changed(fields),
        )
        for name, value in (("accessKey", account.access_key), ("secretKey", account.secret_key)):
            if len(value) < MIN_KEY_LENGTH:
                raise AclError(f"account {account.access_key!r}: {name} has fewer than {MIN_KEY_LENGTH} characters")
        account.user()
        return account

    @property
    def name(self) -> str:
        """The access key."""
        return self.access_key

    @property
    def secret(self) -> str:
        """The key of the account's signatures."""
        return self.secret_key

    def with_secret(self, secret: str) -> Account:
        """The same account with another secret."""
        return replace(self, secret_key=secret)

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
            **self.quota.fields(),
        }
        return {name: value for name, value in found.items() if value not in ("", [])}

    def changed(self, fields: Mapping[str, Any]) -> Account:
        """This account with the given fields replaced; fields that are missing or empty stay. AclError."""
        given = {name: value for name, value in fields.items() if value not in (None, "", [], ())}
        return Account.read(self.fields() | given)

    def user(self) -> User:
        """The user that this account means. AclError: a permission or an address is invalid."""
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
            quota=self.quota,
        )


Principal = Account | AclUser
"""Who signs requests: an account of 4.x, or a user of ACL 2.0. The names of both are one name space."""


def read_principal(fields: Mapping[str, Any]) -> Principal:
    """Reads what `fields` of either kind returned. AclError."""
    return AclUser.read(fields) if "username" in fields else Account.read(fields)


@dataclass(frozen=True, slots=True)
class PlainAcl:
    """The whole content: accounts and users by name, and the addresses that are not checked."""

    accounts: Mapping[str, Principal]
    white_addresses: tuple[str, ...] = ()
    version: Mapping[str, Any] | None = None
    """`dataVersion` of the file: a time in milliseconds and a counter."""

    def with_account(self, principal: Principal) -> PlainAcl:
        """The same content with one account or user more, or with it in place of the one of its name."""
        return replace(self, accounts={**self.accounts, principal.name: principal})

    def without_account(self, name: str) -> PlainAcl:
        """The same content without the account or user of this name, if there is one."""
        return replace(self, accounts={key: each for key, each in self.accounts.items() if key != name})

    def white_patterns(self) -> tuple[AddressPattern, ...]:
        """AclError: an address is invalid."""
        return _patterns("globalWhiteRemoteAddresses", self.white_addresses)


def topic_resource(topic: str) -> Resource:
    """The resource of a topic: the retry topic of a group is that group."""
    if topic.startswith(RETRY_PREFIX):
        return Resource(ResourceKind.GROUP, topic[len(RETRY_PREFIX) :])
    return Resource(ResourceKind.TOPIC, topic)


def parse(content: bytes) -> PlainAcl:
    """Reads the content of the file. AclError: something in it is invalid; nothing of it should be used."""
    if len(content) > MAX_BYTES:
        raise AclError(f"the file has {len(content)} bytes, more than {MAX_BYTES}")
    try:
        found = yaml.load(content, Loader=_Loader)
    except (yaml.YAMLError, UnicodeError, ValueError, RecursionError) as error:
        mark = getattr(error, "problem_mark", None)
        where = f" in line {mark.line + 1}" if mark is not None else ""
        # The error's own text quotes the file, which has secrets.
        raise AclError(
            f"the file is not YAML{where}: {getattr(error, 'problem', '') or type(error).__name__}"
        ) from None
    if not isinstance(found, dict) or not found:
        raise AclError("the file has no accounts: it is empty or not a map")
    accounts: dict[str, Principal] = {row.name: row for row in map(Account.read, objects(found, "accounts"))}
    for user in map(AclUser.read, objects(found, "users")):
        if user.name in accounts:
            raise AclError(f"{user.name!r} is an account or a user already")
        accounts[user.name] = user
    acl = PlainAcl(accounts, texts(found, "globalWhiteRemoteAddresses"), _version(found))
    acl.white_patterns()
    return acl


def dump(acl: PlainAcl) -> bytes:
    """The file's content for these accounts."""
    found: dict[str, Any] = {"globalWhiteRemoteAddresses": list(acl.white_addresses)}
    for section, kind in (("accounts", Account), ("users", AclUser)):
        if rows := [each.fields() for each in acl.accounts.values() if isinstance(each, kind)]:
            found[section] = rows
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
    denied = (OF_MESSAGES | {Action.GET}) - allowed
    return [*policies, Policy(pattern, denied, Decision.DENY)] if denied else policies


def _actions(perm: str) -> frozenset[Action]:
    return _PUB_SUB.get(perm.strip(), frozenset())


def _perms(key: str, what: str, lines: tuple[str, ...]) -> list[tuple[str, frozenset[Action]]]:
    found = []
    for line in lines:
        parts = [part for part in line.split("=") if part]
        if len(parts) != 2 or not parts[0].strip():
            raise AclError(f"account {key!r}: {line!r} is not a {what} with its permissions (NAME=PUB|SUB)")
        found.append((parts[0].strip(), _actions(parts[1])))
    return found


def _patterns(what: str, written: tuple[str, ...]) -> tuple[AddressPattern, ...]:
    try:
        return tuple(AddressPattern.parse(one) for one in written if one.strip())
    except AddressError as error:
        raise AclError(f"{what}: {error}") from error


def _version(found: Mapping[str, Any]) -> Mapping[str, Any] | None:
    rows = values(found, "dataVersion")
    try:
        row = rows[0]
        return {"timestamp": int(row["timestamp"]), "counter": int(row["counter"])}
    except (IndexError, KeyError, TypeError, ValueError):
        return None  # it is only shown
