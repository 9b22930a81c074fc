"""From files, environment and flags to settings: each layer over the one before, every key known, every value checked.

    defaults  <  the file (TOML)  <  the environment (TALLY_*)  <  flags (--set key=value and the named ones)

Keys are RocketMQ's option names. In the file they stand in the tables `[broker]`, `[store]`, `[nameserver]` and
`[http]`; in the environment as `TALLY_` and the name, in any case (`TALLY_FLUSHDISKTYPE=SYNC_FLUSH`); with `--set` as
`name=value`. A name that two tables share is given with its table: `nameserver.listenPort`, `TALLY_HTTP_PORT`.
Nothing is opened before all of it is sound; an error names the key and where it stands.
"""

from __future__ import annotations

import difflib
import enum
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import Field, dataclass, fields, replace
from pathlib import Path
from typing import Any, get_type_hints

from tallystick.node.settings import BrokerSettings, HttpSettings, NameServerSettings
from tallystick.store.settings import SettingsError, StoreSettings

ENVIRONMENT_PREFIX = "TALLY_"
# Read by the commands themselves, so no settings.
_ENVIRONMENT_OF_COMMANDS = frozenset({"TALLY_CONFIG", "TALLY_NAMESERVER"})


class ConfigurationError(ValueError):
    """A setting is unknown or cannot be used; the text names the key and the file, variable or flag it came from."""


@dataclass(frozen=True, slots=True)
class Settings:
    """All that the processes may be told. Each process looks at its own part."""

    broker: BrokerSettings
    store: StoreSettings
    nameserver: NameServerSettings
    http: HttpSettings


_TABLES: dict[str, type] = {
    "broker": BrokerSettings,
    "store": StoreSettings,
    "nameserver": NameServerSettings,
    "http": HttpSettings,
}


@dataclass(frozen=True, slots=True)
class _Value:
    """A value as somebody wrote it; `source` says where, for errors. Text is parsed, TOML's values have their type."""

    value: Any
    source: str


Layer = dict[tuple[str, str], _Value]


def load(
    *,
    file: Path | None = None,
    environment: Mapping[str, str] | None = None,
    assignments: Iterable[str] = (),
    flags: Mapping[str, Any] | None = None,
    defaults: Mapping[str, Any] | None = None,
) -> Settings:
    """The settings of a process. ConfigurationError: see there; OSError: the file cannot be read.

    `assignments`: the texts of `--set`; `flags`: values by `table.key` that named flags stand for; `defaults`: the same,
    below everything (what `tally run` presets).
    """
    merged: Layer = {}
    merged.update(_named(defaults or {}, "default of the command"))
    if file is not None:
        merged.update(_from_file(file))
    merged.update(_from_environment(environment or {}))
    merged.update(_from_assignments(assignments))
    merged.update(_named(flags or {}, "flag"))
    built: dict[str, Any] = {}
    for table, kind in _TABLES.items():
        hints = get_type_hints(kind)
        chosen = {key: value for (where, key), value in merged.items() if where == table}
        parsed = {key: _parse(hints[key], key, value) for key, value in chosen.items()}
        built[table] = replace(kind(), **parsed)
        try:
            built[table].validate()
        except SettingsError as error:
            written = chosen.get(error.key)
            source = f"{written.source}: " if written is not None else ""
            raise ConfigurationError(f"{source}{error}") from error
    return Settings(**built)


def as_text(settings: object) -> dict[str, str]:
    """Every field of a settings object as the text that `--set` would take."""
    return {item.name: _text(getattr(settings, item.name)) for item in fields(settings)}  # type: ignore[arg-type]


def parse_text(settings: Any, changes: Mapping[str, str], source: str) -> Any:
    """`settings` with fields changed from text. ConfigurationError: an unknown key or a wrong value."""
    hints = get_type_hints(type(settings))
    for key in changes:
        if key not in hints:
            raise ConfigurationError(f"{source}: unknown key {key!r}{_suggestion(key, hints)}")
    changed = replace(settings, **{key: _parse(hints[key], key, _Value(text, source)) for key, text in changes.items()})
    changed.validate()
    return changed


