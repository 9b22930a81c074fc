"""Quotas of one account or user, as they are written in `plain_acl.yml`, in requests and in the log of a group.

quota:
  messagesPerSecond: 1000      a limit that is missing is the one of the settings (`userMessagesPerSecond`, ...)
  bytesPerSecond: 0            0: no limit
  requestsPerSecond: 2000
  topics: 10                   topics that the user may create
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from tallystick.node.access.fields import AclError

_MOST = (1 << 53) - 1
"""Every reader of JSON can represent it."""


@dataclass(frozen=True, slots=True)
class Quota:
    """Limits of one user. None: the limit of the settings; 0: no limit."""

    messages_per_second: int | None = None
    bytes_per_second: int | None = None
    requests_per_second: int | None = None
    topics: int | None = None

    def changed(self, fields: Mapping[str, Any]) -> Quota:
        """This quota with the limits of the field `quota`, if there is one; null removes a limit. AclError."""
        given = fields.get("quota")
        if given is None:
            return self
        if not isinstance(given, dict):
            raise AclError("quota is not a map")
        if unknown := given.keys() - _FIELDS.keys():
            raise AclError(f"quota: {min(map(str, unknown))!r} is not one of {', '.join(_FIELDS)}")
        return replace(self, **{_FIELDS[name]: _limit(name, value) for name, value in given.items()})

    def fields(self) -> dict[str, Any]:
        """The field `quota` with the limits that are set; empty if none is."""
        limits = {name: getattr(self, field) for name, field in _FIELDS.items()}
        found = {name: limit for name, limit in limits.items() if limit is not None}
        return {"quota": found} if found else {}


NO_QUOTA = Quota()
"""All limits are those of the settings."""
_FIELDS = {
    "messagesPerSecond": "messages_per_second",
    "bytesPerSecond": "bytes_per_second",
    "requestsPerSecond": "requests_per_second",
    "topics": "topics",
}


def _limit(name: str, value: Any) -> int | None:
    """Numbers of a file are texts: its scalars are read as they are written."""
    if value is None or value == "":
        return None
    text = str(value)
    if isinstance(value, bool) or not (text.isascii() and text.isdecimal() and len(text) < 17) or int(text) > _MOST:
        raise AclError(f"quota: {name} is a number from 0 to {_MOST}, not {text[:40]!r}")
    return int(text)
