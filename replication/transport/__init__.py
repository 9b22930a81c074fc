"""Connections between the members of a group, and the messages on them.

`frames`, `codec`, `handshake` and `shipping_messages` convert bytes without I/O. `link` is one connection, `peer_lane`
keeps a connection to another member, and `listener` accepts those of others. `transport` combines them behind `send`
and `deliver`. `shipping` sends whole files, to a member that is too far behind for the log.
"""

from tallystick.replication.transport.handshake import Identity, Lane
from tallystick.replication.transport.settings import TlsSettings, TransportSettings
from tallystick.replication.transport.transport import Transport

__all__ = ["Identity", "Lane", "TlsSettings", "Transport", "TransportSettings"]
