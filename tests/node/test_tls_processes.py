"""Processes that accept only TLS: the commands, the HTTP port, the registration, and the members of a group."""

import asyncio
import http.client
import ssl
from collections.abc import Iterator
from pathlib import Path

import pytest
from group_lab import GroupLab
from tally_process import TallyProcess, tally
from tls_lab import Authority, trusting

from tallystick.node.remoting.client import RemotingClient, RemotingConnectError
from tallystick.node.remoting.codes import RequestCode
from tallystick.node.remoting.command import Command

pytestmark = pytest.mark.process


def enforcing(authority: Authority, *more: str) -> list[str]:
    certificate, key = authority.issue("server", "127.0.0.1")
    return [
        "tls.server.mode=enforcing",
        f"tls.server.certPath={certificate}",
        f"tls.server.keyPath={key}",
        f"tls.client.trustCertPath={authority.path}",
        *more,
    ]


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("certificates"))


@pytest.fixture(scope="module")
def process(tmp_path_factory: pytest.TempPathFactory, authority: Authority) -> Iterator[TallyProcess]:
    folder = tmp_path_factory.mktemp("process")
    settings = enforcing(authority, "http.tlsMode=enforcing")
    with TallyProcess(folder, *(part for setting in settings for part in ("--set", setting))) as started:
        yield started


def test_the_commands_use_tls(process: TallyProcess, authority: Authority) -> None:
    where = ("--nameserver", process.nameserver, "--ca", str(authority.path))
    assert "Tls: 2 queues" in tally("topic", "create", "Tls", "--queues", "2", *where).stdout
    assert tally("produce", "Tls", "one", "two", *where).returncode == 0
    consumed = tally("consume", "Tls", "--once", *where)
    assert consumed.returncode == 0 and {"one", "two"} <= set(consumed.stdout.split())
    each = tally("topic", "list", "--nameserver", process.nameserver, "--any-certificate")
    assert "Tls" in each.stdout.split()


@pytest.mark.parametrize("options", [(), ("--tls",)], ids=["without TLS", "authorities of the system"])
def test_a_server_that_is_not_trusted_is_named(process: TallyProcess, options: tuple[str, ...]) -> None:
    refused = tally("topic", "list", "--nameserver", process.nameserver, *options)
    assert refused.returncode == 2 and refused.stderr.startswith("tally: no name server answers")
    assert ("certificate is not accepted" in refused.stderr) is bool(options)


def test_a_wrong_file_is_named(process: TallyProcess, tmp_path: Path) -> None:
    refused = tally("topic", "list", "--nameserver", process.nameserver, "--ca", str(tmp_path / "none.pem"))
    assert refused.returncode == 2 and "none.pem: No such file or directory" in refused.stderr


def test_the_http_port_uses_tls(process: TallyProcess, authority: Authority) -> None:
    host, _, port = process.places["http"].rpartition(":")
    encrypted = http.client.HTTPSConnection(host, int(port), timeout=20, context=authority.client())
    encrypted.request("GET", "/metrics")
    text = encrypted.getresponse().read().decode()
    encrypted.close()
    days = next(line for line in text.splitlines() if line.startswith("tally_tls_certificate_expiry_days "))
    assert float(days.split()[1]) > 100
    plain = http.client.HTTPConnection(host, int(port), timeout=20)
    with pytest.raises((http.client.HTTPException, OSError)):
        plain.request("GET", "/healthz")
        plain.getresponse()
    plain.close()


async def test_the_members_of_a_group_forward_with_tls(tmp_path: Path, authority: Authority) -> None:
    """A follower forwards the request to the leader: both accept only TLS, and both have registered."""
    with GroupLab(tmp_path, *enforcing(authority)) as lab:
        leader = await lab.leader()
        await lab.ready()
        client = RemotingClient(tls=authority.client)
        follower = next(number for number in lab.members if number != leader)
        address = lab.members[follower].places["broker"]
        ext = {"topic": "Forwarded", "defaultTopic": "TBW102", "readQueueNums": "1", "writeQueueNums": "1"}
        ext |= {"perm": "6", "topicFilterType": "SINGLE_TAG", "topicSysFlag": "0", "order": "false"}
        answer = await client.call(address, Command(RequestCode.UPDATE_AND_CREATE_TOPIC, ext=ext), 20)
        assert answer.code == 0, answer.remark
        route = await client.call(
            lab.nameserver, Command(RequestCode.GET_ROUTEINFO_BY_TOPIC, ext={"topic": "TBW102"}), 20
        )
        assert route.code == 0, route.remark
        await client.close()
        plain = RemotingClient()
        with pytest.raises(RemotingConnectError):
            await plain.call(address, Command(RequestCode.GET_BROKER_CONFIG), 20)
        await plain.close()


async def test_a_process_without_settings_serves_clients_in_test_mode(tmp_path: Path) -> None:
    with TallyProcess(tmp_path) as process:
        client = RemotingClient(tls=trusting)
        for address in (process.nameserver, process.places["broker"]):
            answer = await client.call(address, Command(RequestCode.GET_BROKER_CONFIG), 20)
            assert answer.code in (0, 3)
        await client.close()
        _, writer = await asyncio.open_connection(*process.nameserver.split(":"), ssl=trusting())
        assert isinstance(writer.get_extra_info("ssl_object"), ssl.SSLObject | ssl.SSLSocket)
        writer.close()
