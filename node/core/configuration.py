"""Reads the settings from files, environment and flags. Each layer overrides the one before:

    presets  <  tls.config.file  <  the file  <  the environment (TALLY_*)  <  --set key=value  <  the named flags

Keys are RocketMQ's option names. The file is TOML with the tables `[broker]`, `[store]`, `[nameserver]`, `[http]` and
`[tls]`, or a configuration file of RocketMQ: Java properties without tables. A file named `*.toml`, and one that
contains one of the tables, is TOML. In properties, a name means the broker or the store; for a name server process, the
name server. A setting of RocketMQ that this broker does not have is accepted in a file and reported
(`rocketmq_settings`).

In the environment, a key is `TALLY_` and the name, in any case (`TALLY_FLUSHDISKTYPE=SYNC_FLUSH`). With `--set` it is
`name=value`. A name alone means the broker or the store, whose names are one list in RocketMQ, or one of the few that
could mean nothing else (`_ALONE_TOO`). The other parts' names are given with their table: `nameserver.listenPort`,
`TALLY_HTTP_PORT`.

Settings of access control (`aclEnable`, ...) of the broker are also those of the name server, unless it has its own.

Unknown keys and wrong values are errors, which name the key and its place; a process opens nothing before that check.

A member of a replicated group (`enableDLegerCommitLog`) has other defaults than RocketMQ for a few settings
(`GROUP_DEFAULTS`), so that a lost leader loses or repeats little.
"""

from __future__ import annotations

import difflib
import enum
import re
import tomllib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any, NamedTuple, get_type_hints

from tallystick.node.core.java_properties import parse_properties
from tallystick.node.core.rocketmq_5_settings import ROCKETMQ_5_SETTINGS
from tallystick.node.core.rocketmq_settings import ROCKETMQ_SETTINGS
from tallystick.node.core.settings import BrokerSettings, HttpSettings, NameServerSettings
from tallystick.node.tls.settings import DEFAULT_FILE, TlsSettings
from tallystick.store.setting import SettingsError, declarations, why_not_changeable
from tallystick.store.settings import StoreSettings, refuse_unsupported

ENVIRONMENT_PREFIX = "TALLY_"
# The commands read these variables themselves: they are not settings.
_ENVIRONMENT_OF_COMMANDS = frozenset(
    {"TALLY_CONFIG", "TALLY_CA", "TALLY_NAMESERVER", "TALLY_HTTP", "TALLY_TOKEN_FILE", "TALLY_BACKUP_KEY_FILE"}
)


class ConfigurationError(ValueError):
    """A setting is unknown or has a wrong value. The text names the key and its file, variable or flag."""


@dataclass(frozen=True, slots=True)
class Settings:
    """The settings of all parts. Each process uses those of its parts."""

    broker: BrokerSettings
    store: StoreSettings
    nameserver: NameServerSettings
    http: HttpSettings
    tls: TlsSettings
    without_effect: tuple[str, ...] = ()
    """A line for each given setting without an effect: its name, its place, and the reason."""


class Flag(NamedTuple):
    """A named flag: its name (`--port`), its setting (`broker.listenPort`), and its value."""

    name: str
    place: str
    value: Any


TABLES: dict[str, type] = {
    "broker": BrokerSettings,
    "store": StoreSettings,
    "nameserver": NameServerSettings,
    "http": HttpSettings,
    "tls": TlsSettings,
}
_FIELDS: dict[str, list[str]] = {table: [item.name for item in fields(kind)] for table, kind in TABLES.items()}
# The broker's and the store's names are one list in RocketMQ: none of them stands in both.
_ALONE_TOO = {"adminTokenFile": "http", "readTokenFile": "http", "externalListenPort": "nameserver"}
_BY_NAME_ALONE = {key: table for table in ("broker", "store") for key in _FIELDS[table]} | _ALONE_TOO
_OF_BOTH = ("aclEnable", "aclFile", "aclKeyFile")
"""Settings of the broker that also apply to a name server of the process, unless it has its own: a name server that
checks nothing beside a broker that does would be a surprise."""
_TOML_TABLE = re.compile(rf"^\s*\[({'|'.join(TABLES)})(\.[\w.]+)?\]", re.MULTILINE)


def place_of(table: str, key: str) -> str:
    """The name of a setting with its table. Those of `TlsSettings` have RocketMQ's names: `tls.server.mode`."""
    return f"{table}.{key.replace('_', '.') if table == 'tls' else key}"


