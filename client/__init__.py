"""An asyncio client for RocketMQ and tallystick.

Names are imported when they are first used: brokers load `tallystick.client.wire` alone.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tallystick.client.client import Client as Client
    from tallystick.client.consuming.consumer import Consumer as Consumer
    from tallystick.client.consuming.delivery import Batch as Batch
    from tallystick.client.consuming.delivery import Delivery as Delivery
    from tallystick.client.consuming.filters import ALL as ALL
    from tallystick.client.consuming.filters import Sql as Sql
    from tallystick.client.consuming.filters import Tags as Tags
    from tallystick.client.consuming.pull import PullConsumer as PullConsumer
    from tallystick.client.consuming.pulling import Pulled as Pulled
    from tallystick.client.consuming.pulling import Start as Start
    from tallystick.client.core.codecs import BYTES as BYTES
    from tallystick.client.core.codecs import JSON as JSON
    from tallystick.client.core.codecs import TEXT as TEXT
    from tallystick.client.core.codecs import Codec as Codec
    from tallystick.client.core.codecs import msgspec_codec as msgspec_codec
    from tallystick.client.core.codecs import pydantic_codec as pydantic_codec
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
    from tallystick.client.core.message import Message as Message
    from tallystick.client.core.message import Stored as Stored
    from tallystick.client.core.queue import Queue as Queue
    from tallystick.client.core.result import SendResult as SendResult
    from tallystick.client.core.result import SendStatus as SendStatus
    from tallystick.client.observing.observer import Consuming as Consuming
    from tallystick.client.observing.observer import Ending as Ending
    from tallystick.client.observing.observer import Observer as Observer
    from tallystick.client.observing.observer import Processed as Processed
    from tallystick.client.observing.observer import Sending as Sending
    from tallystick.client.producing.producer import Producer as Producer
    from tallystick.client.producing.producer import Reply as Reply
    from tallystick.client.producing.transaction import Outcome as Outcome
    from tallystick.client.producing.transaction import Transaction as Transaction
    from tallystick.client.producing.transaction import TransactionalProducer as TransactionalProducer
    from tallystick.client.transport.connections import Acl as Acl
    from tallystick.client.transport.routes import Route as Route

_ERRORS = (
    *("AccessDenied", "BufferFull", "Busy", "ClientError", "ClosedError", "ConfigurationError", "ConnectionFailed"),
    *("NoAnswer", "NotFound", "NotStored", "NotSupported", "ProtocolError", "Refused", "Timeout", "Unknown"),
)
_PLACES = {
    **dict.fromkeys(_ERRORS, "core.errors"),
    **dict.fromkeys(("Consuming", "Ending", "Observer", "Processed", "Sending"), "observing.observer"),
    "Acl": "transport.connections",
    "Client": "client",
    "Event": "core.events",
    "BYTES": "core.codecs",
    "Codec": "core.codecs",
    "JSON": "core.codecs",
    "Message": "core.message",
    "Producer": "producing.producer",
    "Reply": "producing.producer",
    "SendResult": "core.result",
    "SendStatus": "core.result",
    "Stored": "core.message",
    "TEXT": "core.codecs",
    "msgspec_codec": "core.codecs",
    "pydantic_codec": "core.codecs",
    "ALL": "consuming.filters",
    "Batch": "consuming.delivery",
    "Consumer": "consuming.consumer",
    "Delivery": "consuming.delivery",
    "PullConsumer": "consuming.pull",
    "Pulled": "consuming.pulling",
    "Sql": "consuming.filters",
    "Start": "consuming.pulling",
    "Tags": "consuming.filters",
    "Outcome": "producing.transaction",
    "Transaction": "producing.transaction",
    "TransactionalProducer": "producing.transaction",
    "Queue": "core.queue",
    "Route": "transport.routes",
}
__all__ = sorted(_PLACES)


def __getattr__(name: str) -> Any:
    if name not in _PLACES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_PLACES[name]}"), name)
