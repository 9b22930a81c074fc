"""Queue locks agree with a model that keeps every grant."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from tallystick.node.broker.tables.locks import LOCK_LIVE_MS, MAX_LOCKS, QueueLocks
from tallystick.node.broker.tables.message_queue import MessageQueue

QUEUES = [MessageQueue("T", "b", number) for number in range(3)]
STEPS = st.lists(
    st.tuples(
        st.sampled_from(["lock", "unlock", "expire"]),
        st.sampled_from(["g", "h"]),
        st.sampled_from(["c1", "c2", "c3"]),
        st.lists(st.sampled_from(QUEUES), max_size=4),
        st.integers(0, LOCK_LIVE_MS),
    ),
    max_size=40,
)


@given(STEPS)
def test_a_queue_has_one_owner_for_sixty_seconds(steps: list[tuple[str, str, str, list[MessageQueue], int]]) -> None:
    locks, now = QueueLocks(), 0
    model: dict[tuple[str, MessageQueue], tuple[str, int]] = {}
    for action, group, client, queues, later in steps:
        now += later
        if action == "lock":
            free = [
                queue
                for queue in dict.fromkeys(queues)
                if (group, queue) not in model
                or model[group, queue][0] == client
                or now - model[group, queue][1] > LOCK_LIVE_MS
            ]
            assert locks.try_lock_batch(group, queues, client, now) == free
            model.update({(group, queue): (client, now) for queue in free})
        elif action == "unlock":
            locks.unlock_batch(group, queues, client)
            for queue in queues:
                if model.get((group, queue), ("", 0))[0] == client:
                    model.pop((group, queue), None)
        else:
            locks.expire(now)
            model = {key: lock for key, lock in model.items() if now - lock[1] <= LOCK_LIVE_MS}
            assert len(locks) == len(model)
        for group_name in ("g", "h"):
            for queue in QUEUES:
                owner, since = model.get((group_name, queue), (None, 0))
                assert locks.owner(group_name, queue, now) == (owner if now - since <= LOCK_LIVE_MS else None)


def test_all_locks_together_have_a_limit_and_those_that_run_out_make_room() -> None:
    locks = QueueLocks()
    queues = [MessageQueue("T", "b", number) for number in range(MAX_LOCKS + 10)]
    assert len(locks.try_lock_batch("g", queues, "stranger", 0)) == MAX_LOCKS == len(locks)
    assert locks.try_lock_batch("h", queues[:1], "c", 1) == []
    assert locks.try_lock_batch("g", queues[:5], "stranger", 1) == queues[:5], "held ones are renewed"
    assert locks.try_lock_batch("g", queues[10:11], "c", LOCK_LIVE_MS + 1) == queues[10:11], "one that ran out is taken"
    locks.unlock_batch("g", queues[:2], "stranger")
    assert locks.try_lock_batch("h", queues[:5], "c", 1) == queues[:2]
    locks.expire(2 * LOCK_LIVE_MS + 3)
    assert len(locks) == 0