_BY_PLACE = {place_of(table, key): (table, key) for table in TABLES for key in _FIELDS[table]}
_TLS_PREFIX = "tls."


@dataclass(frozen=True, slots=True)
class GivenValue:
    """A value as it was given. `place` names the key and its place. Text is parsed; values of TOML have their type."""

    value: Any
    place: str


Layer = dict[tuple[str, str], GivenValue]

GROUP_DEFAULTS: dict[tuple[str, str], Any] = {
    # An acknowledged message is on the disks of a majority; RocketMQ's DLedger mode acknowledges page caches.
    ("store", "flushDiskType"): "SYNC_FLUSH",
    # After a change of leadership, consumption and delayed deliveries since the last write are repeated. Each write is
    # one small entry of the log.
    ("broker", "flushConsumerOffsetInterval"): 1000,
    ("store", "flushDelayOffsetInterval"): 1000,
}


def _is_grouped(layer: Layer) -> bool:
    written = layer.get(("store", "enableDLegerCommitLog"))
    return written is not None and str(written.value).lower() == "true"


def load(
    *,
    file: Path | None = None,
    environment: Mapping[str, str] | None = None,
    assignments: Iterable[str] = (),
    flags: Iterable[Flag] = (),
    presets: Iterable[Flag] = (),
    nameserver_alone: bool = False,
) -> Settings:
    """Returns the settings of a process. ConfigurationError: one of them is wrong; OSError: the file cannot be read.

    `assignments`: the texts of `--set`; `flags`: the named flags; `presets`: defaults of a command, which all other
    layers override (the folder of `tally run`). `nameserver_alone`: the process runs no broker.
    """
    merged: Layer = {}
    merged.update(_from_flags(presets))
    ignored: list[str] = []
    if file is not None:
        for entry in read_file(file, nameserver_alone=nameserver_alone):
            if entry.table:
                merged[entry.table, entry.key] = entry.value
            elif entry.key in ROCKETMQ_SETTINGS:
                ignored.append(f"{entry.value.place} has no effect: {ROCKETMQ_SETTINGS[entry.key].reason}")
            else:
                raise ConfigurationError(f"{file}: {entry.unknown}")
    merged.update(_from_environment(environment or {}))
    merged.update(_from_assignments(assignments))
    merged.update(_from_flags(flags))
    of_tls, unknown = _from_tls_file(merged)
    merged = of_tls | merged
    ignored += unknown
    for key in _OF_BOTH:
        if ("broker", key) in merged:
            merged.setdefault(("nameserver", key), merged["broker", key])
    if _is_grouped(merged):
        merged = {place: GivenValue(value, "group default") for place, value in GROUP_DEFAULTS.items()} | merged
    built: dict[str, Any] = {}
    for table, kind in TABLES.items():
        chosen = {key: value for (where, key), value in merged.items() if where == table}
        built[table] = changed_settings(kind(), chosen)
    return Settings(**built, without_effect=(*_without_effect(merged), *ignored))


def _without_effect(layer: Layer) -> Iterator[str]:
    for (table, key), value in layer.items():
        reason = declarations(TABLES[table])[key].no_effect
        if reason:
            yield f"{value.place} has no effect: {reason}"


def parse_text(settings: Any, changes: Mapping[str, str], source: str) -> Any:
    """Returns `settings` with fields changed from text. ConfigurationError: an unknown key or a wrong value of
    `source`."""
    known = [item.name for item in fields(settings)]
    for key in changes:
        if key not in known:
            raise ConfigurationError(f"{source}: unknown key {key!r}{_suggestion(key, known)}")
    return changed_settings(settings, {key: GivenValue(text, f"{source}: {key}") for key, text in changes.items()})


def parse_changes(
    broker: BrokerSettings, store: StoreSettings, changes: Mapping[str, str], source: str
) -> tuple[BrokerSettings, StoreSettings]:
    """Returns the settings of a broker and its store with some of them changed, whatever class has them.

    ConfigurationError: an unknown key or a wrong value of `source`.
    """
    own = {key: text for key, text in changes.items() if key in _FIELDS["store"]}
    rest = {key: text for key, text in changes.items() if key not in own}
    return parse_text(broker, rest, source), parse_text(store, own, source)


