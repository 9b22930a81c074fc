"""Whether a caller may have the name that it says, when it has no certificate: what can be told without a secret.

    nobody told us an address of that member      refused: nothing could be answered to it
    no connection has the name                    taken in
    one has it, from a worse address              the caller takes its place
    one has it, and its machine is silent         the caller takes its place: it lost its first connection
    one has it, and it is alive                   refused

An address is good if it is one of those that the member's name in `dLegerPeers` leads to. It is no condition: behind a
proxy or a translated address no member has one. So a stranger never takes the place of a member that is connected, and
a member takes the place of a stranger on another machine. Against a stranger on the member's own machine, or on the way
between, only TLS helps.

A member that comes back after its cable was cut may find its old connection alive for a moment: two thirds of
`silence_timeout_ms` at most, and it calls again within a second.
"""

from __future__ import annotations

from collections.abc import Callable, Set
from typing import Protocol

from tallystick.replication.transport.handshake import Standing

KnownAddresses = Callable[[int], Set[str] | None]
"""IP addresses of a member, as far as its name was looked up; None: it has no name here."""


class Caller(Protocol):
    """A connection; part of `link.CalledLink`."""

    @property
    def standing(self) -> Standing: ...

    def silent_ms(self) -> int: ...


def standing(host: str, known: Set[str] | None) -> Standing:
    """How good the claim of a caller from `host` is."""
    return Standing.ADDRESS if known is not None and host in known else Standing.UNKNOWN


def objection(
    member: int, caller: Caller, older: Caller | None, known: Set[str] | None, silence_timeout_ms: int
) -> str | None:
    """Why the caller is refused; None: it is taken in, in the place of the older connection if there is one."""
    if known is None:
        return f"no address of n{member} is known here"
    if older is None or caller.standing > older.standing:
        return None
    if caller.standing == older.standing and older.silent_ms() > silence_timeout_ms * 2 // 3:
        return None
    return f"n{member} is connected already, and that connection is alive"
