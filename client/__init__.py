"""An asyncio client for RocketMQ and tallystick.

Names are imported when they are first used: brokers load `tallystick.client.wire` alone.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tallystick.client.client import Client as Client
    from tallystick.client.core.errors import AccessDenied as AccessDenied
    from tallystick.client.core.errors import BufferFull as BufferFull
    from tallystick.client.core.errors import Busy as Busy
    from tallystick.client.core.errors import ClientError as ClientError
    from tallystick.client.core.errors import ClosedError as ClosedError
    from tallystick.client.core.errors import ConfigurationError as ConfigurationError
    from tallystick.client.core.errors import ConnectionFailed as ConnectionFailed
    from tallystick.client.core.errors import NoAnswer as NoAnswer
    from tallystick.client.core.errors import NotFound as NotFound
    from tallystick.client.core.errors import NotStored as NotStored
    from tallystick.client.core.errors import NotSupported as NotSupported
    from tallystick.client.core.errors import ProtocolError as ProtocolError
    from tallystick.client.core.errors import Refused as Refused
    from tallystick.client.core.errors import Timeout as Timeout
    from tallystick.client.core.errors import Unknown as Unknown
    from tallystick.client.core.events import Event as Event
    from tallystick.client.transport.connections import Acl as Acl
    from tallystick.client.transport.routes import Queue as Queue
    from tallystick.client.transport.routes import Route as Route

_ERRORS = (
    *("AccessDenied", "BufferFull", "Busy", "ClientError", "ClosedError", "ConfigurationError", "ConnectionFailed"),
    *("NoAnswer", "NotFound", "NotStored", "NotSupported", "ProtocolError", "Refused", "Timeout", "Unknown"),
)
_PLACES = {
    **dict.fromkeys(_ERRORS, "core.errors"),
    "Acl": "transport.connections",
    "Client": "client",
    "Event": "core.events",
    "Queue": "transport.routes",
    "Route": "transport.routes",
}
__all__ = sorted(_PLACES)


def __getattr__(name: str) -> Any:
    if name not in _PLACES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_PLACES[name]}"), name)
