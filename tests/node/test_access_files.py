"""The account file while it changes, and sealed secrets."""

import errno
import os
import stat
from dataclasses import replace
from pathlib import Path

import pytest

from tallystick.node.access.account_file import AccountFile
from tallystick.node.access.acl_users import AclUser
from tallystick.node.access.fields import AclError
from tallystick.node.access.plain_acl import Account
from tallystick.node.access.sealing import KeySealer, Sealer, SealError, load_sealer
from tallystick.store._kernel import Door

ONE = b"accounts:\n- accessKey: account1\n  secretKey: secret01\n"
TWO = ONE + b"- accessKey: account2\n  secretKey: secret02\n"


@pytest.fixture
def path(tmp_path: Path) -> Path:
    found = tmp_path / "plain_acl.yml"
    found.write_bytes(ONE)
    return found


def opened(path: Path, sealer: Sealer | None = None) -> AccountFile:
    return AccountFile(path, sealer or Sealer(), Door())


def write(path: Path, content: bytes) -> None:
    """Changes the file in place, with a time that differs also if the clock is coarse."""
    before = path.stat().st_mtime_ns
    path.write_bytes(content)
    os.utime(path, ns=(before + 10**9, before + 10**9))


def test_a_changed_file_is_used_when_it_is_the_same_twice(path: Path) -> None:
    file = opened(path)
    assert not file.look()
    write(path, TWO)
    assert not file.look(), "it may still be in writing"
    assert file.look()
    assert list(file.acl.accounts) == ["account1", "account2"]
    assert not file.look()


def test_a_file_that_is_being_written_is_not_used(path: Path) -> None:
    file = opened(path)
    for end in range(20, len(TWO), 13):
        write(path, TWO[:end])
        assert not file.look()
    assert list(file.acl.accounts) == ["account1"]
    assert file.problem == ""


@pytest.mark.parametrize("content", [b"", b"accounts: [", TWO[:-22], b"\x00" * 50])
def test_a_file_that_cannot_be_used_changes_nothing(
    path: Path, content: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    file = opened(path)
    write(path, content)
    assert [file.look() for _ in range(4)] == [False] * 4
    assert list(file.acl.accounts) == ["account1"]
    assert file.problem
    errors = [record for record in caplog.records if record.levelname == "ERROR"]
    assert len(errors) == 1 and "secret" not in errors[0].getMessage().replace("secretKey", "")
    write(path, TWO)
    file.look()
    assert file.look() and file.problem == ""


def test_a_file_that_is_removed_changes_nothing(path: Path) -> None:
    file = opened(path)
    path.unlink()
    assert not file.look() and file.problem == "No such file or directory"
    path.write_bytes(TWO)
    file.look()
    assert file.look() and file.problem == ""
    assert len(file.acl.accounts) == 2


def test_a_replaced_symbolic_link_is_a_change(path: Path) -> None:
    link = path.with_name("link.yml")
    link.symlink_to(path)
    file = opened(link)
    other = path.with_name("other.yml")
    other.write_bytes(TWO)
    link.unlink()
    link.symlink_to(other)
    file.look()
    assert file.look() and len(file.acl.accounts) == 2


@pytest.mark.parametrize("content", [b"", b"accounts: ["])
def test_a_start_needs_a_valid_file(path: Path, content: bytes) -> None:
    path.write_bytes(content)
    with pytest.raises(AclError):
        opened(path)
    path.unlink()
    with pytest.raises(OSError, match="No such file"):
        opened(path)


def test_a_saved_file_keeps_its_permissions_and_is_no_change(path: Path) -> None:
    path.chmod(0o640)
    file = opened(path)
    changed = Account.read({"accessKey": "account1", "secretKey": "secret01", "admin": "true"})
    file.save(replace(file.acl, accounts={"account1": changed}))
    assert stat.S_IMODE(path.stat().st_mode) == 0o640
    assert not file.look() and not file.look()
    assert opened(path).acl.accounts == {"account1": changed}


def test_a_file_that_was_removed_is_written_for_its_owner_alone(path: Path) -> None:
    file = opened(path)
    path.unlink()
    file.save(file.acl)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


@pytest.mark.parametrize("op", ["create", "write", "sync", "rename", "sync_dir"])
def test_a_disk_that_fails_leaves_the_old_or_the_new_file(path: Path, op: str) -> None:
    door = Door()
    file = AccountFile(path, Sealer(), door)
    before = file.acl
    user = AclUser.read({"username": "alice01", "password": "secret02", "quota": {"topics": 3}})
    door.fail(op, path.name if op != "sync_dir" else path.parent.name, errno.ENOSPC, times=1)
    try:
        file.save(before.with_account(user))
    except OSError as error:
        assert error.errno == errno.ENOSPC and file.acl == before
    found = opened(path).acl
    assert found in (before, before.with_account(user)), "never a part of it"
    file.save(before.with_account(user))
    assert opened(path).acl == before.with_account(user)


def test_a_damaged_section_of_users_changes_nothing(path: Path) -> None:
    user = "- {username: alice01, password: secret02, quota: {topics: 3}}"
    write(path, ONE + f"users:\n{user}\n".encode())
    file = opened(path)
    good = file.acl
    for damaged in (user[:-4], user.replace("3", "-3"), user.replace("alice01", "account1"), "- 7", "7"):
        write(path, ONE + f"users:\n{damaged}\n".encode())
        assert not file.look() and not file.look()
        assert file.problem and file.acl == good, damaged
        assert "secret02" not in file.problem


def test_secrets_are_sealed_with_a_key(path: Path, tmp_path: Path) -> None:
    key = tmp_path / "key"
    key.write_text("ab" * 32 + "\n")
    sealer = load_sealer(key)
    file = opened(path, sealer)
    file.save(file.acl)
    assert b"secret01" not in path.read_bytes()
    assert opened(path, sealer).acl.accounts["account1"].secret == "secret01"
    with pytest.raises(AclError, match="aclKeyFile is not set"):
        opened(path)
    with pytest.raises(AclError, match="was not sealed with the key"):
        opened(path, KeySealer(b"x" * 32))


def test_the_secret_of_one_account_is_not_that_of_another() -> None:
    sealer = KeySealer(b"x" * 32)
    first = sealer.seal(account("account1"))
    assert sealer.open(first).secret == "secret01"
    with pytest.raises(AclError):
        sealer.open(replace(first, access_key="account2"))
    assert sealer.seal(first) is first


def account(key: str) -> Account:
    return Account.read({"accessKey": key, "secretKey": "secret01"})


def test_a_key_file_that_is_no_key_is_refused(tmp_path: Path) -> None:
    key = tmp_path / "key"
    key.write_text("short")
    with pytest.raises(SealError, match="64 hexadecimal digits"):
        load_sealer(key)
