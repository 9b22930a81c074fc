"""What all connections of one transport share."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field

from tallystick.replication.transport.handshake import Identity
from tallystick.replication.transport.names import Names
from tallystick.replication.transport.settings import TransportSettings
from tallystick.replication.transport.tls import TlsFiles
from tallystick.store.limited_log import LimitedLog


@dataclass(frozen=True, slots=True)
class Shared:
    """`clock`: seconds, monotonic. `dice`: for random waits. `tls`: None for plain TCP."""

    identity: Identity
    settings: TransportSettings
    clock: Callable[[], float]
    dice: random.Random
    log: LimitedLog
    tls: TlsFiles | None
    names: Names = field(default_factory=Names)
