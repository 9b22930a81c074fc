"""A cluster of a name server and two brokers in this process."""

from __future__ import annotations

from types import TracebackType
from typing import Any, Self

from tallystick.client.testing import Broker


class TwoBrokers:
    """The brokers broker-a and broker-b, which register with one name server. An asynchronous context manager."""

    def __init__(self, **settings: Any) -> None:
        """`settings`: of both brokers."""
        self._settings = settings

    async def __aenter__(self) -> Self:
        self.a = Broker(**self._settings)
        await self.a.__aenter__()
        self.nameserver = self.a.nameserver
        self.b = Broker(nameserver=self.nameserver, brokerName="broker-b", **self._settings)
        try:
            await self.b.__aenter__()
        except BaseException:
            await self.a.__aexit__(None, None, None)
            raise
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: object, trace: TracebackType | None) -> None:
        await self.b.__aexit__(kind, error, trace)
        await self.a.__aexit__(kind, error, trace)

    @property
    def addresses(self) -> list[str]:
        """The addresses of both brokers."""
        return [self.a.address, self.b.address]
