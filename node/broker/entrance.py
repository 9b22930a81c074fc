"""What a request passes before a processor serves it.

    quota of the client ──▶ access control ──▶ quota of the user ──▶ audit of changes ──▶ processor

The kernel stores a plain send without these steps if they permitted one like it before: it checks the signature, and
takes the cost from the same meters.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from tallystick.node.access.access_log import AccessLog
from tallystick.node.access.control import By, Verdict
from tallystick.node.access.request_table import BROKER, administrative_codes
from tallystick.node.broker.access import BrokerAccess
from tallystick.node.broker.quotas import Quotas
from tallystick.node.broker.services.audit import AuditTrail
from tallystick.node.remoting.codes import RequestCode
from tallystick.node.remoting.command import Command, need_str

if TYPE_CHECKING:
    from tallystick.node.broker.broker import Broker
    from tallystick.node.remoting.connection import Connection
    from tallystick.node.remoting.endpoint import Handler


class Entrance:
    """The checks of one broker. `access`: None without access control."""

    def __init__(self, broker: Broker, *, in_group: bool) -> None:
        """SettingsError: the account file or the key file cannot be used."""
        settings, store = broker.settings, broker.store
        self.log = AccessLog()
        self.audit = AuditTrail(broker)
        self.log.on_line = self.audit.record
        self.quotas = Quotas(broker)
        self.quotas.on_throttled = lambda connection, command, scope, limit: self.log.throttled(
            command, connection.id, scope, limit
        )
        self.access: BrokerAccess | None = None
        if settings.aclEnable:
            self.access = BrokerAccess(settings, store, store.door, broker.now_ms, self.log, in_group=in_group)
        self._connections = store.connections
        self.on_accounts: Callable[[], None] = lambda: None
        """Called when accounts or their quotas are others."""

    def guard(self, routes: dict[int, Handler]) -> dict[int, Handler]:
        """The same routes behind the checks."""
        access = self.access
        if access is None:
            return self.quotas.guard_clients(self.log.guard(routes, administrative_codes(BROKER)))
        access.control.on_allowed = self._allowed
        access.on_change = self.accounts_changed
        self.accounts_changed()
        self._connections.check_access()
        return self.quotas.guard_clients(access.control.guard(self.quotas.guard_users(routes)))

    def accounts_changed(self) -> None:
        """Accounts or their quotas are others: the kernel forgets what it was granted."""
        if self.access is not None:
            self.quotas.use(rules.user for rules in self.access.control.accounts.rules.values())
            self._connections.revoke()
            self.on_accounts()

    def _allowed(self, connection: Connection, command: Command, verdict: Verdict) -> None:
        """The kernel may store the next sends like this one, until the accounts change."""
        source = connection.attributes.get("feeding")
        if command.code != RequestCode.SEND_MESSAGE_V2 or source is None:
            return
        if verdict.by is By.WHITE_LIST:
            source.trust()
        elif verdict.by is By.SIGNATURE and verdict.account is not None:
            user = verdict.account.user
            source.grant(need_str(command.ext, "b"), user.name, user.secret, self.quotas.of_user(user.name))
