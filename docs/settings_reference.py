"""Generates settings.md from the declarations of the settings: names, types, ranges, defaults, meaning.

`python docs/settings_reference.py` writes docs/settings.md. A test compares the page with the declarations.
"""

from __future__ import annotations

import enum
import inspect
import re
from collections.abc import Iterator
from dataclasses import Field, fields
from pathlib import Path
from typing import get_type_hints

from tallystick.node.core.configuration import GROUP_DEFAULTS, as_text, place_of
from tallystick.node.core.rocketmq_settings import ROCKETMQ_SETTINGS
from tallystick.node.core.settings import BrokerSettings, HttpSettings, NameServerSettings
from tallystick.node.tls.settings import TlsSettings
from tallystick.store.setting import Change, declaration_of
from tallystick.store.settings import StoreSettings

PAGE = Path(__file__).with_name("settings.md")
TABLES: tuple[tuple[str, type, str], ...] = (
    ("broker", BrokerSettings, "The broker: addresses, topics, consumers, transactions, registration, group."),
    (
        "store",
        StoreSettings,
        "The store of a broker: files, flushing, reading, index, deletion, recovery, replication.",
    ),
    ("nameserver", NameServerSettings, "A name server."),
    ("http", HttpSettings, "The HTTP port for probes, metrics and administration."),
    (
        "tls",
        TlsSettings,
        "TLS for clients, and for the process's own connections ([security.md](security.md#tls)). The names are "
        "RocketMQ's, with the table: `--set tls.server.mode=enforcing`, in TOML `server.mode` in the table `[tls]`.",
    ),
)
_SECTION = re.compile(r"^    # -- (.+?) -+$")
_FIELD = re.compile(r"^    (\w+): ")
_MARKS = {"own": "own", "operator": "operator", "same_in_group": "group"}


def sections(kind: type) -> Iterator[tuple[str, list[Field[object]]]]:
    """Yields the sections of a settings class, as its comments name them, with their settings."""
    known = {item.name: item for item in fields(kind)}
    name, found = "", list[Field[object]]()
    for line in inspect.getsource(kind).splitlines():
        if match := _SECTION.match(line):
            if found:
                yield name, found
            name, found = match[1], []
        elif (match := _FIELD.match(line)) and match[1] in known:
            found.append(known[match[1]])
    yield name, found


def _default(table: str, item: Field[object], defaults: dict[str, str]) -> str:
    if in_words := declaration_of(item).default_text:
        return in_words
    text = f"`{defaults[item.name]}`" if defaults[item.name] else "empty"
    grouped = GROUP_DEFAULTS.get((table, item.name))
    return f"{text}, in a group `{grouped}`" if grouped else text


def _type(kind: type, item: Field[object]) -> str:
    hint = get_type_hints(kind)[item.name]
    if issubclass(hint, enum.Enum):
        return ", ".join(f"`{name}`" for name in hint.__members__)
    known = declaration_of(item)
    words = known.unit or {bool: "`true`, `false`", str: "text", int: "number", float: "part"}[hint]
    if not known.range:
        return words
    low, high = known.range
    if high >= 2**31 - 1:  # the largest number of the type
        return f"{words}, at least {low}"
    return f"{words}, {low:g} to {high:g}" if hint is float else f"{words}, {low} to {high}"


def _row(table: str, kind: type, item: Field[object], defaults: dict[str, str]) -> str:
    known = declaration_of(item)
    meaning = known.description
    if known.no_effect:
        meaning = f"**No effect:** {known.no_effect}. In RocketMQ: {meaning}"
    marks = [word for name, word in _MARKS.items() if getattr(known, name)]
    changed = "" if known.no_effect else known.change.value
    name = place_of(table, item.name) if table == "tls" else item.name
    cells = (f"`{name}`", _type(kind, item), _default(table, item, defaults), changed, ", ".join(marks), meaning)
    return "| " + " | ".join(cell.replace("|", r"\|") for cell in cells) + " |"


def _of_rocketmq() -> Iterator[str]:
    yield from (
        "## Settings of RocketMQ without a counterpart",
        "",
        "A configuration file can contain these settings of RocketMQ 4.8 and 4.9. They have no effect, and the process",
        "logs a warning for each. Where the last column says *yes*, a RocketMQ broker with another value than its",
        "default behaves differently.",
        "",
        "| setting | reason | differs |",
        "| --- | --- | --- |",
    )
    for name, known in ROCKETMQ_SETTINGS.items():
        yield f"| `{name}` | {known.reason} | {'yes' if known.is_visible else ''} |"
    yield ""


def page() -> str:
    """Returns the content of the page."""
    lines = [
        "# Settings",
        "",
        "<!-- generated from the declarations by docs/settings_reference.py (`make settings-reference`) -->",
        "",
        "[Operation](operation.md#configuration) describes how to set them and which source takes precedence. Names,",
        "units and defaults are RocketMQ 4.8's where RocketMQ has the setting. A process that gets an unknown setting",
        "or a wrong value does not start; it names the setting and the source. If it gets a setting without an effect,",
        "it starts and logs a warning. `tally config check FILE` says what each setting in a file does.",
        "",
        "The column *changes* says when a new value takes effect:",
        "",
        f"- *{Change.RUNNING.value}*: at once (`mqadmin updateBrokerConfig`, `PUT /settings`; for a name server",
        "  `updateNamesrvConfig`);",
        f"- *{Change.START.value}*: when the process starts again;",
        f"- *{Change.NEVER.value}*: the value belongs to the files of the store. A store opens only with the value",
        "  that it was created with.",
        "",
        "Marks: *own*: RocketMQ does not have the setting. *operator*: in Kubernetes the operator sets it, and refuses",
        "it in `spec.config`. *group*: all members of a replicated group need the same value; such a setting changes",
        "with a restart of each member.",
        "",
    ]
    for table, kind, words in TABLES:
        defaults = as_text(kind())
        lines += [f"## [{table}]", "", words, ""]
        for name, items in sections(kind):
            if name:
                lines += [f"### {name[0].upper()}{name[1:]}", ""]
            lines += [
                "| setting | value | default | changes | marks | meaning |",
                "| --- | --- | --- | --- | --- | --- |",
            ]
            lines += [_row(table, kind, item, defaults) for item in items]
            lines.append("")
    return "\n".join([*lines, *_of_rocketmq()])


if __name__ == "__main__":
    PAGE.write_text(page())
