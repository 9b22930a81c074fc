"""TLS between members: who is believed, and files that change under a running member."""

import asyncio
import itertools
import logging
import os
import shutil
import ssl
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import trustme
import uvloop
from transport_lab import QUICK, Member, append, group, heartbeat, until

from tallystick.replication.transport import Identity, Lane, TlsSettings, Transport
from tallystick.replication.transport.certificates import TlsError, certificate_names
from tallystick.replication.transport.tls import TlsFiles
from tallystick.store.limited_log import LimitedLog

# Newer versions of the plugin have a hook for this, older ones do not.
pytestmark = pytest.mark.filterwarnings("ignore:Overriding the .event_loop_policy.:pytest.PytestDeprecationWarning")


@pytest.fixture(params=["asyncio", "uvloop"])
def event_loop_policy(request: pytest.FixtureRequest) -> asyncio.AbstractEventLoopPolicy:
    return uvloop.EventLoopPolicy() if request.param == "uvloop" else asyncio.DefaultEventLoopPolicy()


@dataclass
class Authority:
    """Makes certificates into folders."""

    folder: Path
    ca: trustme.CA

    def files(self, name: str, certificate_for: str, ca: trustme.CA | None = None) -> TlsSettings:
        """A member's folder, as Kubernetes makes it: the files are links through `..data` into a version's folder."""
        home = self.folder / name
        home.mkdir()
        settings = TlsSettings(home / "ca.crt", home / "tls.crt", home / "tls.key", check_interval_ms=5)
        for path in (settings.ca, settings.certificate, settings.key):
            path.symlink_to(Path("..data", path.name))
        self.swap(settings, certificate_for, ca)
        return settings

    def swap(self, settings: TlsSettings, certificate_for: str, ca: trustme.CA | None = None) -> None:
        """The next version, by one rename."""
        home = settings.ca.parent
        number = len(list(home.glob("version-*")))
        version = home / f"version-{number}"
        version.mkdir()
        self.ca.cert_pem.write_to_path(version / "ca.crt")
        made = (ca or self.ca).issue_cert(certificate_for)
        made.private_key_pem.write_to_path(version / "tls.key")
        for blob in made.cert_chain_pems:
            blob.write_to_path(version / "tls.crt", append=True)
        link = home / "..data_new"
        link.symlink_to(version.name)
        link.replace(home / "..data")


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path, trustme.CA())


async def close(*members: Member) -> None:
    for member in members:
        await member.transport.close()


def served(member: Member) -> list[str]:
    """Names in the certificate that this member's peers were shown when they connected."""
    names: list[str] = []
    for lane in member.transport._lanes.values():
        assert lane._link is not None and lane._link.transport is not None
        names += certificate_names(lane._link.transport.get_extra_info("peercert") or {})
    return names


async def test_members_with_certificates_hear_each_other(authority: Authority) -> None:
    members = [
        Member(n, tls=replace(authority.files(f"n{n}", f"n{n}.g.c"), peer_name="n{member}.{group}.{cluster}"))
        for n in range(3)
    ]
    await group(*members)
    a, b, c = members
    body = os.urandom(3 << 20)
    assert a.transport.send(append(0, 1), body) and a.transport.send(heartbeat(0, 2))
    await until(lambda: b.inbox and c.inbox)
    assert b.inbox[0][1] == body
    link = a.transport._lanes[1, Lane.BULK]._link
    assert link is not None and link.transport is not None
    assert link.transport.get_extra_info("ssl_object").version() == "TLSv1.3"
    assert sorted(served(a)) == ["n1.g.c", "n1.g.c", "n2.g.c", "n2.g.c"]
    await close(*members)


async def test_a_full_lane_is_bounded_with_tls_too(authority: Authority) -> None:
    a = Member(0, replace(QUICK, bulk_queue_bytes=1 << 20), tls=authority.files("n0", "n0.g.c"))
    b = Member(1, tls=authority.files("n1", "n1.g.c"))
    await group(a, b)
    body = bytes(100_000)
    sent = 0
    while sent < 300:
        if a.transport.send(append(0, 1, sent, sent), body):
            sent += 1
        else:
            await a.room(1)
        assert a.transport.status()[0].lanes[Lane.BULK].queued_bytes <= (1 << 20) + 2 * 100_092
    assert a.sent(1, Lane.BULK).dropped_full > 0
    await until(lambda: len(b.inbox) == 300)
    assert [message.last_index for message, _ in b.inbox] == list(range(300))  # type: ignore[union-attr]
    await close(a, b)


