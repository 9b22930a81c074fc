"""The operator's certificates, accounts and client against a real process."""

from __future__ import annotations

import asyncio
import ssl
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from tally_process import TallyProcess

from tallystick.operator.clusters.security import reports_of
from tallystick.operator.core.node_api import (
    NodeApi,
    NodeName,
    NodeRefusedError,
    Trust,
    UnreachableError,
    node_session,
)
from tallystick.operator.security import certificates
from tallystick.operator.security.authority import Authority, advanced, files, first_authority
from tallystick.operator.users.carry_out import put_user
from tallystick.operator.users.secrets import stored_superuser

pytestmark = pytest.mark.process

NODE = NodeName("shop", "orders", 0, 0)
CLUSTER = {"metadata": {"namespace": "shop", "name": "orders", "uid": "u1"}, "spec": {"replicas": 1}}
NAMES = ("localhost", "127.0.0.1")


def write(folder: Path, content: dict[str, bytes]) -> None:
    """As a kubelet does it: into a new folder, to which a link is turned."""
    version = folder.with_name(f"{folder.name}-{time.monotonic_ns()}")
    version.mkdir(parents=True)
    for name, data in content.items():
        (version / name).write_bytes(data)
    link = folder.with_name(folder.name + ".new")
    link.symlink_to(version)
    link.rename(folder)


def second(authority: Authority, now: float) -> Authority:
    """The authority after a rotation of which no process knows."""
    trusting, _ = advanced(authority, "orders", now, "again", (), {})
    issuing, _ = advanced(trusting, "orders", now, "again", (), {})
    return replace(issuing, old=b"")


async def until(look: Callable[[], object]) -> None:
    """AssertionError: it is not true within a minute, which only happens if it never is."""
    for _ in range(600):
        if await look():  # type: ignore[misc]
            return
        await asyncio.sleep(0.1)
    raise AssertionError("it did not become true")


async def test_a_process_reports_changed_certificates_and_serves_the_operator_over_tls(tmp_path: Path) -> None:
    now, folder, token = time.time(), tmp_path / "tls", "t" * 32
    authority = first_authority("orders", now, "")
    first = files(authority, None, NAMES, now)
    write(folder, first)
    (tmp_path / "token").write_text(token)
    settings = (
        "tls.server.mode=enforcing",
        f"tls.server.certPath={folder}/tls.crt",
        f"tls.server.keyPath={folder}/tls.key",
        f"tls.client.trustCertPath={folder}/ca.crt",
        "http.tlsMode=permissive",
        f"http.adminTokenFile={tmp_path}/token",
    )
    arguments = [part for each in settings for part in ("--set", each)]
    with TallyProcess(tmp_path, "--port", "0", *arguments, what="nameserver") as process:
        trust = Trust()
        async with node_session() as session:
            nodes = NodeApi(session, f"http://{process.places['http']}", lambda *_: token, trust)
            with pytest.raises(UnreachableError, match="not observed"):
                await nodes.ask(NODE, "GET", "/node")
            trust.set("shop", "orders", authority.trusted, frozenset({str(NODE)}))
            reports = reports_of(await nodes.ask(NODE, "GET", "/node"))
            facts = certificates.facts_of(first["tls.crt"])
            trusted = certificates.fingerprints(first["ca.crt"])
            assert reports is not None
            assert [(each.sha256, each.authorities) for each in reports] == [(facts.sha256, None), (None, trusted)]

            later = second(authority, now)
            renewed = files(later, first, NAMES, now)
            write(folder, renewed)
            wanted = certificates.facts_of(renewed["tls.crt"]).sha256

            async def taken() -> bool:
                found = reports_of(await nodes.ask(NODE, "GET", "/node"))
                return found is not None and found[0].sha256 == wanted and found[1].authorities == trusted_later

            trusted_later = certificates.fingerprints(later.trusted)
            assert trusted_later.isdisjoint(trusted)
            await until(taken)  # the client here trusts the first authority alone

            trust.set("shop", "orders", first_authority("other", now, "").trusted, frozenset({str(NODE)}))
            with pytest.raises(UnreachableError, match=r"(?i)certificate"):
                await nodes.ask(NODE, "GET", "/node")


