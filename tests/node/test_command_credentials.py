"""The commands with `--credentials`, against a process with access control and TLS."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from tally_process import TallyProcess
from tls_lab import Authority

from tallystick.node.cli import main

pytestmark = pytest.mark.process

_ACCOUNTS = """accounts:
- {accessKey: administrator, secretKey: administrator-secret, admin: true}
- {accessKey: reader-account, secretKey: reader-secret, topicPerms: [Signed=SUB], groupPerms: [tally=SUB]}
"""


def credentials(folder: Path, name: str, secret: str) -> str:
    path = folder / f"{name}.yml"
    path.write_text(f"accessKey: {name}\nsecretKey: {secret}\n")
    return str(path)


@pytest.fixture(scope="module")
def where(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Path, tuple[str, ...]]]:
    """The folder of the credentials, and the options that reach the process."""
    folder = tmp_path_factory.mktemp("process")
    authority = Authority(folder)
    certificate, key = authority.issue("server", "127.0.0.1")
    (folder / "plain_acl.yml").write_text(_ACCOUNTS)
    settings = [
        "aclEnable=true",
        f"aclFile={folder / 'plain_acl.yml'}",
        f"aclCredentialsFile={credentials(folder, 'administrator', 'administrator-secret')}",
        "tls.server.mode=enforcing",
        f"tls.server.certPath={certificate}",
        f"tls.server.keyPath={key}",
        f"tls.client.trustCertPath={authority.path}",
    ]
    credentials(folder, "reader-account", "reader-secret")
    credentials(folder, "wrong", "administrator-secret")
    with TallyProcess(folder, *(part for setting in settings for part in ("--set", setting))) as process:
        yield folder, ("--nameserver", process.nameserver, "--ca", str(authority.path))


def test_commands_sign_with_the_account_of_the_file(
    where: tuple[Path, tuple[str, ...]], capsys: pytest.CaptureFixture[str]
) -> None:
    folder, options = where
    administrator = (*options, "--credentials", str(folder / "administrator.yml"))
    reader = (*options, "--credentials", str(folder / "reader-account.yml"))
    assert main(["topic", "create", "Signed", "--queues", "2", *administrator]) == 0
    assert main(["produce", "Signed", "one", "two", *administrator]) == 0
    capsys.readouterr()
    assert main(["consume", "Signed", "--once", "--commit", *reader]) == 0
    assert set(capsys.readouterr().out.split()) == {"one", "two"}
    assert main(["topic", "status", "Signed", *reader]) == 0
    assert main(["topic", "list", *reader]) == 1, "it gets the names, and not the tables of the brokers"
    shown = capsys.readouterr()
    assert "Signed" in shown.out and "AclException" in shown.err
    assert main(["topic", "update", "Signed", "--queues", "3", *administrator]) == 0
    assert main(["produce", "Signed", "three", *reader]) == 1, "it may not publish"
    assert main(["topic", "delete", "Signed", *reader]) == 1
    assert "reader-secret" not in "".join(capsys.readouterr())
    assert main(["topic", "delete", "Signed", *administrator]) == 0


@pytest.mark.parametrize("name", ["", "wrong.yml"])
def test_without_right_credentials_nothing_is_allowed(
    where: tuple[Path, tuple[str, ...]], name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    folder, options = where
    given = ("--credentials", str(folder / name)) if name else ()
    for command in (["topic", "list"], ["produce", "T", "x"], ["consume", "T", "--once"]):
        assert main([*command, *options, *given]) == 1, command
        assert "AclException" in capsys.readouterr().err


def test_a_migration_signs_its_questions(
    where: tuple[Path, tuple[str, ...]], capsys: pytest.CaptureFixture[str]
) -> None:
    folder, (_, nameserver, *tls) = where
    plan = ["migrate", "plan", "--from", nameserver, *tls]
    assert main(plan) == 1
    assert "AclException" in capsys.readouterr().err
    assert main([*plan, "--credentials", str(folder / "administrator.yml"), "--json"]) in (0, 1)
    printed = capsys.readouterr()
    assert "AclException" not in printed.out + printed.err and nameserver not in printed.err
    assert "aclEnable" in printed.out


def test_the_file_can_come_from_the_environment_and_has_to_be_right(
    where: tuple[Path, tuple[str, ...]], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    folder, options = where
    monkeypatch.setenv("TALLY_CREDENTIALS", str(folder / "administrator.yml"))
    assert main(["topic", "list", *options]) == 0
    capsys.readouterr()
    for content, reason in (("accessKey: a\n", "accessKey and secretKey"), ("{", "not YAML"), (None, os.strerror(2))):
        path = folder / "broken.yml"
        path.unlink(missing_ok=True)
        if content is not None:
            path.write_text(content)
        assert main(["topic", "list", *options, "--credentials", str(path)]) == 2
        assert reason in capsys.readouterr().err
