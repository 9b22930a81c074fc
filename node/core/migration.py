"""What `tally migrate` finds out about a cluster of RocketMQ and the slaves that will replace its masters.

Everything is asked over the protocol of RocketMQ 4.8, and nothing is changed. Errors: RemotingError.
"""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from tallystick.node.core.client import ClusterClient, QueueAddress, RequestRefusedError
from tallystick.node.core.java_properties import parse_properties
from tallystick.node.core.settings import BrokerSettings
from tallystick.node.remoting.codes import RequestCode
from tallystick.store import fastjson
from tallystick.store.fastjson import int_keys
from tallystick.store.settings import StoreSettings

READER = "TOOLS_CONSUMER"
"""A group that every broker of RocketMQ has, so that reading creates none."""
_MOST_LISTED = 10
OLD_MASTER_ID = 1000
"""Broker id of a master whose place a group has taken: behind those of all members."""

MUST_BE_EQUAL = ("mappedFileSizeCommitLog", "messageDelayLevel")
"""Settings with which the slave must start: the size of the files that are copied, and the time of delayed messages."""
_SHOULD_BE_EQUAL = (
    "fileReservedTime",
    "deleteWhen",
    "flushDiskType",
    "maxMessageSize",
    "autoCreateTopicEnable",
    "autoCreateSubscriptionGroup",
    "enablePropertyFilter",
    "transactionTimeOut",
    "transactionCheckMax",
)


@dataclass(frozen=True, slots=True)
class Place:
    """The addresses of one broker name, by broker id."""

    name: str
    cluster: str
    addresses: Mapping[int, str]

    @property
    def master(self) -> str | None:
        """The address of id 0; None: there is no master."""
        return self.addresses.get(0)


@dataclass(frozen=True, slots=True)
class Facts:
    """What a master has."""

    settings: Mapping[str, str]
    begin: int
    end: int
    topics: int
    groups: int
    version: str


async def places(client: ClusterClient) -> list[Place]:
    """All brokers that the name server knows, by name."""
    answer = await client.ask_nameserver(RequestCode.GET_BROKER_CLUSTER_INFO, {})
    found = []
    for name, data in sorted(fastjson.loads(answer.body)["brokerAddrTable"].items()):
        found.append(Place(name, data.get("cluster") or "", int_keys(data["brokerAddrs"])))
    return found


async def facts(client: ClusterClient, address: str) -> Facts:
    """What the broker at an address has."""
    config = await client.call(address, RequestCode.GET_BROKER_CONFIG, {})
    info = fastjson.loads((await client.call(address, RequestCode.GET_BROKER_RUNTIME_INFO, {})).body)["table"]
    topics = fastjson.loads((await client.call(address, RequestCode.GET_ALL_TOPIC_CONFIG, {})).body)
    groups = fastjson.loads((await client.call(address, RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG, {})).body)
    return Facts(
        parse_properties(config.body.decode()),
        max(0, int(info["commitLogMinOffset"])),
        int(info["commitLogMaxOffset"]),
        len(topics["topicConfigTable"]),
        len(groups["subscriptionGroupTable"]),
        info.get("brokerVersionDesc", "unknown"),
    )


def obstacles(found: Facts) -> list[str]:
    """Why a master cannot be replaced by a slave."""
    settings, problems = found.settings, []
    if settings.get("enableDLegerCommitLog") == "true":
        problems.append("it is a member of a DLedger group, which serves no slaves: convert its store instead")
    if settings.get("brokerRole") == "SLAVE":
        problems.append("it has the role SLAVE: a promotion has fenced it, or it is no master")
    if settings.get("haListenPort", "1") == "0":
        problems.append("haListenPort is 0: no slave can connect")
    return problems


_ACL = "aclEnable: access control is configured apart, its files are not copied"


def differences(found: Facts) -> list[str]:
    """What will behave differently after the switch, for an operator to decide on."""
    settings, notes = found.settings, []
    if settings.get("brokerRole") == "SYNC_MASTER":
        notes.append("SYNC_MASTER: after the switch sends wait for no slave, until brokerRole=SYNC_MASTER is set again")
    if settings.get("aclEnable") == "true":
        notes.append(_ACL)
    if settings.get("slaveReadEnable") == "true":
        notes.append("slaveReadEnable: while it copies, the slave may be asked for old messages that it does not have")
    if settings.get("flushDiskType") == "ASYNC_FLUSH":
        notes.append("ASYNC_FLUSH: what is acknowledged is not synced, here as there")
    notes.append("message ids and transaction offsets stay; messages stored later carry the new broker's address")
    notes.append("filters of SQL92 consumers come with their heartbeats; consumers commit offsets to the new master")
    return notes


def differences_of_group(found: Facts) -> list[str]:
    """What will behave differently after a group has taken the place of a master, besides settings."""
    notes = ["an offset message id that a client noted does not find its message afterwards; its unique key does"]
    if found.settings.get("aclEnable") == "true":
        notes.append(_ACL)
    return notes


def taken_ids(place: Place) -> str | None:
    """What the ids of other slaves mean for a group that will take the master's place; None without slaves."""
    ids = sorted(number for number in place.addresses if number > 0)
    if not ids:
        return None
    return (
        f"slaves have the ids {', '.join(map(str, ids))}. No member of a group may have the id of another slave (n0 "
        "has id 1, n1 has id 2, and so on): stop such a slave, or change its brokerId first"
    )


