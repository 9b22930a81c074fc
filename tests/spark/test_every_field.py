"""One change in every field of every kind of file: an audit and `tally store verify` name it, or it means nothing.

The table stands in docs/spark.md ("What is found"). `python tests/spark/test_every_field.py` prints its rows.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from agreement import agree
from field_lab import (
    CHECKPOINT,
    ENTRY,
    EXTENSION,
    FILLER,
    HEADER,
    INDEX,
    LEDGER_INDEX,
    PROGRESS,
    QUEUE,
    RECORD,
    SLOT,
    TABLES,
    Place,
    ledger_store,
    places_of,
    plain_store,
)

from tallystick.spark.jobs import audit
from tallystick.spark.options import ReadOptions
from tallystick.spark.runner import inline

NAMED = "named"
NOTE = "a note"
ABSENT = ""
"""The store has no such file."""
REASONS = {
    "no copy": "No other file has a copy of the field, and the record's CRC covers only the body. Members of a group "
    "show it. In this product's own logs in dledger's layout the CRC of the entry covers it.",
    "filler": "Nothing reads these bytes.",
    "channel": "dledger does not use the field. In this product's own logs the entry's chain CRC covers it.",
    "unused": "Entry 0 of an index file is not used.",
    "unknown begin": "The first entry of the oldest file counts from the end of a file that was removed.",
    "earlier": "Any time up to the newest record is possible. An earlier one only makes a start read more of the log.",
    "RocketMQ 5": "RocketMQ 4 leaves the field empty, and no reader needs it.",
    "padding": "Nothing reads these bytes.",
    "no CRC": "RocketMQ saves its tables without a CRC, and the changed table is valid.",
    "votes": "The file belongs to dledger's elections. It is not derived from the log.",
    "other slot": "The file has two slots, and the other one is newer.",
}
"""Why a change means nothing, or nothing that a file of the store could show."""
LOG = (RECORD, ENTRY, FILLER)
Stores = Callable[[str], Path]

TABLE: dict[tuple[str, str], tuple[str, str]] = {
    (RECORD, "totalSize"): (NAMED, NAMED),
    (RECORD, "magicCode"): (NAMED, NAMED),
    (RECORD, "bodyCrc"): (NAMED, NAMED),
    (RECORD, "queueId"): (NAMED, NAMED),
    (RECORD, "flag"): ("no copy", "no copy"),
    (RECORD, "queueOffset"): (NAMED, NAMED),
    (RECORD, "physicalOffset"): (NAMED, NAMED),
    (RECORD, "sysFlag"): ("no copy", "no copy"),
    (RECORD, "bornTimestamp"): ("no copy", "no copy"),
    (RECORD, "bornHost"): ("no copy", "no copy"),
    (RECORD, "storeTimestamp"): (NAMED, "no copy"),
    (RECORD, "storeHost"): ("no copy", "no copy"),
    (RECORD, "reconsumeTimes"): ("no copy", "no copy"),
    (RECORD, "preparedTransactionOffset"): ("no copy", "no copy"),
    (RECORD, "bodyLength"): (NAMED, NAMED),
    (RECORD, "body"): (NAMED, NAMED),
    (RECORD, "topicLength"): (NAMED, NAMED),
    (RECORD, "topic"): (NAMED, NAMED),
    (RECORD, "propertiesLength"): (NAMED, NAMED),
    (RECORD, "properties"): (NAMED, NAMED),
    (FILLER, "size"): (NAMED, NAMED),
    (FILLER, "magic"): (NAMED, NAMED),
    (FILLER, "content"): ("filler", "filler"),
    (QUEUE, "position"): (NAMED, NAMED),
    (QUEUE, "size"): (NAMED, NAMED),
    (QUEUE, "tagsCode"): (NAMED, NAMED),
    (EXTENSION, "size"): (NAMED, ABSENT),
    (EXTENSION, "tagsCode"): (NAMED, ABSENT),
    (EXTENSION, "msgStoreTime"): (NAMED, ABSENT),
    (EXTENSION, "bitMapSize"): (NAMED, ABSENT),
    (HEADER, "beginTimestamp"): (NAMED, NAMED),
    (HEADER, "endTimestamp"): (NAMED, NAMED),
    (HEADER, "beginPhyOffset"): (NAMED, NAMED),
    (HEADER, "endPhyOffset"): (NAMED, NAMED),
    (HEADER, "hashSlotCount"): (NAMED, NAMED),
    (HEADER, "indexCount"): (NAMED, NAMED),
    (SLOT, "number"): (NAMED, NAMED),
    (INDEX, "keyHash"): (NAMED, NAMED),
    (INDEX, "phyOffset"): (NAMED, NAMED),
    (INDEX, "timeDiff"): (NAMED, NAMED),
    (INDEX, "previous"): (NAMED, NAMED),
    (INDEX, "unused entry 0"): ("unused", "unused"),
    (INDEX, "timeDiff of first"): ("unknown begin", "unknown begin"),
    (CHECKPOINT, "physicMsgTimestamp, earlier"): ("earlier", "earlier"),
    (CHECKPOINT, "physicMsgTimestamp, later"): (NAMED, NAMED),
    (CHECKPOINT, "logicsMsgTimestamp, earlier"): ("earlier", "earlier"),
    (CHECKPOINT, "logicsMsgTimestamp, later"): (NAMED, NAMED),
    (CHECKPOINT, "indexMsgTimestamp, earlier"): ("earlier", "earlier"),
    (CHECKPOINT, "indexMsgTimestamp, later"): (NAMED, NAMED),
    (CHECKPOINT, "masterFlushedOffset"): ("RocketMQ 5", "RocketMQ 5"),
    (CHECKPOINT, "confirmPhyOffset"): ("RocketMQ 5", "RocketMQ 5"),
    (CHECKPOINT, "rest"): ("padding", "padding"),
    (TABLES, "topics.json:syntax"): (NAMED, NAMED),
    (TABLES, "topics.json:value"): (NAMED, "no CRC"),
    (TABLES, "topics.json.bak:syntax"): (NOTE, NOTE),
    (TABLES, "topics.json.bak:value"): (NOTE, "no CRC"),
    (PROGRESS, "tally-progress"): ("other slot", ABSENT),
    (PROGRESS, "tally-queues"): (NOTE, ABSENT),
    (ENTRY, "entry magic"): (ABSENT, NAMED),
    (ENTRY, "entry size"): (ABSENT, NAMED),
    (ENTRY, "entry index"): (ABSENT, NAMED),
    (ENTRY, "entry term"): (ABSENT, NAMED),
    (ENTRY, "entry pos"): (ABSENT, NAMED),
    (ENTRY, "entry channel"): (ABSENT, "channel"),
    (ENTRY, "entry chainCrc"): (ABSENT, NAMED),
    (ENTRY, "entry bodyCrc"): (ABSENT, NAMED),
    (ENTRY, "entry bodySize"): (ABSENT, NAMED),
    (LEDGER_INDEX, "magic"): (ABSENT, NAMED),
    (LEDGER_INDEX, "pos"): (ABSENT, NAMED),
    (LEDGER_INDEX, "size"): (ABSENT, NAMED),
    (LEDGER_INDEX, "index"): (ABSENT, NAMED),
    (LEDGER_INDEX, "term"): (ABSENT, NAMED),
    (PROGRESS, "dledger's checkpoint"): (ABSENT, "votes"),
    (PROGRESS, "dledger's currterm"): (ABSENT, "votes"),
}
"""By kind of file and field: what is found in a plain store, and in one of dledger's layout."""


