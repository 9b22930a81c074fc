"""The accounts of a replicated group: a table in its log, which is equal on every member.

    {"accounts": {"RocketMQ": {"accessKey": "RocketMQ", "secretKey": "sealed:…", "topicPerms": ["orders=PUB"]}},
     "white":    ["10.10.103.*"],
     "version":  {"timestamp": 1700000000000, "counter": 3}}

A row is an account, or a user with its policies, as in `plain_acl.yml`. Its secret is sealed if there is a key
(`node/access/sealing.py`). Until the group has committed its accounts, each member uses those of its account file, and
the first leader puts its own into the log. An account that this member cannot use (it lacks the key) is refused;
`problem` names it.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import replace
from typing import Any

from tallystick.node.access.fields import AclError
from tallystick.node.access.plain_acl import PlainAcl, Principal, read_principal
from tallystick.node.access.sealing import Sealer
from tallystick.node.broker.tables.saving import NoFile, ReplicatedTable

_logger = logging.getLogger("tallystick.access")


class AccountTable(ReplicatedTable):
    """The table of one member. `acl`: the accounts with secrets as they are used."""

    what = "accounts"
    rows_field = "accounts"
    at_once = True

    def __init__(self, acl: PlainAcl, sealer: Sealer, on_taken: Callable[[], None]) -> None:
        """`acl`: what is used until the group has committed its own. `on_taken`: the group committed other accounts."""
        super().__init__(NoFile())
        self.problem = ""
        """Why an account cannot be used here; empty if all can."""
        self.acl = acl
        self._sealer = sealer
        self._on_taken = on_taken
        self._rows: dict[str, Any] = {key: sealer.seal(account).fields() for key, account in acl.accounts.items()}

    def set(self, acl: PlainAcl) -> None:
        """Changes the accounts at the leader. FollowsError: this member does not lead."""
        self.must_lead()
        before, self.acl = self.acl, acl
        changed = {
            key for key in {*before.accounts, *acl.accounts} if before.accounts.get(key) != acl.accounts.get(key)
        }
        for key in changed:
            account = acl.accounts.get(key)
            if account is None:
                self._rows.pop(key, None)
            else:
                self._rows[key] = self._sealer.seal(account).fields()
        self.changed(*changed)

    # -- see `ReplicatedTable` -----------------------------------------------------------------------------------------

    def to_json(self) -> dict[str, Any]:
        """See `ReplicatedTable`."""
        return self.picture()

    def row_names(self) -> Collection[str]:
        """See `ReplicatedTable`."""
        return tuple(self._rows)

    def row_json(self, name: str) -> Any:
        """See `ReplicatedTable`."""
        return self._rows.get(name)

    def head_json(self) -> dict[str, Any]:
        """See `ReplicatedTable`."""
        return {"white": list(self.acl.white_addresses), "version": dict(self.acl.version or {})}

    def take_head(self, picture: Mapping[str, Any]) -> None:
        """See `ReplicatedTable`."""
        white, version = picture.get("white") or (), picture.get("version") or None
        self.acl = replace(self.acl, white_addresses=tuple(white), version=version)

    def take_row(self, name: str, row: Any) -> None:
        """See `ReplicatedTable`."""
        if row is None:
            self._rows.pop(name, None)
        else:
            self._rows[name] = row

    def take(self, picture: Mapping[str, Any], rows: Iterable[str] | None = None) -> None:
        """See `ReplicatedTable`."""
        super().take(picture, rows)
        accounts: dict[str, Principal] = {}
        problem = ""
        for key, row in sorted(self._rows.items()):
            try:
                accounts[key] = self._sealer.open(read_principal(row))
            except AclError as error:
                problem = str(error)
        if problem and problem != self.problem:
            _logger.error("an account of the group cannot be used here: %s", problem)
        self.problem = problem
        self.acl = replace(self.acl, accounts=accounts)
        self._on_taken()
