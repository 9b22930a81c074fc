"""Tells a service manager, such as systemd with `Type=notify`, that the process serves or stops.

The service manager passes the address of a datagram socket in `NOTIFY_SOCKET`. Source: sd_notify(3).
"""

from __future__ import annotations

import logging
import os
import socket

_logger = logging.getLogger("tallystick")
VARIABLE = "NOTIFY_SOCKET"
READY, STOPPING = "READY=1", "STOPPING=1"


def notify(state: str) -> None:
    """Sends a state to the service manager, if there is one. A failure is logged and has no other effect."""
    address = os.environ.get(VARIABLE, "")
    if not address:
        return
    if address.startswith("@"):  # an abstract socket of Linux
        address = f"\0{address[1:]}"
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender:
            sender.setblocking(False)  # a service manager that does not read must not stop the process
            sender.sendto(state.encode(), address)
    except OSError as error:
        _logger.warning("cannot notify the service manager at %s: %s", os.environ[VARIABLE], error.strerror)
