"""A name server with access control, and a broker that signs its registrations."""

from pathlib import Path

import pytest

from tallystick.node.access.opening import open_credentials
from tallystick.node.access.request_table import NAME_SERVER
from tallystick.node.access.signatures import sign
from tallystick.node.core.settings import NameServerSettings
from tallystick.node.nameserver.server import NameServer
from tallystick.node.remoting.client import RemotingClient
from tallystick.node.remoting.codes import RequestCode as Code
from tallystick.node.remoting.command import Command

FILE = """
accounts:
- {accessKey: client01, secretKey: "12345678"}
- {accessKey: administrator, secretKey: "12345678", admin: true}
"""


async def test_routes_need_an_account_and_changes_an_administrator(tmp_path: Path) -> None:
    file, tools = tmp_path / "plain_acl.yml", tmp_path / "tools.yml"
    file.write_text(FILE)
    tools.write_text("accessKey: administrator\nsecretKey: 12345678\n")
    settings = NameServerSettings(
        listenPort=0,
        bindAddress="127.0.0.1",
        kvConfigPath=str(tmp_path / "kv.json"),
        aclEnable=True,
        aclFile=str(file),
    )
    server = NameServer(settings)
    address = f"127.0.0.1:{await server.start()}"
    stranger = RemotingClient()
    administrator = RemotingClient(sign=open_credentials("aclCredentialsFile", str(tools)))

    async def codes(client: RemotingClient, user: str | None = None) -> dict[int, int]:
        found = {}
        for code in NAME_SERVER:
            command = Command(code, ext={"topic": "T", "namespace": "n", "key": "k", "value": "v"})
            if user is not None:
                sign(command, user, "12345678")
            answer = await client.call(address, command)
            found[code] = 1 if (answer.remark or "").startswith("org.apache.rocketmq.acl") else 0
        return found

    try:
        assert set((await codes(stranger)).values()) == {1}
        allowed = {code for code, refused in (await codes(stranger, "client01")).items() if not refused}
        assert Code.GET_ROUTEINFO_BY_TOPIC in allowed
        assert not allowed & {Code.REGISTER_BROKER, Code.UNREGISTER_BROKER, Code.PUT_KV_CONFIG, Code.GET_NAMESRV_CONFIG}
        assert set((await codes(administrator)).values()) == {0}
    finally:
        await stranger.close()
        await administrator.close()
        await server.stop()


@pytest.mark.parametrize("content", ["", "accessKey: a", "- a", "accessKey: [a]\nsecretKey: b", "a: ["])
def test_credentials_that_cannot_be_used_are_refused(tmp_path: Path, content: str) -> None:
    file = tmp_path / "tools.yml"
    file.write_text(content)
    with pytest.raises(ValueError, match="aclCredentialsFile"):
        open_credentials("aclCredentialsFile", str(file))
    assert open_credentials("aclCredentialsFile", "") is None
