"""Errors of the admin core and of the client, for the exit code of a command."""

from __future__ import annotations

from tallystick.admin.errors import ChangedError
from tallystick.client.core.errors import ClientError, Refused

CAUSED = (ClientError,)
"""What users and servers can cause."""
REFUSALS = (Refused, ChangedError)
"""A server refused the request, or the object was changed meanwhile."""
