"""Access control in a group of three real processes: one set of accounts, whichever member a client asks."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from group_lab import GroupLab, until

from tallystick.node.access.access_log import AUDIT_TOPIC
from tallystick.node.access.signatures import sign
from tallystick.node.remoting.client import RemotingClient
from tallystick.node.remoting.codes import RequestCode as Code
from tallystick.node.remoting.command import Command
from tallystick.node.remoting.errors import RemotingError
from tallystick.store.formats.record import Record

pytestmark = pytest.mark.process

FILE = 'accounts:\n- {accessKey: administrator, secretKey: "s3cret-value", admin: true}\n'
SEND = {"a": "p", "b": "Orders", "c": "TBW102", "d": "4", "e": "0", "f": "0", "g": "1", "h": "0", "i": "", "j": "0"}

PULL = {
    "consumerGroup": "auditors", "topic": AUDIT_TOPIC, "queueId": "0", "queueOffset": "0", "maxMsgNums": "32",
    "sysFlag": "4", "commitOffset": "0", "suspendTimeoutMillis": "0", "subscription": "*", "subVersion": "0",
}  # fmt: skip


def records(data: bytes) -> list[Record]:
    """The records of an answer to a pull."""
    found = []
    while data:
        size = int.from_bytes(data[:4], "big")
        found.append(Record.decode(data[:size]))
        data = data[size:]
    return found


async def test_accounts_are_those_of_the_group(tmp_path: Path) -> None:
    file, key = tmp_path / "plain_acl.yml", tmp_path / "key"
    file.write_text(FILE)
    key.write_text("ab" * 32)
    client = RemotingClient()

    async def call(address: str, user: str, code: Code, ext: dict[str, str]) -> Command:
        command = Command(code, ext=ext, body=b"body")
        sign(command, user, "s3cret-value")
        return await client.call(address, command, 5.0)

    settings = ("aclEnable=true", f"aclFile={file}", f"aclKeyFile={key}", "userTopics=1")
    with GroupLab(tmp_path / "group", *settings) as lab:
        leader = await lab.leader()
        await lab.ready()
        followers = [number for number in lab.members if number != leader]
        fields = {"accessKey": "producer1", "secretKey": "s3cret-value", "topicPerms": "Orders=PUB"}
        added = await call(lab.address(followers[0]), "administrator", Code.UPDATE_AND_CREATE_ACL_CONFIG, fields)
        assert added.code == 0, added.remark

        for number in lab.members:
            address = lab.address(number)

            async def known(address: str = address) -> bool | None:
                return (await call(address, "producer1", Code.SEND_MESSAGE_V2, SEND)).code == 0 or None

            await until(f"n{number} uses the new account", known)
            other = await call(address, "producer1", Code.SEND_MESSAGE_V2, SEND | {"b": "Other"})
            assert "No default permission for topic:Other" in (other.remark or "")
            unsigned = await client.call(address, Command(Code.SEND_MESSAGE_V2, ext=SEND))
            assert "No accessKey is configured" in (unsigned.remark or "")

        topic = {"defaultTopic": "TBW102", "readQueueNums": "1", "writeQueueNums": "1", "perm": "6"}
        topic |= {"topicFilterType": "SINGLE_TAG"}
        created = []
        for number, name in ((followers[1], "First"), (followers[0], "Second")):
            fields = topic | {"topic": name}
            answer = await call(lab.address(number), "administrator", Code.UPDATE_AND_CREATE_TOPIC, fields)
            created.append(answer.code)
        assert created == [0, 16], "the leader knows who creates a topic through another member"

        async def lines() -> list[tuple[str, str, int]] | None:
            answer = await call(lab.address(leader), "administrator", Code.PULL_MESSAGE, PULL)
            found = [json.loads(record.body) for record in records(answer.body)] if answer.code == 0 else []
            rows = [(line["request"], line["user"], line["answer"]) for line in found if line["result"] == "allowed"]
            return rows if len(rows) >= 3 else None

        assert sorted(await until("the audit has the changes of all members", lines)) == [
            ("UPDATE_AND_CREATE_ACL_CONFIG", "administrator", 0),
            ("UPDATE_AND_CREATE_TOPIC", "administrator", 0),
            ("UPDATE_AND_CREATE_TOPIC", "administrator", 16),
        ]

        lab.kill(leader)
        second = await lab.leader()

        async def serves() -> bool | None:
            try:
                return (await call(lab.address(second), "producer1", Code.SEND_MESSAGE_V2, SEND)).code == 0 or None
            except RemotingError:
                return None

        await until("the new leader uses the group's accounts", serves)
    await client.close()
    for path in (tmp_path / "group").rglob("*"):
        if path.is_file():
            assert b"s3cret-value" not in path.read_bytes(), path
