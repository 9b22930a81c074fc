"""The admin core with access control: what an account may see and change."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from tallystick.admin import Admin
from tallystick.admin.models import StepState
from tallystick.client import AccessDenied, Client
from tallystick.client.testing import Broker
from tallystick.client.wire.codes import RequestCode

ACCOUNTS = """
accounts:
- accessKey: administrator
  secretKey: administrator-secret
  admin: true
- accessKey: reader-account
  secretKey: reader-secret
  topicPerms: [Orders=SUB]
  groupPerms: [shop=SUB]
"""
ADMINISTRATOR, READER = ("administrator", "administrator-secret"), ("reader-account", "reader-secret")


@asynccontextmanager
async def guarded(folder: Path) -> AsyncIterator[Broker]:
    accounts, own = folder / "plain_acl.yml", folder / "own.yml"
    accounts.write_text(ACCOUNTS)
    own.write_text("accessKey: administrator\nsecretKey: administrator-secret\n")
    accounts.chmod(0o600)
    settings = {"aclEnable": True, "aclFile": str(accounts), "aclCredentialsFile": str(own)}
    async with Broker(folder / "broker", **settings) as broker:
        yield broker


async def test_an_administrator_sees_and_changes_everything(tmp_path: Path) -> None:
    async with guarded(tmp_path) as broker, Admin(broker.nameserver, acl=ADMINISTRATOR, timeout=10.0) as admin:
        assert (await admin.topics.put("Orders", {})).ok
        assert [each.name for each in (await admin.topics.list()).items] == ["Orders"]
        (found,) = await admin.brokers.list()
        assert found.problem is None
        assert (await admin.groups.list(system=True)).problems == []
        assert (await admin.config.settings())[0].values


async def test_another_account_gets_no_tables_and_changes_nothing(tmp_path: Path) -> None:
    async with guarded(tmp_path) as broker:
        async with Admin(broker.nameserver, acl=ADMINISTRATOR, timeout=10.0) as admin:
            await admin.topics.put("Orders", {})
        async with Admin(broker.nameserver, acl=READER, timeout=10.0) as reader:
            page = await reader.topics.list()
            assert [each.name for each in page.items] == ["Orders"] and page.items[0].messages is None
            assert len(page.problems) >= 1 and "AclException" in page.problems[0].reason
            assert len(await reader.topics.queues("Orders")) == 8
            for read in (reader.groups.list, reader.config.settings):
                with pytest.raises(AccessDenied):
                    await read()
            (found,) = await reader.brokers.list()
            assert not found.reachable and "AclException" in (found.problem or "")
            for code in (RequestCode.DESCRIBE_NODE, RequestCode.CHANGE_GROUP):
                with pytest.raises(AccessDenied):
                    await reader.client.ask(broker.address, code, {"action": "transfer"})
            wiped = await reader.brokers.wipe_write_permission("broker-a")
            assert [step.state for step in wiped.steps] == [StepState.DONE], "this name server has no access control"
        async with Client(broker.nameserver) as anonymous:
            with pytest.raises(AccessDenied):
                await anonymous.ask(broker.address, RequestCode.DESCRIBE_NODE)
