"""The Secrets of access control: passwords of Users, the superuser, and the accounts that pods mount.

    orders-superuser   name and password of the user who may do everything; brokers sign with it
    orders-access      the accounts of all Users, the credentials of brokers, and the key that encrypts stored passwords
    NAME-user          name and password of a User without spec.secretName

A Secret with one of these names that has another owner is neither used nor changed.
"""

from __future__ import annotations

import base64
import binascii
import secrets
from collections.abc import Mapping, Sequence
from typing import Any

import orjson

from tallystick.operator.core import kube
from tallystick.operator.core.declared import Phase, Problem
from tallystick.operator.core.kube import SECRETS, ForbiddenError, InvalidError, Json, Kube
from tallystick.operator.core.manifests import manifest, owned_by
from tallystick.operator.core.names import ROTATE, Names
from tallystick.operator.core.ownership import owned, taken
from tallystick.operator.users import reasons
from tallystick.operator.users.observed import Credential
from tallystick.operator.users.spec import RESERVED, Declaration

USER, PASSWORD = "username", "password"
_ACCOUNTS, _CREDENTIALS, _SEALING_KEY = "plain_acl.yml", "tools.yml", "acl.key"


class TakenError(Exception):
    """A Secret belongs to another owner. The text is for users."""


def new_password() -> str:
    """Returns a password with 192 random bits."""
    return secrets.token_urlsafe(24)


def text_of(body: Json, key: str) -> str:
    """Returns a value of a Secret; empty: it has none, or it is not text."""
    try:
        return base64.b64decode((body.get("data") or {}).get(key) or "", validate=True).decode()
    except (binascii.Error, TypeError, ValueError):
        return ""


async def credential_of(api: Kube, declared: Declaration) -> Credential:
    """Returns the password of a User; creates its Secret, or changes the password in it, if the operator owns it."""
    try:
        body = await api.find(SECRETS, declared.namespace, declared.secret)
        if declared.generated:
            body = await _generated(api, declared, body)
    except TakenError as error:
        return Credential(problem=Problem(Phase.REFUSED, reasons.NAME_TAKEN, str(error)))
    except (ForbiddenError, InvalidError) as error:
        text = f"the Secret {declared.secret} cannot be read or written: {error.said}"
        return Credential(problem=Problem(Phase.PENDING, reasons.SECRET_REFUSED, text))
    if body is None:
        text = f"the Secret {declared.secret} does not exist"
        return Credential(problem=Problem(Phase.PENDING, reasons.SECRET_MISSING, text))
    password, name = text_of(body, PASSWORD), text_of(body, USER)
    if why := _why_invalid(declared, password, name):
        return Credential(problem=Problem(Phase.REFUSED, reasons.SECRET_INVALID, f"the Secret {declared.secret} {why}"))
    return Credential(password)


def _why_invalid(declared: Declaration, password: str, name: str) -> str:
    if not password.strip():
        return f"has no {PASSWORD}"
    if not password.isprintable():
        return "has a password with a line break or another character that cannot be printed"
    if name and name != declared.user:
        return f"has the {USER} {name!r}, but the User is {declared.user!r}"
    return ""


async def _generated(api: Kube, declared: Declaration, body: Json | None) -> Json:
    if body is not None and not owned(body, {declared.uid}):
        raise TakenError(taken({"kind": "Secret", **body}))
    noted = "" if body is None else str((body["metadata"].get("annotations") or {}).get(ROTATE) or "")
    if body is not None and text_of(body, PASSWORD) and noted == declared.rotation:
        return body
    owner = owned_by(kube.USERS, declared.name, declared.uid)
    content = {"type": "Opaque", "data": _encoded({USER: declared.user, PASSWORD: new_password()})}
    labels = Names(declared.namespace, declared.cluster).labels("user")
    wanted = manifest(
        SECRETS,
        declared.namespace,
        declared.secret,
        labels,
        content,
        owner=owner,
        annotations={ROTATE: declared.rotation},
    )
    await api.apply(wanted, body)
    return wanted


async def superuser_password(api: Kube, cluster: Json) -> str:
    """Returns the password of the superuser; creates the Secret. TakenError; KubeError."""
    metadata = cluster["metadata"]
    names = Names(metadata["namespace"], metadata["name"])
    body = await api.find(SECRETS, names.namespace, names.superuser)
    _must_own(cluster, body)
    if body is not None and text_of(body, PASSWORD).strip():
        return text_of(body, PASSWORD)
    password = new_password()
    await api.apply(_of_cluster(cluster, names.superuser, {USER: RESERVED, PASSWORD: password}), body)
    return password


def stored_superuser(cluster: Json, password: str) -> Json:
    """Returns the superuser as brokers and name servers store it."""
    owner = cluster["metadata"]["uid"]
    return {"username": RESERVED, "password": password, "owner": owner, "userType": "Super", "userStatus": "enable"}


async def keep_accounts(
    api: Kube, cluster: Json, password: str, users: Sequence[Json], unknown: frozenset[str], now: float
) -> int:
    """Writes the Secret with the accounts, if they differ. Returns its version. TakenError; KubeError.

    `unknown`: owners of users whose password cannot be read now: their accounts stay as they are.
    """
    metadata = cluster["metadata"]
    names = Names(metadata["namespace"], metadata["name"])
    body = await api.find(SECRETS, names.namespace, names.access)
    _must_own(cluster, body)
    present = _parsed(body)
    before = list(present.get("users") or ())
    listed = [stored_superuser(cluster, password), *users]
    known = {each["username"] for each in listed}
    listed += [each for each in before if each.get("owner") in unknown and each.get("username") not in known]
    listed.sort(key=lambda each: str(each["username"]))
    credentials = orjson.dumps({"accessKey": RESERVED, "secretKey": password}).decode()
    version = _version(present)
    key = "" if body is None else text_of(body, _SEALING_KEY)
    if body is not None and key and before == listed and text_of(body, _CREDENTIALS) == credentials:
        return version
    version += 1
    accounts = {"users": listed, "dataVersion": [{"timestamp": int(now * 1000), "counter": version}]}
    content = {
        _ACCOUNTS: orjson.dumps(accounts).decode(),  # JSON is YAML
        _CREDENTIALS: credentials,
        _SEALING_KEY: key or secrets.token_hex(32),
    }
    await api.apply(_of_cluster(cluster, names.access, content), body)
    return version


def _parsed(body: Json | None) -> Mapping[str, Any]:
    try:
        found = orjson.loads(text_of(body or {}, _ACCOUNTS) or "{}")
    except ValueError:
        return {}  # it was changed by hand: it is written again
    return found if isinstance(found, dict) else {}


def _version(accounts: Mapping[str, Any]) -> int:
    try:
        return int(accounts["dataVersion"][0]["counter"])
    except (IndexError, KeyError, TypeError, ValueError):
        return 0


def _must_own(cluster: Json, body: Json | None) -> None:
    if body is not None and not owned(body, {cluster["metadata"]["uid"]}):
        raise TakenError(taken({"kind": "Secret", **body}))


def _of_cluster(cluster: Json, name: str, content: Mapping[str, str]) -> Json:
    metadata = cluster["metadata"]
    names = Names(metadata["namespace"], metadata["name"])
    owner = owned_by(kube.CLUSTERS, metadata["name"], metadata["uid"])
    data = {"type": "Opaque", "data": _encoded(content)}
    return manifest(SECRETS, names.namespace, name, names.labels(), data, owner=owner)


def _encoded(content: Mapping[str, str]) -> dict[str, str]:
    return {key: base64.b64encode(value.encode()).decode() for key, value in content.items()}
