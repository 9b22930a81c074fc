"""Access control of one broker: where its accounts are, how they change, and the checks of its requests.

without a group    plain_acl.yml, read again when it changes; requests 50, 51 and 53 rewrite it
in a group         the table `accounts` of the group's log; plain_acl.yml only until the group has its own
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from tallystick.node.access.access_log import AccessLog
from tallystick.node.access.control import AccessControl, Accounts
from tallystick.node.access.opening import open_accounts, open_sealer
from tallystick.node.access.plain_acl import PlainAcl
from tallystick.node.access.request_table import BROKER
from tallystick.node.broker.tables.accounts import AccountTable
from tallystick.store._kernel import DamageError
from tallystick.store.formats import properties
from tallystick.store.formats.record import Record, RecordError

if TYPE_CHECKING:
    from tallystick.node.broker.context import StoreView
    from tallystick.node.core.settings import BrokerSettings
    from tallystick.store._kernel import Door


class BrokerAccess:
    """The accounts and the checks. `table`: in a group, its accounts; None without one."""

    def __init__(
        self,
        settings: BrokerSettings,
        store: StoreView,
        door: Door,
        now_ms: Callable[[], int],
        log: AccessLog,
        *,
        in_group: bool,
    ) -> None:
        """SettingsError: the account file or the key file cannot be used."""
        sealer = open_sealer(settings.aclKeyFile)
        self._file = open_accounts(settings.aclFile, sealer, door)
        self._now_ms = now_ms
        self._cluster = settings.brokerClusterName
        self._changing = asyncio.Lock()
        self.table = AccountTable(self._file.acl, sealer, self._use) if in_group else None
        self.control = AccessControl(BROKER, log, topic_at=lambda pos: topic_at(store, pos))
        self.on_change: Callable[[], None] = lambda: None
        """Called when other accounts are in use."""
        self._use()

    @property
    def acl(self) -> PlainAcl:
        """The accounts in use, with their secrets."""
        return self._file.acl if self.table is None else self.table.acl

    @property
    def problem(self) -> str:
        """Why the stored accounts are not in use; empty if they are. Without secrets."""
        return self._file.problem if self.table is None else self.table.problem

    def to_json(self) -> dict[str, Any]:
        """For `GET /node`: without secrets and addresses."""
        version = dict(self.acl.version or {})
        denied = dict(self.control.denied)
        return {"accounts": len(self.acl.accounts), "version": version, "denied": denied, "problem": self.problem}

    def look(self) -> None:
        """Uses a changed account file. Call it once a second."""
        if self.table is None and self._file.look():
            self._use()

    async def change(self, edit: Callable[[PlainAcl], PlainAcl]) -> None:
        """Changes the accounts, durably. AclError: the result is invalid; OSError; FollowsError."""
        async with self._changing:
            edited = edit(self.acl)
            Accounts.of(edited, self._cluster)  # raises before anything changes
            counter = int((self.acl.version or {}).get("counter", 0)) + 1
            acl = replace(edited, version={"timestamp": self._now_ms(), "counter": counter})
            if self.table is None:
                await asyncio.to_thread(self._file.save, acl)
                self._use()
            else:
                self.table.set(acl)
                self._use()
                await self.table.saved()

    def _use(self) -> None:
        self.control.accounts = Accounts.of(self.acl, self._cluster)
        self.on_change()


def topic_at(store: StoreView, pos: int) -> str | None:
    """The topic of the message that begins at a position; of a half or delayed message, the topic that it is for."""
    try:
        data = store.reads.message_at(pos) if pos >= 0 else None
        if data is None:
            return None
        record = Record.decode(data, check_crc=False)
    except (OSError, DamageError, RecordError, OverflowError):
        return None
    return record.property_table().get(properties.REAL_TOPIC, record.topic)
