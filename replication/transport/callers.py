"""Decides whether a caller without a certificate can have the member name that it claims, without a secret.

    no address of that member is configured       refused: an answer could not be sent
    no connection has the name                    accepted
    one has it, from a worse address              the caller replaces it
    one has it, and its machine is silent         the caller replaces it: its first connection was lost
    one has it, and it is alive                   refused

An address is good if it is one of those that the member's name in `dLegerPeers` resolves to. A good address is not
required: behind a proxy or with translated addresses no member has one. A stranger therefore never replaces a connected
member, and a member replaces a stranger on another machine. Only TLS protects against a stranger on the member's own
machine, or on the way between.

A member that returns after a network failure may find its old connection alive for a short time: at most two thirds of
`silence_timeout_ms`, and it calls again within a second.
"""

from __future__ import annotations

from collections.abc import Callable, Set
from typing import Protocol

from tallystick.replication.transport.handshake import Standing

KnownAddresses = Callable[[int], Set[str] | None]
"""IP addresses of a member, as far as its name was resolved; None if no name is configured here."""


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
    """Why the caller is refused; None if it is accepted, in which case it replaces the older connection."""
    if known is None:
        return f"no address of n{member} is known here"
    if older is None or caller.standing > older.standing:
        return None
    if caller.standing == older.standing and older.silent_ms() > silence_timeout_ms * 2 // 3:
        return None
    return f"n{member} is already connected, and that connection is alive"
