"""Checks requests before they are served: who sends them, and whether this user may do what they ask for.

    source address in the global white list ──────────────▶ served, not checked
    no access key: the account is the one that the client's certificate names; none ─▶ refused
    unknown access key ───────────────────────────────────▶ refused
    source address trusted by the account ────────────────▶ served, not checked further
    wrong signature, disabled user ───────────────────────▶ refused
    a need of the request (`request_table`) not allowed ──▶ refused

A refusal is RocketMQ's answer: code 1, and the text of its AclException as remark. Clients act on the code as with
RocketMQ. Refusals and administrative requests go to the access log, and refusals are counted by reason.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

from tallystick.node.access.access_log import AccessLog
from tallystick.node.access.addresses import AddressPattern
from tallystick.node.access.needs import Need, Rule, TopicAt, UnreadableError
from tallystick.node.access.plain_acl import PlainAcl
from tallystick.node.access.policies import ResourceKind, Rules
from tallystick.node.access.request_table import UNKNOWN
from tallystick.node.access.signatures import ACCESS_KEY, is_signed
from tallystick.node.remoting.codes import ResponseCode
from tallystick.node.remoting.command import Command, ResponseError

if TYPE_CHECKING:
    from tallystick.node.remoting.connection import Connection
    from tallystick.node.remoting.endpoint import Handler

REASONS = ("no_access_key", "unknown_account", "wrong_signature", "disabled", "not_permitted", "unreadable")
_EXCEPTION = "org.apache.rocketmq.acl.common.AclException: "


class DeniedError(Exception):
    """A request is refused. `reason` is one of `REASONS`; the text is for the client."""

    def __init__(self, reason: str, text: str) -> None:
        super().__init__(text)
        self.reason = reason


@dataclass(frozen=True, slots=True)
class Accounts:
    """Who may send requests: prepared once when the accounts change."""

    rules: Mapping[str, Rules]
    """By access key."""
    white: tuple[AddressPattern, ...] = ()

    @classmethod
    def of(cls, acl: PlainAcl, cluster: str = "") -> Accounts:
        """`cluster`: its name, for policies that name it; empty if it is unknown. AclError: an account is invalid."""
        rules = {key: Rules(account.user(), cluster) for key, account in acl.accounts.items()}
        return cls(rules, acl.white_patterns())


NO_ACCOUNTS = Accounts({})


class By(enum.Enum):
    """Why a request is allowed."""

    WHITE_LIST = "white list"
    """Its address is in the global white list."""
    ADDRESS = "address"
    """The account that it names trusts its address."""
    SIGNATURE = "signature"
    CERTIFICATE = "certificate"
    """The request names no account, and the certificate of its connection does."""


class Verdict(NamedTuple):
    """A request that is allowed, and the account that sent it; None: it was not checked."""

    by: By
    account: Rules | None


def judge(
    accounts: Accounts, rule: Rule, source: str, command: Command, topic_at: TopicAt, names: Sequence[str] = ()
) -> Verdict:
    """`names`: those of the client's certificate, which was verified. Raises DeniedError: the request is refused."""
    if any(pattern.matches(source) for pattern in accounts.white):
        return Verdict(By.WHITE_LIST, None)
    ext = command.ext or {}
    key = ext.get(ACCESS_KEY)
    if key is None:
        by, found = By.CERTIFICATE, next((accounts.rules[name] for name in names if name in accounts.rules), None)
        if found is None:
            raise DeniedError("no_access_key", "No accessKey is configured")
    else:
        by, found = By.SIGNATURE, accounts.rules.get(key)
        if found is None:
            raise DeniedError("unknown_account", f"No acl config for {key}")
        if any(pattern.matches(source) for pattern in found.user.trusted_sources):
            return Verdict(By.ADDRESS, found)
        if not is_signed(found.user.secret, ext, command.body):
            raise DeniedError("wrong_signature", f"Check signature failed for accessKey={key}")
    if not found.user.is_enabled:
        raise DeniedError("disabled", f"User:{found.user.name} is disabled")
    if found.user.is_super:
        return Verdict(by, found)
    try:
        needs = rule.needs(command, topic_at)
    except UnreadableError as error:
        raise DeniedError("unreadable", str(error)) from error
    for need in needs:
        if not found.allows(need.resource, need.action, source, need.alternative):
            raise DeniedError("not_permitted", _not_permitted(need, rule, command, found.user.name))
    return Verdict(by, found)


def _not_permitted(need: Need, rule: Rule, command: Command, key: str) -> str:
    if rule.is_administrative or need.resource.kind is ResourceKind.CLUSTER:
        return f"Need admin permission for request code={command.code}, but accessKey={key} is not"
    return f"No default permission for {need.resource.kind.value.lower()}:{need.resource.name}"


class AccessControl:
    """The checks of one process. `accounts` may be replaced at any time.

    `denied`: refused requests by reason.
    """

    def __init__(self, table: Mapping[int, Rule], log: AccessLog, *, topic_at: TopicAt = lambda _: None) -> None:
        """`table`: the rule of each request code."""
        self.accounts = NO_ACCOUNTS
        self.denied = dict.fromkeys(REASONS, 0)
        self.on_allowed: Callable[[Connection, Command, Verdict], None] = lambda *_: None
        """Called with each request that was allowed."""
        self._table = table
        self._log = log
        self._topic_at = topic_at

    def guard(self, routes: Mapping[int, Handler]) -> dict[int, Handler]:
        """The same routes, behind the checks."""
        return {code: self._guarded(self._table.get(code, UNKNOWN), handler) for code, handler in routes.items()}

    def _guarded(self, rule: Rule, handler: Handler) -> Handler:
        if rule.is_open:
            return handler

        def handle(connection: Connection, command: Command) -> Any:
            verdict = self.check(rule, connection, command)
            if rule.is_administrative:
                return self._log.recorded(verdict.by.value, handler, connection, command)
            return handler(connection, command)

        return handle

    def verdict(self, connection: Connection, command: Command) -> Verdict | None:
        """Whether a request would be allowed, without a line in the log. None: it would be refused."""
        rule = self._table.get(command.code, UNKNOWN)
        try:
            return judge(
                self.accounts, rule, connection.remote.ip, command, self._topic_at, connection.certificate_names
            )
        except DeniedError:
            return None

    def check(self, rule: Rule, connection: Connection, command: Command) -> Verdict:
        """ResponseError: the request is refused."""
        source, names = connection.remote.ip, connection.certificate_names
        try:
            verdict = judge(self.accounts, rule, source, command, self._topic_at, names)
        except DeniedError as error:
            self.denied[error.reason] += 1
            self._log.denied(command, connection.id, error.reason, names)
            raise ResponseError(ResponseCode.SYSTEM_ERROR, _EXCEPTION + str(error)) from None
        command.user = verdict.account.user.name if verdict.account is not None else ""
        self.on_allowed(connection, command, verdict)
        return verdict
