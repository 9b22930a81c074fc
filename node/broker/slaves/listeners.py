"""The port for slaves, which is bound before the store is opened."""

from __future__ import annotations

import logging
import socket

from tallystick.node.core.settings import BrokerSettings
from tallystick.node.remoting.server import bind
from tallystick.store.setting import SettingsError
from tallystick.store.settings import BrokerRole, StoreSettings

_logger = logging.getLogger("tallystick.broker")

_HIGHEST_PORT = 65_535


async def bind_for_slaves(
    settings: BrokerSettings, store_settings: StoreSettings, *, any_port: bool
) -> list[socket.socket]:
    """Sockets at the port for slaves; empty if the broker has none. `any_port`: the broker's own port was chosen by the
    system, and so is this one, unless it is set.

    With access control the port needs `haAllowedAddresses`: it would give the log to everyone who reaches it.
    SettingsError: a SYNC_MASTER has access control and no such addresses. OSError: a port that is set, or that a
    SYNC_MASTER needs, cannot be bound. The default port is not worth a failed start: brokers on one machine may have
    adjacent ports.
    """
    port = store_settings.haListenPort
    if store_settings.enableDLegerCommitLog or port == 0:
        return []
    if settings.aclEnable and not settings.haAllowedAddresses:
        if store_settings.brokerRole is BrokerRole.SYNC_MASTER:
            raise SettingsError("haAllowedAddresses", "must name the slaves with aclEnable and brokerRole=SYNC_MASTER")
        _logger.info("no slave can connect: with aclEnable, haAllowedAddresses must name the addresses of slaves")
        return []
    if port > 0:
        return await bind(settings.bindAddress, port, "store.haListenPort")
    port = 0 if any_port else settings.listenPort + 1
    try:
        if port > _HIGHEST_PORT:
            raise OSError(f"there is no port {port}")
        return await bind(settings.bindAddress, port, "the port for slaves: broker.listenPort + 1")
    except OSError as error:
        if store_settings.brokerRole is BrokerRole.SYNC_MASTER:
            raise
        _logger.warning("no slave can connect: %s; set haListenPort to another port, or to 0", error)
        return []