def _text(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    return value.name if isinstance(value, enum.Enum) else str(value)


def _fields(table: str) -> dict[str, Field[Any]]:
    return {item.name: item for item in fields(_TABLES[table])}


def _named(values: Mapping[str, Any], source: str) -> Layer:
    layer: Layer = {}
    for name, value in values.items():
        table, _, key = name.partition(".")
        layer[table, key] = _Value(value, f"{source} {name}")
    return layer


def _from_file(path: Path) -> Layer:
    try:
        content = tomllib.loads(path.read_text(encoding="utf-8"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigurationError(f"{path}: {error}") from error
    layer: Layer = {}
    for table, values in content.items():
        if table not in _TABLES or not isinstance(values, dict):
            known = ", ".join(f"[{name}]" for name in _TABLES)
            raise ConfigurationError(f"{path}: unknown key {table!r}; the tables are {known}")
        for key, value in values.items():
            if key not in _fields(table):
                raise ConfigurationError(f"{path}: unknown key {key!r} in [{table}]{_suggestion(key, _fields(table))}")
            layer[table, key] = _Value(value, f"{path}: [{table}]")
    return layer


def _from_environment(environment: Mapping[str, str]) -> Layer:
    known: dict[str, tuple[str, str]] = {}
    for table in _TABLES:
        for key in _fields(table):
            known.setdefault(f"{ENVIRONMENT_PREFIX}{key}".upper(), (table, key))
            known[f"{ENVIRONMENT_PREFIX}{table}_{key}".upper()] = (table, key)
    layer: Layer = {}
    for name, value in environment.items():
        if not name.startswith(ENVIRONMENT_PREFIX) or name in _ENVIRONMENT_OF_COMMANDS:
            continue
        place = known.get(name.upper())
        if place is None:
            raise ConfigurationError(f"environment: unknown variable {name}{_suggestion(name.upper(), known)}")
        layer[place] = _Value(value, f"environment variable {name}")
    return layer


def _from_assignments(assignments: Iterable[str]) -> Layer:
    layer: Layer = {}
    for text in assignments:
        name, separator, value = text.partition("=")
        if not separator:
            raise ConfigurationError(f"--set {text}: must be key=value")
        layer[_place(name.strip())] = _Value(value.strip(), f"--set {name.strip()}")
    return layer


def _place(name: str) -> tuple[str, str]:
    table, dot, key = name.partition(".")
    if dot:
        if table in _TABLES and key in _fields(table):
            return table, key
    else:
        # The broker's and the store's names are one list in RocketMQ, and none of them stands in both.
        for candidate in ("broker", "store"):
            if name in _fields(candidate):
                return candidate, name
    every = {key for where in ("broker", "store") for key in _fields(where)}
    every |= {f"{where}.{key}" for where in _TABLES for key in _fields(where)}
    raise ConfigurationError(f"--set {name}: unknown key{_suggestion(name, every)}")


def _suggestion(name: str, known: Iterable[str]) -> str:
    close = difflib.get_close_matches(name, list(known), n=1, cutoff=0.7)
    return f"; did you mean {close[0]}?" if close else ""


def _parse(kind: Any, key: str, written: _Value) -> Any:
    value = written.value
    if not isinstance(value, str) or kind is str:
        if isinstance(kind, type) and issubclass(kind, enum.Enum) and not isinstance(value, kind):
            raise ConfigurationError(f"{written.source}: {key} must be one of {_members(kind)}, not {value!r}")
        return value  # the settings check their types themselves
    if kind is bool:
        if value.lower() not in ("true", "false"):
            raise ConfigurationError(f"{written.source}: {key} must be true or false, not {value!r}")
        return value.lower() == "true"
    if kind is int or kind is float:
        try:
            return kind(value)
        except ValueError:
            raise ConfigurationError(f"{written.source}: {key} must be a number, not {value!r}") from None
    if value not in kind.__members__:
        raise ConfigurationError(f"{written.source}: {key} must be one of {_members(kind)}, not {value!r}")
    return kind[value]


def _members(kind: type[enum.Enum]) -> str:
    return ", ".join(kind.__members__)
