"""The fields of a request that pulls messages.

Source: PullMessageRequestHeader and PullSysFlag of RocketMQ 4.8.0.
"""

from __future__ import annotations

COMMIT, SUSPEND, WITH_SUBSCRIPTION = 1, 2, 4
"""Bits of `sysFlag`."""


def pull_fields(
    group: str,
    topic: str,
    queue_id: int,
    offset: int,
    *,
    count: int,
    wait_s: float = 0.0,
    expression: str = "*",
    kind: str = "TAG",
    with_subscription: bool = True,
    version: int = 0,
    commit: int | None = None,
) -> dict[str, str]:
    """Returns the fields of PULL_MESSAGE. The broker waits at most `wait_s` seconds for the first message.
    `with_subscription`: the request has its filter; otherwise the broker uses that of the heartbeats. `version`: of the
    subscription. `commit`: an offset to commit with the pull."""
    flags = SUSPEND if wait_s else 0
    flags |= WITH_SUBSCRIPTION if with_subscription else 0
    flags |= COMMIT if commit is not None else 0
    return {
        "consumerGroup": group,
        "topic": topic,
        "queueId": str(queue_id),
        "queueOffset": str(offset),
        "maxMsgNums": str(count),
        "sysFlag": str(flags),
        "commitOffset": str(commit if commit is not None else 0),
        "suspendTimeoutMillis": str(int(wait_s * 1000)),
        "subscription": expression,
        "subVersion": str(version),
        "expressionType": kind,
    }
