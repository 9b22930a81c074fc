"""Searches by key, as `mqadmin queryMsgByKey` does them."""

from __future__ import annotations

from tallystick.node.core.client import ClusterClient
from tallystick.node.remoting.codes import RequestCode
from tallystick.store.formats.record import Record

_RESULTS_MAX = 64  # a broker returns at most that many


async def search(client: ClusterClient, address: str, topic: str, key: str) -> list[Record]:
    """Returns the messages that a broker finds by a key or a unique key, over all times.

    Raises RemotingError: the broker found nothing, or refused.
    """
    ext = {
        "topic": topic,
        "key": key,
        "maxNum": str(_RESULTS_MAX),
        "beginTimestamp": "0",
        "endTimestamp": str(2**63 - 1),
    }
    body = (await client.call(address, RequestCode.QUERY_MESSAGE, ext)).body
    records: list[Record] = []
    at = 0
    while at < len(body):
        records.append(Record.decode(body, at))
        at += records[-1].size
    return records
