"""Checksums of objects, and their encryption if there is a key.

Without a key the digest of an object is the SHA-256 of its content, and the object is the content.

With a key the digest is an HMAC-SHA-256 of the content, so that a name tells nothing about the content, and the object
is encrypted with AES-256-GCM (library `cryptography`):

offset  size  field
     0     8  "TALLYBK1"
     8    12  nonce, random
    20     n  the encrypted content, then the tag of 16 bytes

The name of the object, as UTF-8, is authenticated with it: an object cannot take the place of another one. Random
nonces of 96 bits are safe for 2^32 objects of a key, which is 64 PiB of log. The keys for encryption, for digests and
for manifests are derived from the key of the file with HKDF-SHA-256.

A key file has 64 hexadecimal digits. Keys are in no message, object or log line; `key_id` is a hash that recognizes
one.
"""

from __future__ import annotations

import hashlib
import hmac
import os
import secrets
from pathlib import Path
from typing import Any

from tallystick.node.backup.errors import BackupError, DamagedBackupError, KeyFileError

SCHEME = "AES-256-GCM"
_MAGIC = b"TALLYBK1"
_NONCE_BYTES = 12
_TAG_BYTES = 16
_KEY_DIGITS = 64
SEAL_BYTES = len(_MAGIC) + _NONCE_BYTES + _TAG_BYTES


class Seal:
    """No key: objects are their content."""

    key_id: str | None = None

    def digest(self, content: bytes | memoryview) -> str:
        """Returns what identifies the content, as hexadecimal digits."""
        return hashlib.sha256(content).hexdigest()

    def sealed(self, name: str, content: bytes) -> bytes:
        """Returns the object for a content."""
        return content

    def opened(self, name: str, data: bytes) -> bytes:
        """Returns the content of an object. DamagedBackupError: it is not what was stored."""
        return data

    def mac(self, manifest: bytes) -> str | None:
        """Returns a proof that a holder of the key wrote the manifest."""
        return None


class KeySeal(Seal):
    """`key`: 32 bytes."""

    def __init__(self, key: bytes) -> None:
        aead, hashes, hkdf = _library()
        self.key_id = hashlib.sha256(b"tallystick backup key\0" + key).hexdigest()[:16]

        def derived(purpose: bytes) -> bytes:
            found: bytes = hkdf.HKDFExpand(hashes.SHA256(), 32, b"tallystick backup: " + purpose).derive(key)
            return found

        self._cipher = aead.AESGCM(derived(b"objects"))
        self._digest_key = derived(b"digests")
        self._manifest_key = derived(b"manifests")

    def digest(self, content: bytes | memoryview) -> str:
        """See `Seal`."""
        return hmac.new(self._digest_key, content, hashlib.sha256).hexdigest()

    def sealed(self, name: str, content: bytes) -> bytes:
        """See `Seal`."""
        nonce = secrets.token_bytes(_NONCE_BYTES)
        encrypted: bytes = self._cipher.encrypt(nonce, content, name.encode())
        return _MAGIC + nonce + encrypted

    def opened(self, name: str, data: bytes) -> bytes:
        """See `Seal`."""
        if not data.startswith(_MAGIC) or len(data) < SEAL_BYTES:
            raise DamagedBackupError(f"{name} is not an encrypted object")
        head = len(_MAGIC) + _NONCE_BYTES
        try:
            content: bytes = self._cipher.decrypt(data[len(_MAGIC) : head], data[head:], name.encode())
        except Exception as error:  # InvalidTag, which only exists with the library
            raise DamagedBackupError(f"{name} was changed, or is the object of another name") from error
        return content

    def mac(self, manifest: bytes) -> str | None:
        """See `Seal`."""
        return hmac.new(self._manifest_key, manifest, hashlib.sha256).hexdigest()


def load_seal(path: Path | None) -> Seal:
    """Reads a key file; None: no encryption. KeyFileError, BackupError (the library is missing), OSError."""
    if path is None:
        return Seal()
    return seal_of(path.read_bytes()[:4096].decode("ascii", "replace"), str(path))


def seal_of(text: str, file: str) -> Seal:
    """Returns the seal with the key that is the text of a key file. KeyFileError; BackupError: the library is
    missing."""
    try:
        key = bytes.fromhex(text.strip())
    except ValueError:
        key = b""
    if len(key) * 2 != _KEY_DIGITS:
        raise KeyFileError(f"{file}: a key file has {_KEY_DIGITS} hexadecimal digits (tally backup new-key makes one)")
    return KeySeal(key)


def new_key(path: Path) -> None:
    """Creates a key file that only its owner can read. FileExistsError: it exists; OSError."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "wb") as file:
        file.write(secrets.token_bytes(_KEY_DIGITS // 2).hex().encode() + b"\n")
        file.flush()
        os.fsync(file.fileno())


def _library() -> tuple[Any, Any, Any]:
    try:
        from cryptography.hazmat.primitives import hashes
        from cryptography.hazmat.primitives.ciphers import aead
        from cryptography.hazmat.primitives.kdf import hkdf
    except ImportError:
        raise BackupError("encryption needs the library cryptography: pip install 'tallystick[backup]'") from None
    return aead, hashes, hkdf
