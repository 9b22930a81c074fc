"""Limits of one registration, and of all that the name server keeps. Without I/O.

Brokers are not authenticated, so the name server checks every number of a registration before it keeps it. It refuses
impossible terms and numbers of queues, and registrations that would need more memory than their share. The limits are
far above real clusters; they limit the memory that a foreign process can use.
"""

from __future__ import annotations

from tallystick.node.nameserver.registration import MAX_TOPICS, RegisterBody

MAX_TERM = 1 << 40
"""Largest term of a replicated group. One election a millisecond reaches it after 34 years."""
MAX_BROKER_ID = (1 << 31) - 1
MAX_NAME_BYTES = 255
"""Longest name of a cluster, broker or topic, and longest address. RocketMQ's own limit is 127 (255 for topics)."""
MAX_FILTER_SERVERS = 64
MAX_CLAIMS_OF_OWNER = 64
"""Broker addresses that one connection may register. A broker has one, a RocketMQ 5 broker container a few."""
MAX_CLAIMS = 10_000
"""Broker addresses that all connections together may register."""
MAX_TOPIC_ENTRIES = 4_000_000
"""Topics of all registered addresses together, each counted once for each address: about 1 GiB."""
_INT32 = (1 << 31) - 1


class BoundsError(ValueError):
    """A registration has an impossible value, or exceeds a limit. The text names the field and the limit."""


def check_registration(
    cluster: str, name: str, broker_id: int, address: str, ha_address: str, external: str, term: int
) -> None:
    """Checks the header of a registration. BoundsError names the first field that is out of range."""
    if not 0 <= term <= MAX_TERM:
        raise BoundsError(f"groupTerm {term} is not from 0 to {MAX_TERM}")
    if not 0 <= broker_id <= MAX_BROKER_ID:
        raise BoundsError(f"brokerId {broker_id} is not from 0 to {MAX_BROKER_ID}")
    for field, value in (("clusterName", cluster), ("brokerName", name)):
        _check_name(field, value)
    _check_address("brokerAddr", address)
    if external:
        _check_address("externalAddress", external)
    if len(ha_address.encode()) > MAX_NAME_BYTES:
        raise BoundsError(f"haServerAddr has more than {MAX_NAME_BYTES} bytes")


def check_body(body: RegisterBody) -> None:
    """Checks the body of a registration. BoundsError names the first part that is out of range."""
    if len(body.topics) > MAX_TOPICS:
        raise BoundsError(f"{len(body.topics)} topics, {MAX_TOPICS} are allowed")
    for topic, queues in body.topics.items():
        if not topic or len(topic) > MAX_NAME_BYTES:
            raise BoundsError(f"a topic name of {len(topic)} characters, 1 to {MAX_NAME_BYTES} are allowed")
        for number in (queues.read_queues, queues.write_queues, queues.perm, queues.sys_flag):
            if not -1 <= number <= _INT32:
                raise BoundsError(f"the topic {topic[:100]!r} has the number {number}, which is not a 32-bit count")
    servers = body.filter_servers or []
    if len(servers) > MAX_FILTER_SERVERS or any(len(server) > MAX_NAME_BYTES for server in servers):
        raise BoundsError(f"more than {MAX_FILTER_SERVERS} filter servers, or one of more than {MAX_NAME_BYTES} bytes")


def _check_name(field: str, value: str) -> None:
    if not value or len(value.encode()) > MAX_NAME_BYTES or not value.isprintable():
        raise BoundsError(f"{field} must have 1 to {MAX_NAME_BYTES} printable bytes, not {value[:100]!r}")


def _check_address(field: str, value: str) -> None:
    host, _, port = value.rpartition(":")
    if not host or len(value.encode()) > MAX_NAME_BYTES or not value.isprintable() or " " in value:
        raise BoundsError(f"{field} must be host:port of at most {MAX_NAME_BYTES} bytes, not {value[:100]!r}")
    if not port.isdecimal() or len(port) > 5 or not 0 < int(port) <= 65535:
        raise BoundsError(f"{field} {value[:100]!r} has no port from 1 to 65535")