async def test_a_certificate_of_another_authority_is_refused(authority: Authority) -> None:
    a = Member(0, tls=authority.files("n0", "n0.g.c", ca=trustme.CA()))
    b = Member(1, tls=authority.files("n1", "n1.g.c"))
    for member in (a, b):
        member.start()
    a.transport.set_peers({1: ("127.0.0.1", b.port)})
    b.transport.set_peers({0: ("127.0.0.1", a.port)})
    await until(lambda: b.transport.refused_connections >= 2 and b.sent(0, Lane.CONTROL).failures >= 2)
    assert "certificate" in b.sent(0, Lane.CONTROL).last_error.lower(), "b does not believe a"
    assert not a.connected(1, Lane.CONTROL) and not b.connected(0, Lane.CONTROL)
    assert not b.inbox
    await close(a, b)


async def test_plain_and_tls_do_not_mix_and_say_so(authority: Authority, caplog: pytest.LogCaptureFixture) -> None:
    a, b = Member(0), Member(1, tls=authority.files("n1", "n1.g.c"))
    a.start()
    b.start()
    a.transport.set_peers({1: ("127.0.0.1", b.port)})
    b.transport.set_peers({0: ("127.0.0.1", a.port)})
    await until(lambda: a.sent(1, Lane.CONTROL).failures >= 3 and b.sent(0, Lane.CONTROL).failures >= 3)
    assert "TLS is not enabled here" in caplog.text, "a's line about b"
    assert "127.0.0.1" in caplog.text and "handshake with " in caplog.text
    await close(a, b)


async def test_a_running_group_begins_to_use_tls_step_by_step(authority: Authority) -> None:
    """In each mixture of two neighbouring steps, both directions work; those that use TLS are verified."""
    files = [authority.files(f"n{n}", f"n{n}.g.c") for n in range(2)]
    steps: list[dict[str, Any] | None] = [
        None,
        {"accepts_plain": True, "calls_plain": True},
        {"accepts_plain": True},
        {},
    ]

    def member(number: int, step: dict[str, Any] | None) -> Member:
        if step is None:
            return Member(number)
        return Member(number, tls=replace(files[number], peer_name="n{member}.{group}.{cluster}", **step))

    for before, after in itertools.pairwise(steps):
        for first, second in ((before, after), (after, before), (after, after)):
            a, b = member(0, first), member(1, second)
            await group(a, b)
            assert a.transport.send(heartbeat(0, 1)) and b.transport.send(heartbeat(1, 0))
            await until(lambda a=a, b=b: a.inbox and b.inbox)  # type: ignore[misc]
            calls_with_tls = first is not None and not first.get("calls_plain")
            assert bool(served(a)) is calls_with_tls
            await close(a, b)


async def test_a_member_that_accepts_both_verifies_those_with_tls(authority: Authority) -> None:
    a = Member(0, tls=authority.files("n0", "n0.g.c", ca=trustme.CA()))
    settings = authority.files("n1", "n1.g.c")
    b = Member(1, tls=replace(settings, accepts_plain=True, calls_plain=True))
    a.start()
    b.start()
    a.transport.set_peers({1: ("127.0.0.1", b.port)})
    await until(lambda: a.sent(1, Lane.CONTROL).failures >= 2 and b.transport.refused_connections >= 2)
    assert not b.inbox
    await close(a, b)


async def test_a_silent_connection_to_a_member_that_accepts_both_ends(authority: Authority) -> None:
    b = Member(1, tls=replace(authority.files("n1", "n1.g.c"), accepts_plain=True))
    b.start()
    reader, writer = await asyncio.open_connection("127.0.0.1", b.port)
    async with asyncio.timeout(10):
        assert await reader.read(1) == b""
    writer.close()
    await until(lambda: b.transport.refused_connections == 1)
    await close(b)


async def test_the_callers_certificate_must_be_its_own(authority: Authority) -> None:
    name = "n{member}.{group}.{cluster}"
    a = Member(0, tls=replace(authority.files("n0", "n2.g.c")))
    b = Member(1, tls=replace(authority.files("n1", "n1.g.c"), peer_name=name))
    a.start()
    b.start()
    a.transport.set_peers({1: ("127.0.0.1", b.port)})
    await until(lambda: a.sent(1, Lane.BULK).failures >= 1)
    assert a.sent(1, Lane.BULK).last_error == (
        "refused this member: n0 is not verified: its certificate is for 'n2.g.c', not for 'n0.g.c'"
    )
    await close(a, b)


