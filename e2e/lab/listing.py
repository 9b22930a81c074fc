"""What RocketMQ 4.8.0 lists of a store, held against the ledger and against our own listing."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

from lab.history import History
from lab.ledger import Ledger, Problems
from lab.places import PEER, TALLY

_QUERY_LIMIT = 64  # messages that RocketMQ's search by key returns at most


def copy_store(source: Path, target: Path) -> None:
    """With times and holes."""
    target.parent.mkdir(parents=True, exist_ok=True)
    subprocess.run(["cp", "-a", "--sparse=always", str(source), str(target)], check=True)


def check_listing(opened: dict[str, Any], ledger: Ledger, problems: Problems) -> int:
    """Every acknowledged message is there, in its queue, and found by its key. How many messages RocketMQ sees."""
    messages = {message["offset"]: message for message in opened["messages"]}
    units = {
        (queue["topic"], queue["queueId"], queue["minOffset"] + number): (pos, size)
        for queue in opened["queues"]
        for number, (pos, size, _) in enumerate(queue["entries"])
    }
    keys: dict[tuple[str, str], set[int]] = {}
    for query in opened["keys"]:
        keys.setdefault((query["topic"], query["key"]), set()).update(query["phyOffsets"])
    for name, place in ledger.places.items():
        sent, message = ledger.sent[name], messages.get(place.pos)
        if message is None:
            problems.add(f"{name}: RocketMQ finds no message at position {place.pos}")
            continue
        found = (message["topic"], message["queueId"], message["queueOffset"], message["bodyCrc32"])
        if found != (place.topic, place.queue_id, place.queue_offset, sent.crc):
            problems.add(f"{name}: acknowledged at {place}, RocketMQ sees {found}")
        unit = units.get((place.topic, place.queue_id, place.queue_offset))
        if unit != (place.pos, message["size"]):
            problems.add(f"{name}: acknowledged at {place}, RocketMQ's queue says {unit}")
        if place.pos not in keys.get((place.topic, sent.unique_key), ()):
            problems.add(f"{name}: RocketMQ does not find it by its key {sent.unique_key}")
    for queue in opened["queues"]:
        if queue["maxOffset"] - queue["minOffset"] != len(queue["entries"]):
            problems.add(f"{queue['topic']} queue {queue['queueId']}: {len(queue['entries'])} units listed")
    return len(messages)


def check_group_listing(opened: dict[str, Any], history: History, problems: Problems) -> int:
    """Every message that a group acknowledged is there and in its queue. How many messages RocketMQ sees."""
    messages = {message["offset"]: message for message in opened["messages"]}
    units = {
        (queue["topic"], queue["queueId"], queue["minOffset"] + number): pos
        for queue in opened["queues"]
        for number, (pos, _, _) in enumerate(queue["entries"])
    }
    for send in history.acknowledged():
        place = (*send.queue, send.queue_offset)
        message = messages.get(send.pos)
        found = None if message is None else (message["topic"], message["queueId"], message["queueOffset"])
        if found != place:
            problems.add(f"{send.key}: acknowledged at {place}, position {send.pos}; RocketMQ sees {found} there")
        if units.get(place) != send.pos:
            problems.add(f"{send.key}: acknowledged at {place}, RocketMQ's queue says {units.get(place)}")
    return len(messages)


def check_same(theirs: Path, store: Path, settings: list[str], out: Path, problems: Problems, *, clean: bool) -> None:
    """Our own listing of a copy of `store` must be RocketMQ's, in every section.

    All but two where the last stop was not `clean`. `times`: RocketMQ's search by time chooses a queue's file by the
    time of its last change, and recovery changes files, each side others (our broker chooses by the store times
    themselves). `keys`: RocketMQ throws whole index files away and builds them again, and then finds a message twice
    whose keys lie on the border of two files.
    """
    options = [option for setting in settings for option in ("--set", setting)]
    command = [str(TALLY), "store", "dump", str(store), "--json", str(out), *options]
    dumped = subprocess.run(command, capture_output=True, text=True, check=False)
    if dumped.returncode != 0:
        problems.add(f"tally store dump: {dumped.stderr.strip() or dumped.returncode}")
        return
    listings = [json.loads(path.read_text())["opened"] for path in (theirs, out)]
    if not clean:
        found = [_found_by_key(listing) for listing in listings]
        for topic, key in sorted(found[0]):
            theirs_found, ours_found = found[0][topic, key], found[1].get((topic, key), [])
            if not same_positions(theirs_found, ours_found):
                problems.add(f"key {key} of {topic}: RocketMQ finds {theirs_found}, tally finds {ours_found}")
    sections = listings[0].keys() - (set() if clean else {"times", "keys"})
    compare = [sys.executable, str(PEER / "compare.py"), str(theirs), str(out), *sorted(sections)]
    done = subprocess.run(compare, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        for line in done.stdout.splitlines():
            problems.add(f"RocketMQ's listing differs from tally's: {line[:300]}")


def same_positions(theirs: list[int], ours: list[int], limit: int = _QUERY_LIMIT) -> bool:
    """Whether two answers to one query by key, newest first, name the same messages.

    An answer may name a message twice, and it ends at the limit. So an answer that reached the limit may name fewer
    messages than the other one: it is compared as far as it goes.
    """
    fewer, more = sorted((theirs, ours), key=lambda answer: len(set(answer)))
    first, second = list(dict.fromkeys(fewer)), list(dict.fromkeys(more))
    if len(fewer) < limit and len(first) < len(second):
        return False
    return first == second[: len(first)]


def _found_by_key(opened: dict[str, Any]) -> dict[tuple[str, str], list[int]]:
    """Positions by topic and key, newest first; of the queries over all times."""
    everything = (0, 2**63 - 1)
    return {
        (query["topic"], query["key"]): query["phyOffsets"]
        for query in opened["keys"]
        if query["max"] == _QUERY_LIMIT and (query["begin"], query["end"]) == everything
    }


def check_verify(store: Path, problems: Problems) -> None:
    """`tally store verify` finds no damage."""
    command = [str(TALLY), "store", "verify", str(store), "--json"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        report = json.loads(done.stdout) if done.stdout.startswith("{") else {}
        problems.add(f"tally store verify: {report.get('damage') or done.stderr.strip() or done.returncode}"[:600])
