"""Requests of brokers: they register, unregister, and ask whether their topics changed.

Brokers are not authenticated. The name server only knows which connection sent a registration, so a registration never
ends that of another live connection (`claims`). If two connections register the same, the name server asks the holder:

    newcomer ──register──▶ holder's connection closed ───────────────▶ accepted
                           holder does not answer within ANSWER_S ───▶ accepted; the holder waits
                           holder withdraws or takes another id ─────▶ accepted (a leader that lost leadership)
                           holder answers ──────────────────────────▶ refused; the newcomer waits behind it
                           holder says the same from the same host ─▶ accepted (one broker with two connections)
"""

from __future__ import annotations

import asyncio
import logging
import time
import zlib
from collections.abc import Awaitable, Callable

from tallystick.node.nameserver import registration
from tallystick.node.nameserver.claims import Claim
from tallystick.node.nameserver.inquiry import ANSWER_S, Inquiries
from tallystick.node.nameserver.kv import ORDER_TOPIC_CONFIG, KvConfig
from tallystick.node.nameserver.limits import BoundsError, check_registration
from tallystick.node.nameserver.registration import (
    EXTERNAL_FIELD,
    TERM_FIELD,
    WHOLE_FIELD,
    RegisterBody,
    RegistrationError,
)
from tallystick.node.nameserver.routes import HeldError, MasterAddress, RouteTable, StaleTermError
from tallystick.node.remoting.codes import ResponseCode
from tallystick.node.remoting.command import (
    Command,
    ResponseError,
    need_long,
    need_str,
    opt_bool,
    opt_int,
    opt_long,
    opt_str,
)
from tallystick.node.remoting.connection import Connection
from tallystick.store import fastjson
from tallystick.store.limited_log import LimitedLog
from tallystick.store.tables import DataVersion

_logger = logging.getLogger("tallystick.nameserver")
_V3_0_11 = 37  # older brokers send another body