async def test_the_called_ones_certificate_must_be_its_own(authority: Authority) -> None:
    a = Member(0, tls=replace(authority.files("n0", "n0.g.c"), peer_name="n{member}.{group}.{cluster}"))
    b = Member(1, tls=authority.files("n1", "n7.g.c"))
    a.start()
    b.start()
    a.transport.set_peers({1: ("127.0.0.1", b.port)})
    await until(lambda: a.sent(1, Lane.BULK).failures >= 1)
    assert a.sent(1, Lane.BULK).last_error == "its certificate is for 'n7.g.c', not for 'n1.g.c'"
    assert b.transport.status() == [], "it was told nothing"
    await close(a, b)


# -- files that change -------------------------------------------------------------------------------------------------


async def test_new_files_are_used_by_handshakes_that_begin_then(authority: Authority) -> None:
    files = authority.files("n1", "old.n1")
    a, b = Member(0, tls=authority.files("n0", "n0")), Member(1, tls=files)
    await group(a, b)
    assert served(a) == ["old.n1"] * 2
    authority.swap(files, "new.n1")
    assert a.transport.send(heartbeat(0, 1)), "who is connected stays so"
    await until(lambda: b.inbox)
    for lane in Lane:
        link = a.transport._lanes[1, lane]._link
        assert link is not None
        link.fail("opened again")
    await until(lambda: a.sent(1, Lane.CONTROL).connects == 2 and a.sent(1, Lane.BULK).connects == 2)
    assert served(a) == ["new.n1"] * 2
    assert b.transport.tls_error == ""
    await close(a, b)


async def test_an_authority_can_be_taken_away(authority: Authority) -> None:
    """A context only ever learns authorities: it has to be a new one that knows the new ones alone."""
    other = trustme.CA()
    b_files = authority.files("n1", "n1")
    a, b = Member(0, tls=authority.files("n0", "n0")), Member(1, tls=b_files)
    await group(a, b)
    authority.ca, before = other, authority.ca
    authority.swap(b_files, "n1", ca=before)
    link = a.transport._lanes[1, Lane.CONTROL]._link
    assert link is not None
    link.fail("opened again")
    refused = b.transport.refused_connections
    await until(lambda: b.transport.refused_connections >= refused + 2)
    assert not b.inbox
    await close(a, b)


@pytest.mark.parametrize("broken", ["empty", "absent", "key of another", "rubbish", "encrypted key"])
async def test_broken_files_are_reported_and_the_old_ones_stay_in_use(
    authority: Authority, broken: str, caplog: pytest.LogCaptureFixture
) -> None:
    files = authority.files("n1", "old.n1")
    a, b = Member(0, tls=authority.files("n0", "n0")), Member(1, tls=files)
    await group(a, b)
    secret = files.key.read_text()
    good = files.key.resolve().parent
    bad = files.ca.parent / "bad"
    shutil.copytree(good, bad)
    match broken:
        case "empty":
            (bad / "tls.crt").write_bytes(b"")
        case "absent":
            (bad / "tls.key").unlink()
        case "key of another":
            authority.ca.issue_cert("x").private_key_pem.write_to_path(bad / "tls.key")
        case "rubbish":
            (bad / "ca.crt").write_text("-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n")
        case "encrypted key":
            (bad / "tls.key").write_bytes(_encrypted(secret.encode()))
    link = files.ca.parent / "..data_new"
    link.symlink_to("bad")
    link.replace(files.ca.parent / "..data")
    await until(lambda: b.transport.tls_error)
    assert str(files.ca.parent) in b.transport.tls_error
    assert "the old ones stay in use" in caplog.text
    lane = a.transport._lanes[1, Lane.BULK]._link
    assert lane is not None
    lane.fail("opened again")
    await until(lambda: a.sent(1, Lane.BULK).connects == 2)
    assert served(a)[-1] == "old.n1"
    assert sum("TLS files" in record.getMessage() for record in caplog.records) == 1
    for line in secret.splitlines()[1:-1]:
        assert line not in caplog.text and line not in b.transport.tls_error
    authority.swap(files, "repaired.n1")
    await until(lambda: b.transport.tls_error == "")
    await close(a, b)


