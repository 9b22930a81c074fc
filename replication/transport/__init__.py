"""Connections between the members of a group, and what travels on them.

`frames`, `codec`, `handshake` and `shipping_messages` are bytes without I/O; `link` is one connection, `peer_lane`
keeps one to a peer, `listener` takes those of others in; `transport` is all of them behind `send` and `deliver`.
`shipping` carries whole files over it, to a member that is too far behind for the log.
"""

from tallystick.replication.transport.handshake import Identity, Lane
from tallystick.replication.transport.settings import TlsSettings, TransportSettings
from tallystick.replication.transport.transport import Transport

__all__ = ["Identity", "Lane", "TlsSettings", "Transport", "TransportSettings"]
