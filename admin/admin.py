"""The admin core: what a person asks of a cluster, and what they change in it.

    async with Admin("ns1:9876;ns2:9876") as admin:
        for topic in (await admin.topics.list()).items:
            ...

It works with tallystick and with RocketMQ 4.8 and newer. Each face (the command `tally`, the REST interface, the
console) calls these methods, so that each question has one answer. Reads return what could be read, with a list of
problems; they raise only if nothing could be read. Every change has `dry_run`: it reads what the change would do, and
changes nothing. A change asks all brokers that it concerns and reports a result for each.

Errors are those of `tallystick.client`: `NotFound`, `AccessDenied`, `Refused`, `ConnectionFailed`, `NoAnswer`.
"""

from __future__ import annotations

import ssl
from types import TracebackType
from typing import Self

from tallystick.client import Acl, Client


class Admin:
    """The questions and changes of one cluster. Use it as an asynchronous context manager, in one event loop."""

    def __init__(
        self,
        nameservers: str,
        *,
        tls: bool | ssl.SSLContext = False,
        acl: Acl | tuple[str, str] | None = None,
        timeout: float = 5.0,
    ) -> None:
        """The arguments are those of `Client`. `timeout`: seconds of one request to one server."""
        self.client = Client(nameservers, tls=tls, acl=acl, timeout=timeout)

    async def __aenter__(self) -> Self:
        await self.client.__aenter__()
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: object, trace: TracebackType | None) -> None:
        await self.client.close()
