"""Other slaves of the master that is followed: none may have a broker id that this broker, or its group, uses.

A name server knows one address for an id. Two slaves with one id replace each other there, every time that one of them
registers, and clients that read from a slave find sometimes the one and sometimes the other. RocketMQ does not report
this. So a copy asks the name servers, and asks what it finds there for its name and id.

Addresses are remembered: the name servers show the other slave only until this broker registers again.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Collection
from typing import TYPE_CHECKING

from tallystick.node.broker.copying.master import Master, MasterError
from tallystick.node.remoting.codes import RequestCode
from tallystick.node.remoting.command import Command
from tallystick.node.remoting.errors import RemotingError
from tallystick.store import fastjson
from tallystick.store.fastjson import FastjsonError, int_keys

if TYPE_CHECKING:
    from tallystick.node.broker.broker import Broker
    from tallystick.node.remoting.client import RemotingClient

_WAIT_S = 3.0
_MOST_SUSPECTS = 64


class OtherSlaves:
    """What `broker` knows of other slaves. `ids`: the broker ids that no other slave may have."""

    def __init__(self, broker: Broker, client: RemotingClient, ids: Callable[[], Collection[int]]) -> None:
        self._broker, self._client, self._ids = broker, client, ids
        self._suspects: dict[tuple[int, str], None] = {}

    async def conflict(self) -> str | None:
        """Which other slave has an id of ours, and where it is; None if none answers that has one. A name server that
        does not answer is passed over."""
        for nameserver in self._broker.registration.nameservers:
            for suspect in await self._registered(nameserver):
                self._suspects.setdefault(suspect)
        while len(self._suspects) > _MOST_SUSPECTS:
            del self._suspects[next(iter(self._suspects))]
        for number, address in tuple(self._suspects):
            if number in self._ids() and await self._has(address, number):
                name = self._broker.settings.brokerName
                return (
                    f"the slave {address} of {name} has the broker id {number}, which is used here, too: "
                    f"stop it, or start it with another brokerId"
                )
        return None

    async def _registered(self, nameserver: str) -> list[tuple[int, str]]:
        """Id and address of other brokers with our name and ids."""
        settings = self._broker.settings
        own = {str(self._broker.advertised), settings.externalAddress}
        try:
            answer = await self._client.call(nameserver, Command(RequestCode.GET_BROKER_CLUSTER_INFO, ext={}), _WAIT_S)
            table = fastjson.loads(answer.body)["brokerAddrTable"].get(settings.brokerName) or {}
            addresses = int_keys(table.get("brokerAddrs") or {})
        except (RemotingError, FastjsonError, AttributeError, TypeError, KeyError, ValueError):
            return []
        ids = self._ids()
        return [(number, str(each)) for number, each in addresses.items() if number in ids and str(each) not in own]

    async def _has(self, address: str, number: int) -> bool:
        """Whether the broker at `address` has our name and this id, and is not a member of our group."""
        theirs: dict[str, str] = {}
        with contextlib.suppress(MasterError):  # it has stopped, or it moved
            theirs = await Master(self._client, address).settings()
        same = theirs.get("brokerName") == self._broker.settings.brokerName and theirs.get("brokerId") == str(number)
        return same and theirs.get("enableDLegerCommitLog") != "true"
