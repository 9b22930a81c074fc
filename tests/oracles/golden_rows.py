"""Rows of the scanner against the messages that RocketMQ's own classes read from a golden store."""

from __future__ import annotations

import json
import lzma
import zlib
from pathlib import Path
from typing import Any

from scan_twin import pairs, readable


def expected(golden_folder: Path, name: str) -> dict[str, Any]:
    with lzma.open(golden_folder / name / "expected.json.xz", "rt") as file:
        return json.load(file)


def java_host(text: str) -> str:
    """IPv6 in eight groups, as Java writes it."""
    address, _, port = text.rpartition(":")
    if not address.startswith("["):
        return text
    head, _, tail = address.strip("[]").partition("::")
    front, back = [part for part in head.split(":") if part], [part for part in tail.split(":") if part]
    return f"[{':'.join([*front, *['0'] * (8 - len(front) - len(back)), *back])}]:{port}"


def same(row: dict[str, Any], message: dict[str, Any]) -> None:
    for name, theirs in {
        "topic": "topic",
        "queue_id": "queueId",
        "queue_offset": "queueOffset",
        "physical_offset": "offset",
        "size": "size",
        "flag": "flag",
        "sys_flag": "sysFlag",
        "born_timestamp_ms": "bornTimestamp",
        "store_timestamp_ms": "storeTimestamp",
        "reconsume_times": "reconsumeTimes",
        "prepared_transaction_offset": "preparedTransactionOffset",
        "message_id": "msgId",
    }.items():
        assert row[name] == message[theirs], name
    assert java_host(row["born_host"]) == message["bornHost"]
    assert java_host(row["store_host"]) == message["storeHost"]
    assert row["body_bytes"] == len(row["body"]) == message["bodyLength"]
    assert (zlib.crc32(row["body"]) & 0x7FFFFFFF) == message["bodyCrc32"]
    table = {readable(name): readable(value) for name, value in pairs(message["propertiesRaw"].encode())}
    assert dict(row["properties"]) == table
    assert (row["unique_key"] or "") == (message["uniqKey"] or "")
    assert " ".join(row["keys"]) == " ".join((message["keys"] or "").split())
    assert row["tags"] == table.get("TAGS")


def table_lines(data: bytes) -> list[bytes]:
    """The lines of a table's file, sorted (Java's maps have their own order), without the CRC that RocketMQ lacks."""
    lines = [line.rstrip(b",") for line in data.splitlines()]
    return sorted(line for line in lines if not line.startswith(b'\t"crc32":'))
