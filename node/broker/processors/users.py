"""Users and policies of ACL 2.0 (3001 to 3010), with which the admin tool of RocketMQ 5.x manages access control.

Passwords are never in an answer: there are asterisks in their place. RocketMQ 5.5 sends them. So the tool's `copyUser`
copies no usable password.

Source: AdminBrokerProcessor of RocketMQ 5.5.0, and the answers of its broker.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from tallystick.node.access.acl_users import AclUser, subject_name, subject_of
from tallystick.node.access.fields import AclError, objects, text
from tallystick.node.access.plain_acl import PlainAcl
from tallystick.node.broker.processors.accounts import HIDDEN, AccessProcessor
from tallystick.node.broker.processors.answers import json_answer
from tallystick.node.remoting.codes import RequestCode, ResponseCode
from tallystick.node.remoting.command import Command, ResponseError, need_str, opt_str
from tallystick.store import fastjson
from tallystick.store.fastjson import FastjsonError

if TYPE_CHECKING:
    from tallystick.node.broker.tables.clients import Channel
    from tallystick.node.remoting.endpoint import Handler


class UserProcessor(AccessProcessor):
    """Users of ACL 2.0 and their policies."""

    def _routes(self) -> dict[int, Handler]:
        return {
            RequestCode.AUTH_CREATE_USER: self.create_user,
            RequestCode.AUTH_UPDATE_USER: self.update_user,
            RequestCode.AUTH_DELETE_USER: self.delete_user,
            RequestCode.AUTH_GET_USER: self.get_user,
            RequestCode.AUTH_LIST_USER: self.list_users,
            RequestCode.AUTH_CREATE_ACL: self.set_policies,
            RequestCode.AUTH_UPDATE_ACL: self.set_policies,
            RequestCode.AUTH_DELETE_ACL: self.delete_policies,
            RequestCode.AUTH_GET_ACL: self.get_policies,
            RequestCode.AUTH_LIST_ACL: self.list_policies,
        }

    # -- users -----------------------------------------------------------------------------------------------------

    async def create_user(self, channel: Channel, command: Command) -> Command:
        """3001."""
        name, fields = _name(command), _body(command)

        def edit(acl: PlainAcl) -> PlainAcl:
            if name in acl.accounts:
                raise AclError("The user is existed")
            return acl.with_account(AclUser.read({**fields, "username": name, "policies": []}))

        return await self._changed(command, edit)

    async def update_user(self, channel: Channel, command: Command) -> Command:
        """3002: replaces the given fields."""
        name, fields = _name(command), _body(command)
        return await self._changed(command, lambda acl: acl.with_account(_known(acl, name).changed(fields)))

    async def delete_user(self, channel: Channel, command: Command) -> Command:
        """3003: with its policies. A user that does not exist is no error."""
        name = _name(command)
        if self._user(name) is None:
            return command.reply()
        return await self._changed(command, lambda acl: acl.without_account(name))

    def get_user(self, channel: Channel, command: Command) -> Command:
        """3004. No body: there is no such user."""
        user = self._user(_name(command))
        return command.reply() if user is None else json_answer(command, _shown(user))

    def list_users(self, channel: Channel, command: Command) -> Command:
        """3005: users whose name contains `filter`."""
        part = opt_str(command.ext, "filter")
        return json_answer(command, [_shown(user) for user in self._users() if part in user.name])

    # -- policies --------------------------------------------------------------------------------------------------

    async def set_policies(self, channel: Channel, command: Command) -> Command:
        """3006 and 3007: adds entries to the policies of a user. An entry replaces the one of the same resource."""
        name, body = _subject(command), _body(command)

        def edit(acl: PlainAcl) -> PlainAcl:
            user, policies = _known_subject(acl, name), objects(body, "policies")
            if not policies:
                raise AclError("The body of acl is null")
            for policy in policies:
                user = user.with_policy(text(policy, "policyType"), objects(policy, "entries"))
            return acl.with_account(user)

        return await self._changed(command, edit)

    async def delete_policies(self, channel: Channel, command: Command) -> Command:
        """3008: one entry (`resource`), one policy (`policyType`), or all policies of a user."""
        name = _subject(command)
        kind, resource = opt_str(command.ext, "policyType"), opt_str(command.ext, "resource")

        def edit(acl: PlainAcl) -> PlainAcl:
            user = _known_subject(acl, name)
            if not user.policies():
                raise AclError("The acl is not exist.")
            return acl.with_account(user.without_policy(kind, resource))

        return await self._changed(command, edit)

    def get_policies(self, channel: Channel, command: Command) -> Command:
        """3009. No body: the user has no policies."""
        try:
            user = _known_subject(self._access().acl, _subject(command))
        except AclError as error:
            raise ResponseError(ResponseCode.NO_PERMISSION, str(error)) from error
        return json_answer(command, _policies(user)) if user.policies() else command.reply()

    def list_policies(self, channel: Channel, command: Command) -> Command:
        """3010: of subjects that contain `subjectFilter`, entries whose resource contains `resourceFilter`."""
        subject, resource = opt_str(command.ext, "subjectFilter"), opt_str(command.ext, "resourceFilter")
        users = [user for user in self._users() if subject in subject_of(user.name) and user.policies(resource)]
        return json_answer(command, [_policies(user, resource) for user in users])

    # -- inside ----------------------------------------------------------------------------------------------------

    def _users(self) -> list[AclUser]:
        return [each for each in self._access().acl.accounts.values() if isinstance(each, AclUser)]

    def _user(self, name: str) -> AclUser | None:
        found = self._access().acl.accounts.get(name)
        return found if isinstance(found, AclUser) else None

    async def _changed(self, command: Command, edit: Callable[[PlainAcl], PlainAcl]) -> Command:
        await self._change(edit, ResponseCode.NO_PERMISSION, ResponseCode.SYSTEM_ERROR)
        return command.reply()


def _name(command: Command) -> str:
    name = opt_str(command.ext, "username").strip()
    if not name:
        raise ResponseError(ResponseCode.INVALID_PARAMETER, "The username is blank")
    return name


def _subject(command: Command) -> str:
    try:
        return subject_name(need_str(command.ext, "subject"))
    except AclError as error:
        raise ResponseError(ResponseCode.INVALID_PARAMETER, str(error)) from error


def _body(command: Command) -> dict[str, Any]:
    try:
        found = fastjson.loads_request(command.body)
    except FastjsonError as error:
        raise ResponseError(ResponseCode.INVALID_PARAMETER, f"the body is not JSON: {error}") from error
    if not isinstance(found, dict):
        raise ResponseError(ResponseCode.INVALID_PARAMETER, "the body is not a JSON object")
    return found


def _known(acl: PlainAcl, name: str, missing: str = "The user is not exist") -> AclUser:
    found = acl.accounts.get(name)
    if not isinstance(found, AclUser):
        raise AclError(missing)
    return found


def _known_subject(acl: PlainAcl, name: str) -> AclUser:
    return _known(acl, name, f"The subject of {subject_of(name)} is not exist.")


def _shown(user: AclUser) -> dict[str, Any]:
    return user.described() | {"password": HIDDEN}


def _policies(user: AclUser, resource: str = "") -> dict[str, Any]:
    return {"subject": subject_of(user.name), "policies": user.policies(resource)}
