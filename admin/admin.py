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

from tallystick.admin.audit import Audit
from tallystick.admin.brokers import Brokers
from tallystick.admin.clusters import Clusters
from tallystick.admin.config import Config
from tallystick.admin.dead_letters import DeadLetterTopics
from tallystick.admin.groups import Groups
from tallystick.admin.messages import Messages
from tallystick.admin.offsets import Offsets
from tallystick.admin.raft import Raft
from tallystick.admin.servers import Servers
from tallystick.admin.topics import Topics
from tallystick.client import Acl, Client

TIMEOUT_S = 5.0
"""Seconds of one request to one server."""


class Admin:
    """The questions and changes of one cluster. Use it as an asynchronous context manager, in one event loop."""

    def __init__(
        self,
        nameservers: str,
        *,
        tls: bool | ssl.SSLContext = False,
        acl: Acl | tuple[str, str] | None = None,
        timeout: float = TIMEOUT_S,
    ) -> None:
        """The arguments are those of `Client`. `timeout`: seconds of one request to one server."""
        client = Client(nameservers, tls=tls, acl=acl, timeout=timeout, connect_timeout=min(timeout, 3.0))
        self._share(client, timeout)
        self._owned: Client | None = client

    @classmethod
    def of(cls, client: Client, *, timeout: float = TIMEOUT_S) -> Self:
        """Returns an admin core that uses a client which is open, and leaves it open."""
        found = cls.__new__(cls)
        found._share(client, timeout)
        found._owned = None
        return found

    def _share(self, client: Client, timeout: float) -> None:
        self.client = client
        servers = Servers(client, timeout)
        self.clusters = Clusters(servers)
        self.brokers = Brokers(servers)
        self.topics = Topics(servers)
        self.groups = Groups(servers)
        self.messages = Messages(servers)
        self.raft = Raft(servers)
        self.offsets = Offsets(servers)
        self.dead_letters = DeadLetterTopics(servers)
        self.config = Config(servers)
        self.audit = Audit(servers)

    async def __aenter__(self) -> Self:
        if self._owned is not None:
            await self._owned.__aenter__()
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: object, trace: TracebackType | None) -> None:
        if self._owned is not None:
            await self._owned.close()
