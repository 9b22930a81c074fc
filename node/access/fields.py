"""Fields of accounts and users, as they come from files, requests and the log of a group."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


class AclError(ValueError):
    """Accounts or users cannot be used; the message says why, without secrets."""


def text(fields: Mapping[str, Any], name: str, *, strip: bool = True) -> str:
    """A text; empty if the field is missing. AclError."""
    value = fields.get(name)
    if value is None:
        return ""
    if not isinstance(value, str):
        raise AclError(f"{name} is not a text")
    return value.strip() if strip else value


def flag(fields: Mapping[str, Any], name: str) -> bool:
    """A truth value in one of YAML's spellings; false if the field is missing. AclError."""
    value = fields.get(name)
    word = str(value).lower() if value is not None else ""
    if word not in ("", "true", "false", "yes", "no", "on", "off"):
        raise AclError(f"{name} is neither true nor false")
    return word in ("true", "yes", "on")


def values(fields: Mapping[str, Any], name: str) -> list[Any]:
    """A list; empty if the field is missing. AclError."""
    value = fields.get(name)
    if value is None:
        return []
    if not isinstance(value, list | tuple):
        raise AclError(f"{name} is not a list")
    return list(value)


def texts(fields: Mapping[str, Any], name: str) -> tuple[str, ...]:
    """A list of texts, without nulls. AclError."""
    found = [value for value in values(fields, name) if value is not None]
    if not all(isinstance(value, str) for value in found):
        raise AclError(f"{name} has an element that is not a text")
    return tuple(found)


def objects(fields: Mapping[str, Any], name: str) -> list[Mapping[str, Any]]:
    """A list of maps. AclError."""
    found = values(fields, name)
    if not all(isinstance(value, dict) for value in found):
        raise AclError(f"{name} has an element that is not a map")
    return found
