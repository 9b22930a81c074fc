"""Encryption of the accounts' secrets where they are stored: the account file, the log of a group, snapshots.

A signature needs the secret itself, so a hash of it is not enough. With a key file (`aclKeyFile`) a stored secret is

    sealed:BASE64       of 12 random bytes (the nonce) and the AES-256-GCM of the secret, with its tag

The access key is authenticated with it: the secret of one account cannot take the place of another one's. The key file
has 64 hexadecimal digits, as one for backups (`tally backup new-key` makes one). All members of a group need the same.
A secret that is not sealed is used as it is, so an existing file can be used, and is sealed when it is changed next.
"""

from __future__ import annotations

import base64
import binascii
import secrets
from dataclasses import replace
from pathlib import Path
from typing import Any, Protocol, Self, TypeVar

from tallystick.node.access.fields import AclError
from tallystick.node.access.plain_acl import PlainAcl

_PREFIX = "sealed:"
_NONCE_BYTES = 12
_KEY_DIGITS = 64
_PURPOSE = b"tallystick account secret: "


class Holder(Protocol):
    """Who has a secret: an account or a user."""

    @property
    def name(self) -> str:
        """Its secret is bound to it."""

    @property
    def secret(self) -> str:
        """As it is used, or sealed."""

    def with_secret(self, secret: str) -> Self:
        """The same holder with another secret."""


_Holder = TypeVar("_Holder", bound=Holder)


class SealError(ValueError):
    """The key file cannot be used."""


class Sealer:
    """No key: secrets are stored as they are."""

    def seal(self, account: _Holder) -> _Holder:
        """The account as it is stored."""
        return account

    def open(self, account: _Holder) -> _Holder:
        """The account as it is used. AclError: its secret cannot be decrypted."""
        if account.secret.startswith(_PREFIX):
            raise AclError(f"account {account.name!r}: its secret is sealed, and aclKeyFile is not set")
        return account

    def sealed(self, acl: PlainAcl) -> PlainAcl:
        """All accounts as they are stored."""
        return replace(acl, accounts={key: self.seal(account) for key, account in acl.accounts.items()})

    def opened(self, acl: PlainAcl) -> PlainAcl:
        """All accounts as they are used. AclError."""
        return replace(acl, accounts={key: self.open(account) for key, account in acl.accounts.items()})


class KeySealer(Sealer):
    """`key`: 32 bytes."""

    def __init__(self, key: bytes) -> None:
        """SealError: the library is missing."""
        self._cipher = _cipher(key)

    def seal(self, account: _Holder) -> _Holder:
        """See `Sealer`."""
        if account.secret.startswith(_PREFIX):
            return account
        nonce = secrets.token_bytes(_NONCE_BYTES)
        encrypted = nonce + self._cipher.encrypt(nonce, account.secret.encode(), _about(account))
        return account.with_secret(_PREFIX + base64.b64encode(encrypted).decode())

    def open(self, account: _Holder) -> _Holder:
        """See `Sealer`."""
        text = account.secret
        if not text.startswith(_PREFIX):
            return account
        try:
            data = base64.b64decode(text[len(_PREFIX) :], validate=True)
            secret = self._cipher.decrypt(data[:_NONCE_BYTES], data[_NONCE_BYTES:], _about(account)).decode()
        except (binascii.Error, ValueError):
            secret = ""
        except Exception:  # InvalidTag, which only exists with the library
            secret = ""
        if not secret:
            raise AclError(f"account {account.name!r}: its secret was not sealed with the key of aclKeyFile")
        return account.with_secret(secret)


def load_sealer(path: Path | None) -> Sealer:
    """Reads a key file; None: no encryption. SealError, OSError."""
    if path is None:
        return Sealer()
    text = path.read_bytes()[:4096].strip()
    try:
        key = bytes.fromhex(text.decode("ascii"))
    except ValueError:
        key = b""
    if len(key) * 2 != _KEY_DIGITS:
        raise SealError(f"{path}: a key file has {_KEY_DIGITS} hexadecimal digits (tally backup new-key makes one)")
    return KeySealer(key)


def _about(account: Holder) -> bytes:
    return _PURPOSE + account.name.encode()


def _cipher(key: bytes) -> Any:
    try:
        from cryptography.hazmat.primitives.ciphers.aead import AESGCM
    except ImportError:
        raise SealError("aclKeyFile needs the library cryptography: pip install 'tallystick[backup]'") from None
    return AESGCM(key)
