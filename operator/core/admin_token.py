"""The tokens that a cluster's nodes ask for, worked out from one key of the operator, so that they need not be read.

The operator keeps one random key in a Secret of its own namespace. A cluster's token is the key's HMAC of the
cluster's name; the token that only reads the files of its stores is the HMAC of that name and a word. Each is written
to a Secret of the cluster, for pods, and never read back: the operator may not read Secrets in the namespaces that it
looks after, where other people's are.
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
    """Called with namespace and cluster, gives the token."""

    def __init__(self, key: bytes) -> None:
        self._key = key

    def __call__(self, namespace: str, cluster: str) -> str:
        """64 hexadecimal digits."""
        return self._derived(f"{namespace}/{cluster}")

    def reader(self, namespace: str, cluster: str) -> str:
        """64 hexadecimal digits, from which the other token cannot be worked out."""
        return self._derived(f"reader/{namespace}/{cluster}")  # no name has a slash, so no admin token is this

    def _derived(self, name: str) -> str:
        return hmac.new(self._key, name.encode(), hashlib.sha256).hexdigest()


async def load_key(kube: Kube, namespace: str) -> bytes:
    """The operator's key, made if there is none. KubeError; ValueError: there is a Secret that is none."""
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
        except ConflictError:  # another operator was quicker
            found = await kube.get(SECRETS, namespace, KEY_NAME)
    key = base64.b64decode((found.get("data") or {}).get("key") or "")
    if len(key) < KEY_BYTES:
        raise ValueError(f"Secret {namespace}/{KEY_NAME} has no key of {KEY_BYTES} bytes; delete it to get a new key")
    return key
