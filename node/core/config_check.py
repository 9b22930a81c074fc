"""What a configuration file does here: for each setting, whether it applies, and what a RocketMQ broker does otherwise.

`tally config check` prints it. Nothing is opened or written.
"""

from __future__ import annotations

import enum
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from tallystick.node.core.configuration import (
    TABLES,
    ConfigurationError,
    FileEntry,
    GivenValue,
    changed_settings,
    read_file,
)
from tallystick.node.core.rocketmq_settings import ROCKETMQ_SETTINGS
from tallystick.store.setting import Declaration, SettingsError, declarations


class Effect(enum.Enum):
    """What becomes of a setting in a file."""

    APPLIES = "applies"
    NONE = "no effect"
    """The process logs a warning. Clients and operators see no difference."""
    DIFFERS = "differs"
    """The process logs a warning, and a RocketMQ broker with this value behaves differently."""
    REFUSED = "refused"
    """The process does not start."""
    UNKNOWN = "unknown"
    """The process does not start: RocketMQ 4.8 and 4.9 do not have this setting."""


class Row(NamedTuple):
    """One setting of a file."""

    key: str
    """With its table, if the file has tables."""
    value: str
    effect: Effect
    note: str
    """Why the setting has no effect, or what is wrong; empty: nothing to say."""

    @property
    def is_harmless(self) -> bool:
        """Whether the broker starts and behaves as a RocketMQ broker with this setting."""
        return self.effect in (Effect.APPLIES, Effect.NONE)


def check_file(path: Path, *, nameserver_alone: bool = False) -> list[Row]:
    """Returns a row for each setting in the file, in its order.

    ConfigurationError: the file is neither TOML nor Java properties; OSError: it cannot be read.
    """
    entries = read_file(path, nameserver_alone=nameserver_alone)
    refused = dict(_refused(entries))
    return [_row(entry, refused.get((entry.table, entry.key))) for entry in entries]


def _refused(entries: list[FileEntry]) -> Iterator[tuple[tuple[str, str], str]]:
    """Yields each setting that makes a start fail, with the reason: all of them, not only the first."""
    for table in TABLES:
        chosen = {entry.key: entry.value for entry in entries if entry.table == table}
        while (wrong := _first_wrong(table, chosen)) is not None:
            if wrong.key not in chosen:  # a setting is missing: the others cannot be used together
                yield from (((table, key), f"{wrong.key}: {wrong.reason}") for key in chosen)
                break
            yield (table, wrong.key), wrong.reason
            del chosen[wrong.key]


def _first_wrong(table: str, chosen: Mapping[str, GivenValue]) -> SettingsError | None:
    try:
        changed_settings(TABLES[table](), chosen)
    except ConfigurationError as error:
        assert isinstance(error.__cause__, SettingsError)
        return error.__cause__
    return None


def _row(entry: FileEntry, refusal: str | None) -> Row:
    key = f"[{entry.table}] {entry.key}" if entry.has_tables else entry.key
    value = _text(entry.value.value)
    if not entry.table:
        if entry.key not in ROCKETMQ_SETTINGS:
            return Row(key, value, Effect.UNKNOWN, entry.unknown.partition("; ")[2])
        known = ROCKETMQ_SETTINGS[entry.key]
        return Row(key, value, Effect.DIFFERS if known.differs(value) else Effect.NONE, known.reason)
    if refusal is not None:
        return Row(key, value, Effect.REFUSED, refusal)
    declaration: Declaration = declarations(TABLES[entry.table])[entry.key]
    return Row(key, value, Effect.NONE if declaration.no_effect else Effect.APPLIES, declaration.no_effect)


def _text(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