def change_while_running(
    broker: BrokerSettings, store: StoreSettings, changes: Mapping[str, str], *, in_group: bool
) -> tuple[BrokerSettings, StoreSettings]:
    """As `parse_changes`, for a process that runs. ConfigurationError: also if a setting cannot be changed then."""
    for key in changes:
        reason = why_not_changeable(key, BrokerSettings, StoreSettings, in_group=in_group)
        if reason:
            raise ConfigurationError(f"{key} {reason}")
    return parse_changes(broker, store, changes, "update")


def as_text(settings: object) -> dict[str, str]:
    """Returns all fields of a settings object as texts that `--set` accepts."""
    return {item.name: _text(getattr(settings, item.name)) for item in fields(settings)}  # type: ignore[arg-type]


def changed_settings(settings: Any, chosen: Mapping[str, GivenValue]) -> Any:
    """Returns `settings` with the chosen values, after a check. ConfigurationError: its cause is the SettingsError."""
    hints = get_type_hints(type(settings))
    try:
        changed = replace(settings, **{key: _parse(hints[key], key, value.value) for key, value in chosen.items()})
        changed.validate()
        if isinstance(changed, StoreSettings):
            refuse_unsupported(changed)
    except SettingsError as error:
        written = chosen.get(error.key)
        own_name = place_of("tls", error.key) if isinstance(settings, TlsSettings) else error.key
        place = written.place if written is not None else own_name
        raise ConfigurationError(f"{place}: {error.reason}") from error
    return changed


def _from_flags(flags: Iterable[Flag]) -> Layer:
    return {_BY_PLACE[flag.place]: GivenValue(flag.value, f"{flag.name} ({flag.place})") for flag in flags}


class FileEntry(NamedTuple):
    """One setting in a configuration file."""

    table: str
    """Table of the setting; empty: this broker does not have it."""
    key: str
    value: GivenValue
    has_tables: bool = True
    """The file is TOML."""
    unknown: str = ""
    """The error if the setting is not one of RocketMQ's either."""


def read_file(path: Path, *, nameserver_alone: bool = False) -> list[FileEntry]:
    """Reads a configuration file. ConfigurationError: it is neither TOML nor Java properties; OSError."""
    data = path.read_bytes()
    try:
        text = _decoded(path, data)
        if path.suffix == ".toml" or _TOML_TABLE.search(text):
            return list(_from_toml(path, tomllib.loads(text)))
        return list(_from_properties(path, parse_properties(text), nameserver_alone))
    except ValueError as error:  # TOMLDecodeError and UnicodeDecodeError, too
        raise error if isinstance(error, ConfigurationError) else ConfigurationError(f"{path}: {error}") from error


def _decoded(path: Path, data: bytes) -> str:
    """UTF-8; otherwise Latin-1, as Java reads properties. Only the comments of such a file are garbled."""
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError:
        if path.suffix == ".toml":
            raise
        return data.decode("latin-1")


def _from_toml(path: Path, content: Mapping[str, Any]) -> Iterator[FileEntry]:
    for table, values in content.items():
        if table not in TABLES or not isinstance(values, dict):
            hint = f"; it belongs in [{_BY_NAME_ALONE[table]}]" if table in _BY_NAME_ALONE else ""
            known = ", ".join(f"[{name}]" for name in TABLES)
            raise ConfigurationError(f"{path}: unknown table {table!r}{hint or f'; there are {known}'}")
        for key, value in (_flattened(values) if table == "tls" else values).items():
            given = GivenValue(value, f"{path}: [{table}] {key}")
            if (found := _BY_PLACE.get(f"{table}.{key}")) is not None:
                yield FileEntry(*found, given)
            else:
                unknown = f"unknown key {key!r} in [{table}]{_suggestion(key, _FIELDS[table])}"
                yield FileEntry("", key, given, unknown=unknown)


