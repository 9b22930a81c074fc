"""Signatures of requests, as RocketMQ's clients make them.

A client adds the fields `AccessKey` and `Signature` to the extension fields of a request, and `SecurityToken` if it has
one. The signature is the base64 text of the HMAC-SHA1, with the account's secret as key, of the values of all other
fields in the order of their names, followed by the body. Names, code, flags and the opaque number are not signed, and
nothing separates the values. A query by a unique key has the field `_UNIQUE_KEY_QUERY`, which clients of 4.8 do not
sign, and clients of 5.x do.

Source: AclClientRPCHook, AclUtils and AclSigner of RocketMQ 4.8.0; recorded requests of its client; requests of the
client of 5.5.0.
"""

from __future__ import annotations

import base64
import hmac
from collections.abc import Container, Mapping

from tallystick.client.wire.command import Command

ACCESS_KEY = "AccessKey"
SIGNATURE = "Signature"
SECURITY_TOKEN = "SecurityToken"
_UNIQUE = "_UNIQUE_KEY_QUERY"
_NOT_SIGNED = frozenset({SIGNATURE, _UNIQUE})


def signed_content(ext: Mapping[str, str], body: bytes, left_out: Container[str] = _NOT_SIGNED) -> bytes:
    """The bytes that a signature covers: all fields but those that are left out, and the body."""
    text = "".join(ext[name] for name in sorted(ext) if name not in left_out)
    return text.encode("utf-8", "replace") + body


def signature(secret: str, ext: Mapping[str, str], body: bytes, left_out: Container[str] = _NOT_SIGNED) -> str:
    """The signature of a request with these extension fields."""
    digest = hmac.digest(secret.encode("utf-8", "replace"), signed_content(ext, body, left_out), "sha1")
    return base64.b64encode(digest).decode()


def is_signed(secret: str, ext: Mapping[str, str], body: bytes) -> bool:
    """Whether the fields contain the right signature. The comparison takes the same time for each wrong one."""
    given = ext.get(SIGNATURE, "").encode("utf-8", "replace")
    if hmac.compare_digest(given, signature(secret, ext, body).encode()):
        return True
    of_5 = signature(secret, ext, body, (SIGNATURE,)) if _UNIQUE in ext else ""
    return bool(of_5) and hmac.compare_digest(given, of_5.encode())


def sign(command: Command, access_key: str, secret: str) -> None:
    """Adds the fields of a signature to a request."""
    ext = command.ext = dict(command.ext or {})
    ext[ACCESS_KEY] = access_key
    ext.pop(SIGNATURE, None)
    ext[SIGNATURE] = signature(secret, ext, command.body)