def _encrypted(key: bytes) -> bytes:
    from cryptography.hazmat.primitives import serialization

    loaded = serialization.load_pem_private_key(key, None)
    return loaded.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.TraditionalOpenSSL,
        serialization.BestAvailableEncryption(b"secret"),
    )


def test_files_that_never_worked_are_an_error(authority: Authority) -> None:
    files = authority.files("n0", "n0")
    files.key.resolve().unlink()
    with pytest.raises(TlsError, match=r"tls.crt with .*tls.key: No such file"):
        Transport(Identity("c", "g", 0), QUICK, lambda message, payload: None, tls=files)


def test_a_pair_that_is_swapped_one_file_after_the_other_is_taken_when_it_fits(authority: Authority) -> None:
    files = authority.files("n0", "old")
    for path in (files.ca, files.certificate, files.key):
        content = path.read_bytes()
        path.unlink()
        path.write_bytes(content)
    loaded = TlsFiles(files, LimitedLog(logging.getLogger("x"), lambda: 0.0))
    before = loaded.server()
    assert loaded.server() is before, "nothing changed, nothing is read"
    made = authority.ca.issue_cert("new")
    files.certificate.write_bytes(b"".join(blob.bytes() for blob in made.cert_chain_pems))
    assert loaded.server() is before and "tls.crt" in loaded.last_error
    files.key.write_bytes(made.private_key_pem.bytes())
    assert loaded.server() is not before and loaded.last_error == ""
    assert isinstance(loaded.client(), ssl.SSLContext) and loaded.loads == 2


# -- names -------------------------------------------------------------------------------------------------------------

CN = ((("organizationName", "x"),), (("commonName", "n1.g.c"),))


@pytest.mark.parametrize(
    ("certificate", "names"),
    [
        (
            {"subject": CN, "subjectAltName": (("DNS", "a"), ("URI", "spiffe://b"), ("IP Address", "::1"))},
            ["a", "spiffe://b"],
        ),
        ({"subject": CN, "subjectAltName": (("IP Address", "::1"),)}, ["n1.g.c"]),
        ({"subject": CN}, ["n1.g.c"]),
        ({}, []),
    ],
)
def test_the_common_name_counts_only_where_there_is_no_other(certificate: dict[str, object], names: list[str]) -> None:
    assert certificate_names(certificate) == names


def test_names_are_compared_as_a_whole(authority: Authority) -> None:
    files = TlsFiles(
        replace(authority.files("n0", "n0"), peer_name="n{member}.{group}.{cluster}"),
        LimitedLog(logging.getLogger("x"), lambda: 0.0),
    )
    peer = Identity("c", "g", 1)
    assert files.stranger({"subjectAltName": (("DNS", "x"), ("DNS", "N1.G.C"))}, peer) is None
    for wrong in ("n11.g.c", "n1.g.c.evil", "*.g.c", ""):
        assert files.stranger({"subjectAltName": (("DNS", wrong),)}, peer) is not None
    assert files.stranger(None, peer) == "its certificate is for no name, not for 'n1.g.c'"


async def test_handshakes_that_do_not_end_keep_no_member_out(authority: Authority) -> None:
    """Strangers connect and say nothing, or begin a handshake and stop: the oldest of them make room."""
    few = replace(QUICK, connections_max=8, handshake_timeout_ms=600_000)
    a = Member(0, QUICK, tls=authority.files("n0", "n0"))
    b = Member(1, few, tls=authority.files("n1", "n1"))
    b.start()
    outgoing = ssl.MemoryBIO()
    with pytest.raises(ssl.SSLWantReadError):
        ssl.create_default_context().wrap_bio(ssl.MemoryBIO(), outgoing, server_hostname="n1").do_handshake()
    hello, strangers = outgoing.read(), []
    for number in range(30):
        _, writer = await asyncio.open_connection("127.0.0.1", b.port)
        writer.write(hello if number % 2 else b"")
        strangers.append(writer)
    a.start()
    a.transport.set_peers({1: ("127.0.0.1", b.port)})
    await until(lambda: a.connected(1))
    assert len(b.transport._listener._links) <= 8
    await until(lambda: len(b.transport._listener._greeting) <= 4)
    for writer in strangers:
        writer.close()
    await close(a, b)
