"""A cluster as the admin core reports it: two Raft groups of three members, 1,000 topics and 1,000 consumer groups."""

from __future__ import annotations

import base64
import json
import random

from tallystick.admin.models import (
    AuditLine,
    Broker,
    Cluster,
    Connection,
    ConsumerGroup,
    Consumption,
    Disk,
    GroupConfig,
    GroupMember,
    GroupState,
    Message,
    MessageSummary,
    QueueLag,
    QueueRange,
    RaftGroup,
    RaftMember,
    Rates,
    Role,
    Setting,
    Subscription,
    Topic,
    TopicConfig,
    TopicKind,
    TraceStep,
    Track,
)

NOW_MS = 1_790_000_000_000
"""Times are relative to this, so that two runs have the same data; `FakeApi` moves them to the present."""
BROKERS = ("orders-a", "orders-b")
AREAS = ("orders", "payments", "inventory", "shipping", "billing", "search", "email", "fraud", "catalog", "returns")
EVENTS = (
    "created",
    "changed",
    "cancelled",
    "settled",
    "reserved",
    "indexed",
    "failed",
    "archived",
    "audited",
    "synced",
)
DAMAGED_ID = "0A00000B00002A9F00000000000FFFF0"


def address(group: int, member: int) -> str:
    """Returns the address of a broker."""
    return f"10.0.{group}.{member + 10}:10911"


def clusters(*, unreachable: bool = True) -> list[Cluster]:
    """Returns one cluster of six brokers, one of which may be unreachable."""
    brokers = []
    for group, name in enumerate(BROKERS):
        for member in range(3):
            gone = unreachable and (group, member) == (1, 2)
            brokers.append(
                Broker(
                    cluster="shop",
                    name=name,
                    id=member,
                    address=address(group, member),
                    role=Role.UNKNOWN if gone else Role.LEADER if member == 0 else Role.FOLLOWER,
                    reachable=not gone,
                    problem="no connection within 5 s" if gone else None,
                    version="" if gone else "0.1.0",
                    is_tallystick=not gone,
                    started_ms=None if gone else NOW_MS - 86_400_000 * (group + 2) - 3_700_000 * member,
                    rates=Rates()
                    if gone
                    else Rates(1840.0 - 700 * group if member == 0 else 0.0, 5210.0 - 1900 * group),
                    messages_today_in=None if gone else 58_210_332 // (group + 1),
                    messages_today_out=None if gone else 171_044_871 // (group + 1),
                    disk=Disk(error="no answer")
                    if gone
                    else Disk((0.41, 0.78)[group] + member / 100, 512 << 30, int((512 << 30) * (0.59, 0.22)[group])),
                    runtime={}
                    if gone
                    else {"putTps": "1840.0 1822.4 1790.1", "bootTimestamp": str(NOW_MS - 86_400_000)},
                    node=None
                    if gone
                    else {"kind": "broker", "phase": "ready", "reason": None, "store": {"maxOffset": 88_120_442_880}},
                )
            )
    return [Cluster("shop", brokers)]


def raft_groups() -> list[RaftGroup]:
    """Returns a healthy group, and one that has lost a member and has another one that catches up."""

    def member(group: int, number: int, **rest: object) -> RaftMember:
        values: dict[str, object] = {
            "id": number,
            "address": address(group, number).replace("10911", "40911"),
            "role": Role.LEADER if number == 0 else Role.FOLLOWER,
            "voter": True,
            "connected": True,
            "lag_bytes": 0,
            "disk": None,
            "phase": "ready",
        }
        return RaftMember(**{**values, **rest})  # type: ignore[arg-type]

    recovery = {"step": "checking the log", "seconds": 14.2, "doneBytes": 3 << 30, "totalBytes": 8 << 30}
    return [
        RaftGroup("orders-a", "shop", 12, 0, 88_120_442_880, [member(0, each) for each in range(3)]),
        RaftGroup(
            "orders-b",
            "shop",
            31,
            0,
            41_992_004_100,
            [
                member(1, 0),
                member(1, 1, phase="catching-up", lag_bytes=5 << 30, recovery=recovery),
                member(1, 2, role=Role.UNKNOWN, connected=False, lag_bytes=9 << 20, phase=None),
            ],
            problem="one member is not connected: the loss of another member stops the group",
        ),
    ]


def _config(queues: int, attributes: dict[str, str], *, order: bool = False) -> TopicConfig:
    return TopicConfig(queues, queues, 6, order, attributes)