async def test_users_of_a_real_broker_have_owners(tmp_path: Path) -> None:
    token = "t" * 32
    (tmp_path / "token").write_text(token)
    accounts = tmp_path / "plain_acl.yml"
    accounts.write_text('{"users": [{"username": "old", "password": "old-password"}]}')
    settings = ("aclEnable=true", f"aclFile={accounts}", f"http.adminTokenFile={tmp_path}/token")
    arguments = [part for each in settings for part in ("--set", each)]
    alice = {"username": "alice", "password": "first-password", "owner": "u2", "userType": "Normal"}
    with TallyProcess(tmp_path, *arguments) as process:
        async with node_session() as session:
            nodes = NodeApi(session, f"http://{process.places['http']}", lambda *_: token)
            await put_user(nodes, CLUSTER, 0, stored_superuser(CLUSTER, "super-password"))
            await put_user(nodes, CLUSTER, 0, alice)
            await put_user(nodes, CLUSTER, 0, {**alice, "password": "second-password"})
            for theirs in ({**alice, "owner": "u3"}, {**alice, "username": "old"}):
                with pytest.raises(NodeRefusedError) as refused:
                    await put_user(nodes, CLUSTER, 0, theirs)
                assert refused.value.status == 412
            await put_user(nodes, CLUSTER, 0, {**alice, "username": "old"}, adopt=True)
            for invalid in ({**alice, "owner": ""}, {**alice, "policies": [{"policyType": "x", "entries": []}]}):
                with pytest.raises(NodeRefusedError) as refused:
                    await put_user(nodes, CLUSTER, 0, invalid)
                assert refused.value.status == 400
            found = await nodes.ask(NODE, "GET", "/users")
            assert {each["username"]: each.get("owner") for each in found["users"]} == {
                "alice": "u2",
                "old": "u2",
                "tallystick-superuser": "u1",
            }
            assert "password" not in str(found)
            with pytest.raises(NodeRefusedError) as refused:
                await nodes.ask(NODE, "DELETE", "/users/alice?owner=u3")
            assert refused.value.status == 412
            for existed in (True, False):
                gone = await nodes.ask(NODE, "DELETE", "/users/alice?owner=u2")
                assert gone == {"username": "alice", "existed": existed}
    assert "second-password" not in accounts.read_text() and "old-password" not in accounts.read_text()


def test_old_clients_accept_certificates_of_the_next_authority() -> None:
    """A client with the first authority alone, and a server with a certificate of the second one."""
    now = time.time()
    authority = first_authority("orders", now, "")
    content = files(second(authority, now), None, ["orders-0-0.shop.svc"], now)
    assert content["tls.crt"].count(b"BEGIN CERTIFICATE") == 2
    for trusted, accepted in ((authority.trusted, True), (second(authority, now).trusted, False)):
        assert _accepts(trusted, content) is accepted


def _accepts(trusted: bytes, content: dict[str, bytes]) -> bool:
    server, client = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER), ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    import tempfile

    with tempfile.TemporaryDirectory() as folder:
        for name, data in content.items():
            (Path(folder) / name).write_bytes(data)
        server.load_cert_chain(f"{folder}/tls.crt", f"{folder}/tls.key")
    client.load_verify_locations(cadata=trusted.decode())
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    one = client.wrap_bio(to_client, to_server, server_hostname="orders-0-0.shop.svc")
    other = server.wrap_bio(to_server, to_client, server_side=True)
    done = set()
    try:
        for _ in range(10):
            for side in (one, other):
                try:
                    side.do_handshake()
                    done.add(side)
                except ssl.SSLWantReadError:
                    continue
    except ssl.SSLCertVerificationError:
        return False
    return len(done) == 2
