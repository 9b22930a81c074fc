"""Which objects belong to which owner. Pure.

An object belongs to the object that its owner reference with `controller: true` names by UID. Labels prove nothing:
every user can set them. An object of an earlier owner with the same name has another UID and does not count.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection

from tallystick.operator.core.kube import Json


def controller_of(body: Json) -> Json | None:
    """Returns the owner reference of the controller of an object; None: it has none."""
    owners = (body.get("metadata") or {}).get("ownerReferences") or ()
    return next((owner for owner in owners if owner.get("controller") and owner.get("uid")), None)


def owned(body: Json, uids: Collection[str]) -> bool:
    """Whether an object with one of these UIDs is the controller of `body`."""
    owner = controller_of(body)
    return owner is not None and owner["uid"] in uids


def taken(body: Json) -> str:
    """Returns what a user has to know about an object that has a name of ours and is not ours."""
    owner, metadata = controller_of(body), body["metadata"]
    whose = "has no owner" if owner is None else f"belongs to {owner.get('kind')} {owner.get('name')} ({owner['uid']})"
    return f"{body['kind']} {metadata['name']} exists and {whose}"


def suffix(uid: str) -> str:
    """Returns the part of a name that makes it unique to an owner: the operator may not read who owns a Secret."""
    return hashlib.sha256(uid.encode()).hexdigest()[:8]
