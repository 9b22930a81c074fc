"""How the members of a group share the queues of a topic: exactly as RocketMQ's Java clients do.

All members compute the same result from the same two sorted lists, and each takes its part. A group can therefore have
Java clients as well, if all of them use the same strategy.

Source: AllocateMessageQueueAveragely, AllocateMessageQueueConsistentHash and ConsistentHashRouter of RocketMQ 4.8.0.
"""

from __future__ import annotations

import hashlib
from bisect import bisect_left
from collections.abc import Callable, Sequence

from tallystick.client.core.queue import Queue

Strategy = Callable[[str, Sequence[Queue], Sequence[str]], list[Queue]]
"""Gets this client's id, all queues and all ids, both sorted. Returns the queues of this client."""


def average(me: str, queues: Sequence[Queue], members: Sequence[str]) -> list[Queue]:
    """Each member gets neighbouring queues; the first members get one more if they cannot be shared evenly. AVG."""
    if me not in members:
        return []
    index, count = members.index(me), len(members)
    each, left = divmod(len(queues), count)
    begin = index * each + min(index, left)
    return list(queues[begin : begin + each + (1 if index < left else 0)])


def consistent_hash(me: str, queues: Sequence[Queue], members: Sequence[str]) -> list[Queue]:
    """Each queue goes to the member that follows it on a ring of hashes, so few queues move when members change.
    CONSISTENT_HASH, with 10 places on the ring for each member."""
    if me not in members:
        return []
    ring = {_hash(f"{member}-{place}"): member for member in members for place in range(_PLACES)}
    places = sorted(ring)
    found = []
    for queue in queues:
        at = bisect_left(
            places, _hash(f"MessageQueue [topic={queue.topic}, brokerName={queue.broker}, queueId={queue.id}]")
        )
        if ring[places[at % len(places)]] == me:
            found.append(queue)
    return found


_PLACES = 10
STRATEGIES: dict[str, Strategy] = {"AVG": average, "CONSISTENT_HASH": consistent_hash}
"""By the names that RocketMQ's clients give them."""


def _hash(text: str) -> int:
    return int.from_bytes(hashlib.md5(text.encode(), usedforsecurity=False).digest()[:4], "big")
