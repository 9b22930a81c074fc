"""Tokens for the HTTP API of nodes, derived from one key, so that the operator never has to read them.

The operator keeps one random key in a Secret in its own namespace. The admin token of a cluster is the HMAC of the
cluster's name; the token that only permits reading the files of its stores is the HMAC of that name with a prefix. The
operator writes each token to a Secret for the pods of the cluster. It cannot read Secrets in watched namespaces,
because these contain Secrets of users.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import secrets

from tallystick.operator.core.kube import SECRETS, ConflictError, Json, Kube

KEY_NAME = "tallystick-operator-key"
KEY_BYTES = 32


class AdminTokens:
    """Derives tokens. A call with namespace and cluster returns the admin token."""

    def __init__(self, key: bytes) -> None:
        self._key = key

    def __call__(self, namespace: str, cluster: str) -> str:
        """Returns the admin token: 64 hexadecimal digits."""
        return self._derived(f"{namespace}/{cluster}")

    def reader(self, namespace: str, cluster: str) -> str:
        """Returns the token for reading files: 64 hexadecimal digits. The admin token cannot be derived from it."""
        return self._derived(f"reader/{namespace}/{cluster}")  # names contain no slash, so no admin token equals it

    def _derived(self, name: str) -> str:
        return hmac.new(self._key, name.encode(), hashlib.sha256).hexdigest()


async def load_key(kube: Kube, namespace: str) -> bytes:
    """Returns the key of the operator, created if it does not exist. KubeError; ValueError: the Secret has no key."""
    found = await kube.find(SECRETS, namespace, KEY_NAME)
    if found is None:
        made: Json = {
            "apiVersion": "v1",
            "kind": "Secret",
            "metadata": {"name": KEY_NAME, "namespace": namespace, "labels": {"app.kubernetes.io/name": "tallystick"}},
            "type": "Opaque",
            "data": {"key": base64.b64encode(secrets.token_bytes(KEY_BYTES)).decode()},
        }
        try:
            found = await kube.create(SECRETS, namespace, made)
        except ConflictError:  # another operator created it first
            found = await kube.get(SECRETS, namespace, KEY_NAME)
    key = base64.b64decode((found.get("data") or {}).get("key") or "")
    if len(key) < KEY_BYTES:
        raise ValueError(f"Secret {namespace}/{KEY_NAME} has no key of {KEY_BYTES} bytes; delete it to get a new key")
    return key
