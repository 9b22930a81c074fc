"""The declaration of a setting: one place says its default, meaning, unit, range and when a change takes effect.

Each field of a settings class is made by `setting(...)`. The checks, the settings that a running broker can change, the
warnings about settings without an effect, `docs/settings.md` and the list of settings that belong to the operator all
read the declaration.
"""

from __future__ import annotations

import enum
from dataclasses import Field, dataclass, field, fields
from typing import Any

KEY = "setting"
"""Key of the declaration in a field's metadata."""


class Change(enum.Enum):
    """When a changed value takes effect."""

    RUNNING = "while running"
    """At once: `mqadmin updateBrokerConfig`, or `updateNamesrvConfig` for a name server."""
    START = "next start"
    """When the process starts again."""
    NEVER = "never"
    """The value belongs to the files of the store: a store opens only with the value that it was created with."""


@dataclass(frozen=True, slots=True)
class Declaration:
    """What is known of a setting apart from its name, type and default value."""

    description: str
    unit: str
    """Unit of the value, such as `ms` or `bytes`. Empty: the value has no unit."""
    range: tuple[float, float] | None
    """Smallest and largest value of a number."""
    change: Change
    no_effect: str
    """Why the setting has no effect here. Empty: it has an effect."""
    own: bool
    """RocketMQ does not have this setting."""
    operator: bool
    """In Kubernetes the operator sets it and refuses it in `spec.config`."""
    same_in_group: bool
    """All members of a replicated group need the same value."""
    default_text: str
    """The default in words if it depends on the machine. Empty: the field's default."""


def setting(
    default: Any,
    description: str,
    *,
    unit: str = "",
    range: tuple[float, float] | None = None,
    change: Change = Change.START,
    no_effect: str = "",
    own: bool = False,
    operator: bool = False,
    same_in_group: bool = False,
    default_text: str = "",
) -> Any:
    """Returns a dataclass field with its declaration. A callable `default` makes the default of each instance."""
    declaration = Declaration(description, unit, range, change, no_effect, own, operator, same_in_group, default_text)
    if callable(default):
        return field(default_factory=default, metadata={KEY: declaration})
    return field(default=default, metadata={KEY: declaration})


def declaration_of(item: Field[Any]) -> Declaration:
    """Returns the declaration of a field that `setting` made."""
    declaration: Declaration = item.metadata[KEY]
    return declaration


def declarations(kind: type) -> dict[str, Declaration]:
    """Returns the declarations of a settings class by the names of the settings, in their order."""
    return {item.name: declaration_of(item) for item in fields(kind)}


def changeable(kind: type) -> frozenset[str]:
    """Returns the names of the settings that can be changed while the process runs."""
    return frozenset(name for name, known in declarations(kind).items() if known.change is Change.RUNNING)


def why_not_changeable(key: str, *kinds: type, in_group: bool = False) -> str:
    """Says why a running process does not change this setting of one of the settings classes; empty: it does.

    `in_group`: the process is a member of a replicated group.
    """
    known = next((found[key] for kind in kinds if key in (found := declarations(kind))), None)
    if known is None:
        return "is not a setting"
    if known.change is Change.RUNNING:
        if in_group and known.same_in_group:
            return "must be equal on all members of a replicated group: set it on each of them and restart"
        return ""
    if known.no_effect:
        return f"has no effect: {known.no_effect}"
    if known.change is Change.NEVER:
        return "cannot be changed: it belongs to the files of the store"
    return "cannot be changed while the process runs: set it and restart"


class SettingsError(ValueError):
    """A setting cannot be used; `key` is its name, `reason` says what is wrong with it."""

    def __init__(self, key: str, reason: str) -> None:
        super().__init__(f"{key}: {reason}")
        self.key = key
        self.reason = reason


def check(settings: Any) -> None:
    """Checks the type and the range of each field. SettingsError: names the first wrong one.

    A bool is not accepted as an int: `True` is a number for Python, but not a size.
    """
    for item in fields(settings):
        value, kind = getattr(settings, item.name), str(item.type)
        accepted = {"float", "int"} if kind == "float" else {kind}
        if type(value).__name__ not in accepted:
            raise SettingsError(item.name, f"must be {kind}, not {value!r}")
        known = declaration_of(item)
        if known.range is not None and not known.range[0] <= value <= known.range[1]:
            raise SettingsError(item.name, f"must be {known.range[0]} to {known.range[1]}, not {value}")