def topics(number: int = 1000) -> dict[str, Topic]:
    """Returns topics of all kinds, and those of the system."""
    chance = random.Random(7)
    found = {}
    for index in range(number):
        area, event = AREAS[index % 10], EVENTS[index // 10 % 10]
        name = f"{area}-{event}" if index < 100 else f"{area}-{event}-{index // 100:02d}"
        kind = {3: TopicKind.ORDERED, 5: TopicKind.DELAY, 8: TopicKind.TRANSACTION}.get(index % 17, TopicKind.NORMAL)
        configs = {each: _config(8, {}, order=kind is TopicKind.ORDERED) for each in BROKERS}
        if index == 4:
            configs["orders-b"] = _config(4, {})
        busy = index % 10 < 4 and index < 60
        found[name] = Topic(
            name=name,
            kind=kind,
            clusters=["shop"],
            configs=configs,
            agree=index != 4,
            messages=chance.randrange(200, 90_000_000 if busy else 90_000),
            rates=Rates(chance.uniform(20, 400), chance.uniform(50, 900)) if busy else Rates(),
            etag=f"{index}",
            owner=f"Topic shop/{name}" if index % 9 == 0 else None,
        )
    for name in ("SCHEDULE_TOPIC_XXXX", "RMQ_SYS_TRACE_TOPIC", "TBW102", "rmq_sys_audit"):
        found[name] = Topic(name, TopicKind.SYSTEM, ["shop"], {BROKERS[0]: _config(8, {})}, True, 120, etag="s")
    return found


def queues(topic: Topic) -> list[QueueRange]:
    """Returns the queues of a topic; its messages are spread over them evenly."""
    places = [(broker, queue) for broker, config in topic.configs.items() for queue in range(config.read_queues)]
    each = (topic.messages or 0) // len(places)
    return [
        QueueRange(broker, queue, 1000, 1000 + each, NOW_MS - 700 * number)
        for number, (broker, queue) in enumerate(places)
    ]


def connection(number: int, role: str) -> Connection:
    """Returns a client."""
    return Connection(
        f"10.1.4.{number + 20}@{4000 + number}#{role}",
        f"10.1.4.{number + 20}:5{number:04d}",
        "JAVA",
        "V4_8_0",
        list(BROKERS),
    )


def groups(number: int = 1000) -> dict[str, ConsumerGroup]:
    """Returns consumer groups: some are behind, some are offline, one has members that disagree."""
    chance = random.Random(11)
    names = list(topics(number))
    found = {}
    for index in range(number):
        name = f"{AREAS[index % 10]}-{('service', 'report', 'export', 'index', 'mirror')[index // 10 % 5]}" + (
            f"-{index // 50:02d}" if index >= 50 else ""
        )
        online = index % 7 != 6
        lag = 0 if index % 5 else chance.randrange(40, 900_000 if index < 40 else 900)
        found[name] = ConsumerGroup(
            name=name,
            state=GroupState.ONLINE if online else GroupState.OFFLINE,
            members=chance.randrange(1, 9) if online else 0,
            topics=[names[index], f"%RETRY%{name}"],
            lag=lag,
            lag_s=lag / 311 if lag else 0.0,
            mode="clustering" if online else None,
            out_per_s=chance.uniform(10, 900) if online and index < 80 else 0.0,
            disagrees=index == 2,
            dead_letters=(34, 0, 7, 0)[index] if index < 4 else 0,
            configs={each: GroupConfig() for each in BROKERS},
            etag=f"g{index}",
            owner=f"ConsumerGroup shop/{name}" if index == 1 else None,
        )
    return found


def lags(group: ConsumerGroup, topic: Topic) -> list[QueueLag]:
    """Returns the lag of each queue; the last queue has no committed offset."""
    ranges = queues(topic)
    each = (group.lag or 0) // len(ranges)
    return [
        QueueLag(
            topic=topic.name,
            broker=place.broker,
            queue=place.queue,
            broker_offset=place.max,
            consumer_offset=None if number == len(ranges) - 1 else max(place.min, place.max - each),
            lag=each,
            lag_s=group.lag_s,
            last_consumed_ms=NOW_MS - 5000 - 100 * number,
            client_id=connection(number % group.members, "consumer").client_id if group.members else None,
        )
        for number, place in enumerate(ranges)
    ]


def members(group: ConsumerGroup) -> list[GroupMember]:
    """Returns the members of a group; the last one of the group that disagrees has another tag."""
    return [
        GroupMember(
            connection(number, "consumer"),
            [
                Subscription(
                    group.topics[0], "cancelled" if group.disagrees and number == group.members - 1 else "*", "TAG"
                )
            ],
            16 // group.members,
        )
        for number in range(group.members)
    ]


def summary(topic: str, number: int) -> MessageSummary:
    """Returns a message; the smaller the number, the newer it is."""
    return MessageSummary(
        id=DAMAGED_ID if number == 3 else f"0A00000B00002A9F{number * 1024 + 4096:016X}",
        unique_key=f"0A010414{number:08X}18B4AAC2{number:08X}",
        topic=topic,
        broker=BROKERS[number % 2],
        queue=number % 8,
        offset=88_000 - number,
        tag=("created", "changed", "")[number % 3],
        keys=[f"order-{4711 + number}", f"customer-{number % 9}"],
        size_bytes=412 + 37 * number,
        born_ms=NOW_MS - 4200 * number - 12,
        stored_ms=NOW_MS - 4200 * number,
        born_host="10.1.4.20:50000",
        store_host="10.0.0.10:10911",
        retries=number % 3,
    )


def message(found: MessageSummary) -> Message:
    """Returns a message with a JSON body, or with bytes that are no text."""
    order = {
        "order": found.keys[0],
        "customer": 8812,
        "total": 129.9,
        "paid": True,
        "coupon": None,
        "lines": [{"sku": "K-77", "count": 2}, {"sku": "M-4", "count": 1}],
    }
    body = bytes(range(256)) if found.id == DAMAGED_ID else json.dumps(order, separators=(",", ":")).encode()
    properties = {
        "KEYS": " ".join(found.keys),
        "TAGS": found.tag,
        "UNIQ_KEY": found.unique_key,
        "WAIT": "true",
        "region": "eu-1",
    }
    text = None if found.id == DAMAGED_ID else body.decode()
    return Message(found, properties, base64.b64encode(body).decode(), text, found.id != DAMAGED_ID)


def trace(found: MessageSummary) -> list[TraceStep]:
    """Returns the life of a message: the first delivery failed, the second one did not."""
    at = found.stored_ms
    client = "10.1.4.20@4000"
    return [
        TraceStep("sent", at - 12, 9, client, "order-writers", True),
        TraceStep(
            "stored",
            at,
            None,
            found.store_host,
            "",
            True,
            f"{found.broker}, queue {found.queue}, offset {found.offset}",
        ),
        TraceStep("delivered", at + 31, None, "10.1.4.21@4001#consumer", "orders-service", True),
        TraceStep(
            "failed",
            at + 180,
            149,
            "10.1.4.21@4001#consumer",
            "orders-service",
            False,
            "TimeoutException: inventory did not answer",
        ),
        TraceStep("sentBack", at + 184, None, "10.1.4.21@4001#consumer", "orders-service", True, "delay level 3"),
        TraceStep("consumed", at + 10_320, 22, "10.1.4.22@4002#consumer", "orders-service", True),
    ]


def tracks() -> list[Track]:
    """Returns what consumer groups did with a message."""
    return [
        Track("orders-service", Consumption.CONSUMED),
        Track(
            "payments-service", Consumption.FILTERED, "The subscription “cancelled” does not take the tag “created”."
        ),
        Track("fraud-report", Consumption.NOT_CONSUMED, "The group's offset is 231 messages before this one."),
        Track("email-mirror", Consumption.OFFLINE, "No member is connected."),
    ]


def settings() -> list[Setting]:
    """Returns settings of six brokers: two of them differ, one of which is meant to."""
    addresses = [address(group, member) for group in range(2) for member in range(3)]
    common = {
        "autoCreateTopicEnable": "false",
        "deleteWhen": "04",
        "flushDiskType": "SYNC_FLUSH",
        "maxMessageSize": "4194304",
        "sendMessageThreadPoolNums": "4",
        "mappedFileSizeCommitLog": "1073741824",
        "messageDelayLevel": "1s 5s 10s 30s 1m 2m 3m 4m 5m 6m 7m 8m 9m 10m 20m 30m 1h 2h",
        "aclEnable": "true",
    }
    found = [Setting(name, dict.fromkeys(addresses, value), True, False) for name, value in sorted(common.items())]
    retention: dict[str, str | None] = {each: "72" if index < 5 else "48" for index, each in enumerate(addresses)}
    return [
        Setting("brokerIP1", {each: each.split(":")[0] for each in addresses}, False, True),
        *found,
        Setting("fileReservedTime", retention, False, False),
    ]


def audit(number: int = 260) -> list[AuditLine]:
    """Returns lines of the audit log, the newest first."""
    actions = [
        ("admin", "topic.update", "orders-created", True),
        ("reports", "group.delete", "payments-export", False),
        ("admin", "offset.reset", "orders-service", True),
        ("", "send", "payments-settled", False),
    ]
    return [
        AuditLine(
            NOW_MS - 61_000 * each,
            BROKERS[each % 2],
            user,
            f"10.1.9.{each % 50 + 2}:4{each:04d}",
            action,
            resource,
            allowed,
            {"code": 17 + each % 3},
        )
        for each in range(number)
        for user, action, resource, allowed in [actions[each % 4]]
    ]
