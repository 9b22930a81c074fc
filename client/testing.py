"""A real broker for tests of applications: name server and broker in this process, on free ports, in a folder.

    async with Broker() as broker, Client(broker.nameserver) as client:
        ...

It needs the wheel `tallystick`. The pytest fixture `tallystick_broker` (module `fixtures`) is one that is running.
"""

from __future__ import annotations

import asyncio
import tempfile
from importlib import import_module
from pathlib import Path
from types import TracebackType
from typing import Any, Self

_HOST = "127.0.0.1"
_SMALL = {"mappedFileSizeCommitLog": 1 << 24, "maxHashSlotNum": 10_000, "maxIndexNum": 40_000}
"""Files of a test's store: they are allocated ahead."""


class Broker:
    """A name server and a broker. An asynchronous context manager; leaving it removes the folder, if it made it.

    `settings` are those of the broker and of the store, by RocketMQ's names. `stop_broker` and `start_broker` show what
    an application does when its broker is away. With `nameserver` it has no name server, and registers with this one:
    a second broker of a cluster, whose `brokerName` must differ.
    """

    def __init__(self, folder: Path | None = None, *, nameserver: str = "", **settings: Any) -> None:
        """RuntimeError: the wheel `tallystick` is not installed."""
        try:
            self._node = import_module("tallystick.node.core.settings")
            self._store = import_module("tallystick.store.settings")
            self._broker_type = import_module("tallystick.node.broker.broker").Broker
            self._nameserver_type = import_module("tallystick.node.nameserver.server").NameServer
        except ImportError as error:
            raise RuntimeError(
                f"a broker for tests needs the wheel tallystick: pip install tallystick ({error})"
            ) from None
        self._own = tempfile.TemporaryDirectory(prefix="tallystick-") if folder is None else None
        self._folder = Path(self._own.name) if self._own is not None else Path(str(folder))
        self._settings = settings
        self._nameserver: Any = None
        self._broker: Any = None
        self._port = 0
        self.nameserver = nameserver
        """The address for `Client`, once it is running."""

    async def __aenter__(self) -> Self:
        if not self.nameserver:
            settings = self._node.NameServerSettings(
                listenPort=0, bindAddress=_HOST, kvConfigPath=str(self._folder / "kvConfig.json")
            )
            self._nameserver = self._nameserver_type(settings)
            self.nameserver = f"{_HOST}:{await self._nameserver.start()}"
        try:
            await self.start_broker()
        except BaseException:
            await self._stop_nameserver()
            raise
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: object, trace: TracebackType | None) -> None:
        await self.stop_broker()
        await self._stop_nameserver()
        if self._own is not None:
            await asyncio.to_thread(self._own.cleanup)

    @property
    def address(self) -> str:
        """The address of the broker."""
        return f"{_HOST}:{self._port}"

    async def start_broker(self) -> None:
        """Starts the broker, at the port that it had before."""
        names = {field for field in self._node.BrokerSettings.__dataclass_fields__ if field in self._settings}
        broker = self._node.BrokerSettings(
            **{"brokerName": "broker-a"} | {name: self._settings[name] for name in names},
            brokerIP1=_HOST,
            bindAddress=_HOST,
            listenPort=self._port,
            vipListenerEnable=False,
            namesrvAddr=self.nameserver,
        )
        rest = {name: value for name, value in self._settings.items() if name not in names}
        store = self._store.StoreSettings(
            **{"storePathRootDir": str(self._folder / "store"), "haListenPort": 0} | _SMALL | rest
        )
        self._broker = await self._broker_type.start(broker, store)
        self._port = self._broker.host.port

    async def _stop_nameserver(self) -> None:
        if self._nameserver is not None:
            await self._nameserver.stop()

    async def stop_broker(self) -> None:
        """Stops the broker. The name server stays."""
        broker, self._broker = self._broker, None
        if broker is not None:
            await broker.stop()