@pytest.fixture(scope="module")
def stores(tmp_path_factory: pytest.TempPathFactory) -> Stores:
    made: dict[str, Path] = {}

    def store(kind: str) -> Path:
        if kind not in made:
            folder = tmp_path_factory.mktemp("stores") / kind
            made[kind] = plain_store(folder) if kind == "plain" else ledger_store(folder)
        return made[kind]

    return store


@pytest.fixture(scope="module")
def members(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    first = ledger_store(tmp_path_factory.mktemp("members") / "n0")
    others = [first.with_name(name) for name in ("n1", "n2")]
    for other in others:
        shutil.copytree(first, other)
    return [first, *others]


@contextmanager
def changed(place: Place) -> Iterator[None]:
    whole = place.path.read_bytes()
    place.path.write_bytes(place.changed())
    try:
        yield
    finally:
        place.path.write_bytes(whole)


def outcome(root: Path, place: Place) -> str:
    """What both find of a change: `NAMED`, `NOTE`, or nothing. Fails if they name anything else as well."""
    with changed(place):
        summary = agree(root)
    for difference in summary["differences"]:
        assert is_about(place, difference), difference
    if summary["differences"]:
        assert any(is_about(place, each) for each in summary["differences"])
        return NAMED
    return NOTE if any(each["file"] == str(place.path) for each in summary["notes"]) else ""


def is_about(place: Place, difference: dict[str, Any]) -> bool:
    """Whether a difference is in the changed structure, names its record, or is in what depends on it."""
    if difference["file"] == str(place.path) and place.kind not in LOG:
        return True
    if place.kind in (EXTENSION, HEADER):  # the unit that names it, the keys that it hides
        return difference["what"] in ("queue", "index")
    if difference["file"] == str(place.path):
        return place.begin <= difference["offset"] <= place.end or difference["reason"].startswith("entry ")
    if difference["what"] == "ledger":
        return place.kind == ENTRY
    return str(place.pos) in difference["reason"] or difference["reason"].startswith("the queue is missing")


def expected(field: tuple[str, str], column: int) -> str:
    return TABLE[field][column]


def fields_of(column: int) -> list[tuple[str, str]]:
    return [field for field, row in TABLE.items() if row[column] != ABSENT]


def place_of(root: Path, field: tuple[str, str]) -> Place:
    return next(place for place in places_of(root) if place.field == field)


@pytest.mark.parametrize("field", fields_of(0), ids=": ".join)
def test_a_change_in_a_plain_store(stores: Stores, field: tuple[str, str]) -> None:
    found = outcome(stores("plain"), place_of(stores("plain"), field))
    assert found == (expected(field, 0) if expected(field, 0) in (NAMED, NOTE) else "")


@pytest.mark.parametrize("field", fields_of(1), ids=": ".join)
def test_a_change_in_dledgers_layout(stores: Stores, field: tuple[str, str]) -> None:
    found = outcome(stores("dledger"), place_of(stores("dledger"), field))
    assert found == (expected(field, 1) if expected(field, 1) in (NAMED, NOTE) else "")


def compared(roots: list[Path]) -> list[dict[str, Any]]:
    path = ",".join(f"g/{root.name}={root}" for root in roots)
    differences = audit.run(ReadOptions.parse({"path": path}), inline)["differences"]
    return [each for each in differences if each["what"] == "replicas"]


@pytest.mark.parametrize("field", [field for field in fields_of(1) if field[0] in LOG], ids=": ".join)
def test_a_change_in_one_of_three_members(members: list[Path], field: tuple[str, str]) -> None:
    """It names the minority, with record, field and byte."""
    place = place_of(members[1], field)
    with changed(place):
        (difference,) = compared(members)
    assert (difference["source"], difference["file"]) == ("n1", str(place.path))
    assert difference["offset"] == place.at + place.size - 1
    if place.kind != FILLER:
        assert f"the field {place.name} of the record at {place.pos}" in difference["reason"], difference


def test_without_a_majority_both_members_are_named(members: list[Path]) -> None:
    place = place_of(members[0], (RECORD, "flag"))
    with changed(place):
        found = compared(members[:2])
    assert [each["source"] for each in found] == ["n0", "n1"]
    assert len({each["reason"] for each in found}) == 1 and "the field flag" in found[0]["reason"]


@pytest.mark.parametrize("kind", ["plain", "dledger"])
def test_the_table_has_every_field(stores: Stores, kind: str) -> None:
    column = ["plain", "dledger"].index(kind)
    assert {place.field for place in places_of(stores(kind))} == set(fields_of(column))


def rows() -> list[str]:
    """The rows of the table in the documents."""
    marks = {reason: str(number) for number, reason in enumerate(REASONS, 1)}
    lines = []
    for (kind, name), row in TABLE.items():
        cells = ["–" if each == ABSENT else marks.get(each, each) for each in row]
        group = NAMED if kind in LOG and row[1] != ABSENT else cells[1]
        lines.append(f"| {kind} | {name} | {cells[0]} | {cells[1]} | {group} |")
    return [*lines, "", *(f"{number}. {text}" for number, text in enumerate(REASONS.values(), 1))]


def test_the_documents_say_the_same() -> None:
    text = (Path(__file__).parents[2] / "docs" / "spark.md").read_text()
    assert "\n".join(rows()) in text


if __name__ == "__main__":
    print("\n".join(rows()))