class BrokerRequests:
    """`contest_s`: how long a broker has to answer when another connection registers what it holds."""

    def __init__(
        self, routes: RouteTable, kv: KvConfig, now_ms: Callable[[], int], contest_s: float = ANSWER_S
    ) -> None:
        self.routes = routes
        self.refused: dict[str, int] = {}
        """Number of refused registrations and unregistrations, by reason."""
        self.displaced = 0
        """Number of registrations that ended because their broker did not answer an inquiry."""
        self._kv = kv
        self._now_ms = now_ms
        self._contest_s = contest_s
        self._inquiries = Inquiries(contest_s)
        self._settling: dict[Claim, asyncio.Event] = {}
        self._log = LimitedLog(_logger, time.monotonic)
        routes.on_held.append(self._claim_held)

    def register(self, connection: Connection, request: Command) -> Command | Awaitable[Command]:
        ext = request.ext
        crc = opt_int(ext, "bodyCrc32")
        if crc != 0 and zlib.crc32(request.body) & 0x7FFFFFFF != crc:
            raise ResponseError(ResponseCode.SYSTEM_ERROR, "crc32 not match")
        try:
            body = _register_body(request)
        except RegistrationError as error:
            raise ResponseError(ResponseCode.SYSTEM_ERROR, str(error)) from error
        name, address = need_str(ext, "brokerName"), need_str(ext, "brokerAddr")
        cluster, broker_id, ha_address = (
            need_str(ext, "clusterName"),
            need_long(ext, "brokerId"),
            need_str(ext, "haServerAddr"),
        )
        term, external = opt_long(ext, TERM_FIELD), opt_str(ext, EXTERNAL_FIELD)
        is_new = self.routes.data_version(address) is None
        try:
            check_registration(cluster, name, broker_id, address, ha_address, external, term)
            master = self.routes.register(
                cluster,
                name,
                broker_id,
                address,
                ha_address,
                body,
                owner=connection,
                now_ms=self._now_ms(),
                term=term,
                external=external,
                whole=opt_bool(ext, WHOLE_FIELD),
                source=connection.remote.ip,
            )
        except BoundsError as error:
            raise self._refuse("bounds", connection, f"broker {name[:100]!r}: {error}") from error
        except StaleTermError as error:
            raise self._refuse("stale term", connection, str(error)) from error
        except HeldError as held:
            assert held.claim is not None
            return self._contested(connection, request, held.claim, held.holders)
        if is_new:
            _logger.info("broker %s registered at %s with %d topics", name, address, len(body.topics))
        return self._registered(request, master)

    def _registered(self, request: Command, master: MasterAddress) -> Command:
        answer = {"haServerAddr": master.ha_address, "masterAddr": master.address}
        order = self._kv.namespace(ORDER_TOPIC_CONFIG)
        return request.reply(
            ext={key: value for key, value in answer.items() if value is not None},
            body=fastjson.dumps({"table": order}) if order is not None else b"",
        )

    async def _contested(self, connection: Connection, request: Command, claim: Claim, holders: list[Claim]) -> Command:
        """Handles a registration whose address or place another connection holds.

        The name server asks the holder. If the holder does not answer, or withdraws (a former leader registers as a
        slave), the new claim holds. Otherwise the new claim waits, and the registration is refused.
        """
        async with asyncio.TaskGroup() as group:
            group.create_task(self._displace_dead(claim, holders))
            group.create_task(self._settled(claim))
        rivals = self.routes.claims.blockers(claim)
        if claim.holds or all(rival.says_as(claim) for rival in rivals):
            return self._registered(request, self.routes.master_of(claim))
        raise self._refuse("held", connection, str(HeldError(claim, rivals)))

    async def _displace_dead(self, claim: Claim, holders: list[Claim]) -> None:
        for holder in holders:
            if holder.says_as(claim):
                continue
            asked_ms = self._now_ms()
            if await self._inquiries.alive(holder.owner) or holder.seen_ms > asked_ms:
                continue
            if holder in self.routes.claims.blockers(claim):
                self.displaced += 1
                self._log.warning(
                    "displaced",
                    "broker %s at %s does not answer: the registration of %s from %s takes its place",
                    *(holder.name, holder.address, claim.address, claim.source),
                )
                self.routes.displace(holder, claim)

    async def _settled(self, claim: Claim) -> None:
        """Waits until the claim holds, at most for the time that a holder has to answer or withdraw."""
        if claim.holds or all(rival.says_as(claim) for rival in self.routes.claims.blockers(claim)):
            return
        settled = self._settling.setdefault(claim, asyncio.Event())
        try:
            async with asyncio.timeout(self._contest_s):
                await settled.wait()
        except TimeoutError:
            pass  # the claim waits on; the registration is refused
        finally:
            self._settling.pop(claim, None)

    def _claim_held(self, claim: Claim) -> None:
        self._log.warning(
            "promoted",
            "broker %s id %d is now at %s, as registered by %s",
            *(claim.name, claim.broker_id, claim.address, claim.source),
        )
        if (settled := self._settling.get(claim)) is not None:
            settled.set()

    def _refuse(self, kind: str, connection: Connection, reason: str) -> ResponseError:
        self.refused[kind] = self.refused.get(kind, 0) + 1
        self._log.warning(kind, "refused a registration from %s: %s", connection.id, reason)
        return ResponseError(ResponseCode.SYSTEM_ERROR, f"refused: {reason}")

    def unregister(self, connection: Connection, request: Command) -> Command | Awaitable[Command]:
        for field in ("clusterName", "brokerName"):
            need_str(request.ext, field)
        need_long(request.ext, "brokerId")
        address = need_str(request.ext, "brokerAddr")
        try:
            self.routes.unregister(address, owner=connection, now_ms=self._now_ms())
        except HeldError as held:
            return self._unregister_other(connection, request, held.holders)
        return request.reply()

    async def _unregister_other(self, connection: Connection, request: Command, holders: list[Claim]) -> Command:
        """Handles an unregistration of another connection's registration: accepted if that connection is dead."""
        for holder in holders:
            if await self._inquiries.alive(holder.owner):
                raise self._refuse("farewell", connection, str(HeldError(None, holders)))
            if self.routes.claims.holder(holder.address) is holder:
                self.routes.remove(holder, self._now_ms())
        return request.reply()

    def query_data_version(self, connection: Connection, request: Command) -> Command:
        address = need_str(request.ext, "brokerAddr")
        try:
            version = DataVersion.from_json(fastjson.loads_request(request.body))
        except fastjson.FastjsonError as error:
            raise ResponseError(ResponseCode.SYSTEM_ERROR, f"the body is not a DataVersion: {error}") from error
        changed = self.routes.is_changed(address, version, connection)
        if not changed:
            self.routes.touch(address, self._now_ms(), connection)
        known = self.routes.data_version(address, connection)
        return request.reply(
            ext={"changed": "true" if changed else "false"}, body=fastjson.dumps(known.to_json()) if known else b""
        )


def _register_body(request: Command) -> RegisterBody:
    if not request.body:
        return RegisterBody(filter_servers=[])
    if request.version < _V3_0_11:
        return registration.decode_wrapper(request.body)
    if opt_bool(request.ext, "compressed"):
        return registration.decode_compressed(request.body)
    return registration.decode_json(request.body)