def start_settings(place: Place, found: Facts) -> dict[str, str]:
    """The settings with which the slave of a master has to start."""
    default = StoreSettings()
    own = {
        "brokerName": place.name,
        "brokerClusterName": place.cluster,
        "brokerRole": "SLAVE",
        "brokerId": str(next(number for number in range(1, 1 << 20) if number not in place.addresses)),
    }
    for key in (*MUST_BE_EQUAL, *_SHOULD_BE_EQUAL):
        theirs = found.settings.get(key)
        known = getattr(default, key, None)
        if theirs is not None and theirs != (getattr(known, "name", None) or str(known)):
            own[key] = theirs
    return own


def compared_settings(found: Facts) -> tuple[dict[str, str], dict[str, str]]:
    """The settings of a master that a slave must or should have, too, and the default of each of them here."""
    default = StoreSettings()
    theirs, own = {}, {}
    for key in (*MUST_BE_EQUAL, *_SHOULD_BE_EQUAL):
        if key in found.settings:
            theirs[key] = found.settings[key]
            known = getattr(default, key, None)
            known = getattr(BrokerSettings(), key, None) if known is None else known
            own[key] = "" if known is None else _text_of(known)
    return theirs, own


def _text_of(value: Any) -> str:
    """A value as RocketMQ writes it into properties."""
    if isinstance(value, bool):
        return str(value).lower()
    return getattr(value, "name", None) or str(value)


@dataclass(slots=True)
class Compared:
    """Two brokers with one log, compared: `theirs` is the master or was it, `ours` has its copy."""

    queues: int = 0
    behind: int = 0
    """Messages that `ours` lacks at the ends of queues."""
    offsets: int = 0
    """Offsets of groups that were compared."""
    late_offsets: int = 0
    """Offsets of groups that are lower in `ours`."""
    sampled: int = 0
    problems: list[str] = field(default_factory=list)

    def add(self, problem: str) -> None:
        """Notes what must not be."""
        if len(self.problems) < _MOST_LISTED:
            self.problems.append(problem)


async def compare(
    client: ClusterClient, ours: str, theirs: str, *, sample: int, rng: random.Random, same_positions: bool = True
) -> Compared:
    """Compares the queues, the offsets of groups, and `sample` messages of `theirs` with those of `ours`.

    `same_positions`: false for a group, in whose log a message lies elsewhere."""
    found = Compared()
    there = await _queues(client, theirs)
    here = await _queues(client, ours)
    for key, (begin, end) in sorted(there.items()):
        own = here.get(key)
        if own is None:
            if end > begin:
                found.add(f"{key[0]} queue {key[1]} with {end - begin} messages is missing")
            continue
        found.queues += 1
        found.behind += max(0, end - own[1])
        if own[0] > begin and own[1] > own[0]:
            found.add(f"{key[0]} queue {key[1]} begins at {own[0]}, and at {begin} at {theirs}")
    await _compare_offsets(client, ours, theirs, found)
    filled = [(key, span) for key, span in there.items() if key in here and min(span[1], here[key][1]) > span[0]]
    for _ in range(sample if filled else 0):
        (topic, queue_id), (begin, end) = rng.choice(filled)
        offset = rng.randrange(begin, min(end, here[topic, queue_id][1]))
        place = (topic, queue_id, offset)
        await _compare_message(client, ours, theirs, place, found, same_positions=same_positions)
    return found


async def _queues(client: ClusterClient, address: str) -> dict[tuple[str, int], tuple[int, int]]:
    """The first and the next offset of every queue of a broker, by topic and queue id."""
    table = fastjson.loads((await client.call(address, RequestCode.GET_ALL_TOPIC_CONFIG, {})).body)
    found = {}
    for topic in table["topicConfigTable"]:
        try:
            answer = await client.call(address, RequestCode.GET_TOPIC_STATS_INFO, {"topic": topic})
        except RequestRefusedError:
            continue  # deleted meanwhile
        for queue, row in fastjson.loads(answer.body)["offsetTable"].items():
            named: Mapping[str, Any] = dict(queue)
            found[topic, int(named["queueId"])] = int(row["minOffset"]), int(row["maxOffset"])
    return found


async def _compare_offsets(client: ClusterClient, ours: str, theirs: str, found: Compared) -> None:
    there, here = [
        fastjson.loads((await client.call(address, RequestCode.GET_ALL_CONSUMER_OFFSET, {})).body)["offsetTable"]
        for address in (theirs, ours)
    ]
    for key, queues in sorted(there.items()):
        own = int_keys(here.get(key) or {})
        for queue_id, offset in int_keys(queues).items():
            found.offsets += 1
            found.late_offsets += int(own.get(queue_id, -1)) < int(offset)


async def _compare_message(
    client: ClusterClient,
    ours: str,
    theirs: str,
    place: tuple[str, int, int],
    found: Compared,
    *,
    same_positions: bool,
) -> None:
    topic, queue_id, offset = place
    records = []
    for address in (theirs, ours):
        queue = QueueAddress(topic, "", address, queue_id)
        pulled = await client.pull(queue, offset, group=READER, count=1)
        record = pulled.records[0] if pulled.records else None
        if record is not None and not same_positions:
            record = record._replace(pos=0, prepared_transaction_offset=0)
        records.append(record)
    if records[0] is None:
        return  # deleted meanwhile, or damaged there
    found.sampled += 1
    if records[0] != records[1]:
        found.add(f"{topic} queue {queue_id} offset {offset}: the message differs from the one at {theirs}")