def _flattened(values: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """The table `tls` has RocketMQ's names, whose dots make tables of TOML; its switches can be numbers of TOML."""
    found: dict[str, Any] = {}
    for key, value in values.items():
        if isinstance(value, dict):
            found |= _flattened(value, f"{prefix}{key}.")
        else:
            found[f"{prefix}{key}"] = _text(value) if isinstance(value, bool) else value
    return found


def _from_tls_file(merged: Layer) -> tuple[Layer, list[str]]:
    """The settings of `tls.config.file`, and a line for each that has no effect. ConfigurationError; OSError."""
    given = merged.get(("tls", "config_file"))
    path = Path(str(given.value) if given is not None else DEFAULT_FILE).expanduser()
    if given is None and not path.is_file():
        return {}, []
    layer: Layer = {}
    unknown = []
    try:
        pairs = parse_properties(_decoded(path, path.read_bytes()))
    except ValueError as error:
        raise ConfigurationError(f"{path}: {error}") from error
    for key, text in pairs.items():
        if key.startswith(_TLS_PREFIX) and key in _BY_PLACE:
            layer[_BY_PLACE[key]] = GivenValue(text, f"{path}: {key}")
        else:
            unknown.append(f"{path}: {key} has no effect: it is not a setting of TLS that RocketMQ 4.8 has")
    return layer, unknown


def _from_properties(path: Path, pairs: Mapping[str, str], nameserver_alone: bool) -> Iterator[FileEntry]:
    tables = dict.fromkeys(_FIELDS["nameserver"], "nameserver") if nameserver_alone else _BY_NAME_ALONE
    places = {key: (table, key) for key, table in tables.items()}
    places |= {name: place for name, place in _BY_PLACE.items() if name.startswith(_TLS_PREFIX)}
    for key, text in pairs.items():
        unknown = "" if key in places else f"unknown key {key!r}{_suggestion(key, places)}"
        table, field = places.get(key, ("", key))
        yield FileEntry(table, field, GivenValue(text, f"{path}: {key}"), False, unknown)


def _from_environment(environment: Mapping[str, str]) -> Layer:
    known = {f"{ENVIRONMENT_PREFIX}{key}".upper(): (table, key) for key, table in _BY_NAME_ALONE.items()}
    known |= {f"{ENVIRONMENT_PREFIX}{table}_{key}".upper(): (table, key) for table, key in _BY_PLACE.values()}
    layer: Layer = {}
    for name, value in environment.items():
        if not name.startswith(ENVIRONMENT_PREFIX) or name in _ENVIRONMENT_OF_COMMANDS:
            continue
        place = known.get(name.upper())
        if place is None:
            raise ConfigurationError(f"environment: unknown variable {name}{_suggestion(name.upper(), known)}")
        layer[place] = GivenValue(value, f"environment variable {name} ({place[0]}.{place[1]})")
    return layer


def _from_assignments(assignments: Iterable[str]) -> Layer:
    layer: Layer = {}
    for text in assignments:
        name, separator, value = text.partition("=")
        name = name.strip()
        if not separator:
            raise ConfigurationError(f"--set {text}: must be key=value")
        if name in _BY_NAME_ALONE:
            place = _BY_NAME_ALONE[name], name
        elif name in _BY_PLACE:
            place = _BY_PLACE[name]
        else:
            raise ConfigurationError(f"--set: unknown key {name!r}{_suggestion(name, [*_BY_NAME_ALONE, *_BY_PLACE])}")
        layer[place] = GivenValue(value.strip(), f"--set {name}")
    return layer


def _suggestion(name: str, known: Iterable[str]) -> str:
    if name in ROCKETMQ_5_SETTINGS:
        return "; RocketMQ 5 has this setting, tallystick does not"
    names = list(known)
    close = [other for other in names if other.endswith(f".{name}")]
    close = close or difflib.get_close_matches(name, names, n=1, cutoff=0.7)
    return f"; did you mean {' or '.join(close)}?" if close else ""


def _parse(kind: Any, key: str, value: Any) -> Any:
    """Converts text to a value of the field's type. `validate` checks values that are not text. SettingsError."""
    if issubclass(kind, enum.Enum) and not isinstance(value, kind):
        if not isinstance(value, str) or value not in kind.__members__:
            raise SettingsError(key, f"must be one of {', '.join(kind.__members__)}, not {value!r}")
        return kind[value]
    if not isinstance(value, str) or kind is str:
        return value
    if kind is bool:
        if value.lower() not in ("true", "false"):
            raise SettingsError(key, f"must be true or false, not {value!r}")
        return value.lower() == "true"
    try:
        return kind(value)
    except ValueError:
        raise SettingsError(key, f"must be {'a whole' if kind is int else 'a'} number, not {value!r}") from None


def _text(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    return value.name if isinstance(value, enum.Enum) else str(value)
