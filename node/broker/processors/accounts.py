"""Accounts (50 to 54), with which RocketMQ's admin tool manages access control.

Secrets are never in an answer: GET_BROKER_CLUSTER_ACL_CONFIG has asterisks in their place. RocketMQ 4.8 sends them.

Source: AdminBrokerProcessor of RocketMQ 4.8.0, and the headers of 4.9.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from tallystick.node.access.acl_users import AclUser
from tallystick.node.access.fields import AclError
from tallystick.node.access.plain_acl import Account, PlainAcl
from tallystick.node.broker.processors.answers import json_answer
from tallystick.node.remoting.codes import RequestCode, ResponseCode
from tallystick.node.remoting.command import Command, ResponseError, need_str, opt_str
from tallystick.store import fastjson

if TYPE_CHECKING:
    from tallystick.node.broker.access import BrokerAccess
    from tallystick.node.broker.context import BrokerContext
    from tallystick.node.broker.tables.clients import Channel
    from tallystick.node.remoting.endpoint import Handler

HIDDEN = "******"
"""What answers have in place of a secret."""
_TEXTS = ("accessKey", "secretKey", "whiteRemoteAddress", "admin", "defaultTopicPerm", "defaultGroupPerm")
_LISTS = ("topicPerms", "groupPerms")


class AccessProcessor:
    """Base of the processors that manage access control. They serve nothing if the broker has none."""

    def __init__(self, broker: BrokerContext) -> None:
        self._broker = broker

    def routes(self) -> dict[int, Handler]:
        return {} if self._broker.access is None else self._routes()

    def _routes(self) -> dict[int, Handler]:
        raise NotImplementedError

    def _access(self) -> BrokerAccess:
        access = self._broker.access
        assert access is not None, "a broker without access control has no routes of it"
        return access

    async def _change(
        self, edit: Callable[[PlainAcl], PlainAcl], invalid: ResponseCode, not_saved: ResponseCode | None = None
    ) -> None:
        """ResponseError: the result is invalid, or it was not saved (None: with the same code)."""
        try:
            await self._access().change(edit)
        except (AclError, OSError) as error:
            raise ResponseError(invalid if isinstance(error, AclError) else not_saved or invalid, str(error)) from error


class AccountProcessor(AccessProcessor):
    """Accounts of RocketMQ 4.x."""

    def _routes(self) -> dict[int, Handler]:
        return {
            RequestCode.UPDATE_AND_CREATE_ACL_CONFIG: self.update,
            RequestCode.DELETE_ACL_CONFIG: self.delete,
            RequestCode.GET_BROKER_CLUSTER_ACL_INFO: self.version,
            RequestCode.UPDATE_GLOBAL_WHITE_ADDRS_CONFIG: self.update_white,
            RequestCode.GET_BROKER_CLUSTER_ACL_CONFIG: self.all,
        }

    async def update(self, channel: Channel, command: Command) -> Command:
        """50: creates an account, or replaces the given fields of one."""
        key = need_str(command.ext, "accessKey")
        fields: dict[str, Any] = {name: opt_str(command.ext, name) for name in _TEXTS}
        fields |= {name: _split(opt_str(command.ext, name)) for name in _LISTS}

        def edit(acl: PlainAcl) -> PlainAcl:
            known = acl.accounts.get(key)
            if isinstance(known, AclUser):
                raise AclError(f"{key!r} is a user of ACL 2.0: change it with updateUser")
            return acl.with_account(Account.read(fields) if known is None else known.changed(fields))

        await self._change(edit, ResponseCode.UPDATE_AND_CREATE_ACL_CONFIG_FAILED)
        return command.reply()

    async def delete(self, channel: Channel, command: Command) -> Command:
        """51."""
        key = need_str(command.ext, "accessKey")

        def edit(acl: PlainAcl) -> PlainAcl:
            if not isinstance(acl.accounts.get(key), Account):
                raise AclError(f"there is no account {key!r}")
            return acl.without_account(key)

        await self._change(edit, ResponseCode.DELETE_ACL_CONFIG_FAILED)
        return command.reply()

    async def update_white(self, channel: Channel, command: Command) -> Command:
        """53: replaces the addresses that are not checked."""
        addresses = tuple(_split(need_str(command.ext, "globalWhiteAddrs")))
        await self._change(
            lambda acl: replace(acl, white_addresses=addresses), ResponseCode.UPDATE_GLOBAL_WHITE_ADDRS_CONFIG_FAILED
        )
        return command.reply()

    def version(self, channel: Channel, command: Command) -> Command:
        """52: the version of the accounts. Tools of 4.9 want one for each file: there is one."""
        settings = self._broker.settings
        version = dict(self._access().acl.version or {"timestamp": 0, "counter": 0})
        ext = {
            "version": fastjson.dumps(version).decode(),
            "allAclFileVersion": fastjson.dumps({"plain_acl.yml": version}).decode(),
            "brokerName": settings.brokerName,
            "brokerAddr": str(self._broker.host),
            "clusterName": settings.brokerClusterName,
        }
        return command.reply(ext=ext)

    def all(self, channel: Channel, command: Command) -> Command:
        """54."""
        acl = self._access().acl
        rows = [each for each in acl.accounts.values() if isinstance(each, Account)]
        accounts = [account.fields() | {"secretKey": HIDDEN} for account in rows]
        return json_answer(command, {"globalWhiteAddrs": list(acl.white_addresses), "plainAccessConfigs": accounts})


def _split(text: str) -> list[str]:
    return [part.strip() for part in text.split(",") if part.strip()]
